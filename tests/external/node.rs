//! Node.js with pinned packages: a folder for each `package.json` of `requirements/`, made once and shared by all
//! tests, as `python.rs` does it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run;
use crate::tool::NODE;

/// A folder with packages.
#[derive(Debug)]
pub(crate) struct Node {
    directory: PathBuf,
}

impl Node {
    /// The packages of `requirements/{requirements}.json`; `None` if Node.js is not required.
    pub(crate) fn with(requirements: &str) -> Option<Self> {
        NODE.if_required(|| set_up(requirements))
    }

    /// An empty folder below the packages, in which modules find them.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let directory = self.directory.join("scratch").join(name);
        // It may exist from an earlier run.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory for the test");
        directory
    }

    /// Runs a program of the packages in `directory`; returns its output.
    ///
    /// # Panics
    ///
    /// If it fails, with all its output.
    pub(crate) fn run(&self, program: &str, args: &[&str], directory: &Path) -> String {
        let mut command = Command::new(self.directory.join("node_modules").join(".bin").join(program));
        self.finish(command.args(args), directory)
    }

    /// Runs a file.
    ///
    /// # Panics
    ///
    /// If it fails, with all its output.
    pub(crate) fn script(&self, file: &str, args: &[&str], directory: &Path) -> String {
        self.finish(Command::new("node").arg(file).args(args), directory)
    }

    fn finish(&self, command: &mut Command, directory: &Path) -> String {
        // No telemetry, and no check for a newer version.
        let variables = [("REDOCLY_TELEMETRY", "off"), ("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true"), ("NO_COLOR", "1")];
        let command = command.envs(variables).current_dir(directory);
        let program = format!("{command:?}");
        run(command).unwrap_or_else(|error| panic!("{program}: {error}"))
    }
}

fn set_up(requirements: &str) -> Result<Node, String> {
    let external = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("external");
    let file = external.join("requirements").join(format!("{requirements}.json"));
    let manifest = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("external").join(format!("node-{requirements}"));
    let marker = directory.join("made.json");

    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let lock = File::create(directory.with_extension("lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    run(Command::new("node").arg("--version"))?;
    if fs::read_to_string(&marker).is_ok_and(|marker| marker == manifest) {
        return Ok(Node { directory });
    }
    fs::write(directory.join("package.json"), &manifest).map_err(|error| error.to_string())?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "http"]).current_dir(&directory);
    run(&mut npm)?;
    fs::write(marker, manifest).map_err(|error| error.to_string())?;
    Ok(Node { directory })
}
