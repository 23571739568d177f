//! Python with pinned packages: a virtual environment for each file of `requirements/`, made once and shared by all
//! tests.
//!
//! An environment is under the target directory. It is created under a file lock, for parallel tests. A copy of its
//! requirements marks it as complete, so an interrupted or outdated environment is created again. `uv` installs the
//! packages, in a quarter of pip's time, and pip does where `uv` cannot: it knows other settings of an index.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run;
use crate::tool::PYTHON;

/// The environment of the installer itself.
const INSTALLER: &str = "uv";

/// The interpreter of an environment.
#[derive(Debug)]
pub(crate) struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// The environment with the packages of `requirements/{requirements}.txt`; `None` if Python is not
    /// required.
    ///
    /// ```ignore
    /// let Some(python) = Python::with("requests") else { return };
    /// python.run("upload.py", &[&server.address]);
    /// ```
    pub(crate) fn with(requirements: &str) -> Option<Self> {
        PYTHON.if_required(|| set_up(requirements))
    }

    /// The directory of the environment.
    pub(crate) fn environment(&self) -> PathBuf {
        self.interpreter.ancestors().nth(2).expect("an environment").to_owned()
    }

    /// A program of one of the packages, such as `go`.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.interpreter.with_file_name(name)
    }

    /// Runs `scripts/{script}` to its end; returns its output.
    ///
    /// # Panics
    ///
    /// If the script fails, with all its output.
    pub(crate) fn run(&self, script: &str, args: &[&str]) -> String {
        self.run_with(script, args, &[])
    }

    /// The same with these variables.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub(crate) fn run_with<A: AsRef<OsStr>>(
        &self,
        script: &str,
        args: &[A],
        environment: &[(&str, OsString)],
    ) -> String {
        let mut command = Command::new(&self.interpreter);
        command.envs(environment.iter().cloned());
        // No byte code next to the scripts, and unbuffered output.
        command.args(["-B", "-u"]).arg(external_directory().join("scripts").join(script)).args(args);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        run(&mut command).unwrap_or_else(|error| panic!("{script}: {error}"))
    }
}

/// Go keeps its files below its environment, and downloads nothing.
pub(crate) fn go_settings(go: &Python) -> [(&'static str, PathBuf); 4] {
    let below = |name: &str| go.interpreter.parent().and_then(Path::parent).expect("an environment").join(name);
    [
        ("GOTOOLCHAIN", "local".into()),
        ("GOPROXY", "off".into()),
        ("GOCACHE", below("go-cache")),
        ("GOPATH", below("go-path")),
    ]
}

fn set_up(requirements: &str) -> Result<Python, String> {
    let file = external_directory().join("requirements").join(format!("{requirements}.txt"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("external").join(format!("python-{requirements}"));
    let marker = directory.join("requirements.txt");
    let interpreter = directory.join("bin").join("python");

    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let lock = File::create(directory.with_extension("lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    let is_complete = fs::read_to_string(&marker).is_ok_and(|marker| marker == text);
    // An environment refers to the interpreter that created it, which may be removed.
    if is_complete && run(Command::new(&interpreter).arg("--version")).is_ok() {
        return Ok(Python { interpreter });
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    if requirements == INSTALLER || install_with_uv(&interpreter, &file).is_err() {
        let mut pip = Command::new(&interpreter);
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]);
        run(pip.arg("--requirement").arg(&file))?;
    }
    fs::write(marker, text).map_err(|error| error.to_string())?;
    Ok(Python { interpreter })
}

/// Installs packages with their byte code, which scripts do not write.
fn install_with_uv(interpreter: &Path, requirements: &Path) -> Result<(), String> {
    let mut uv = Command::new(set_up(INSTALLER)?.program("uv"));
    uv.args(["pip", "install", "--compile-bytecode", "--only-binary", ":all:", "--python"]);
    run(uv.arg(interpreter).arg("--requirement").arg(requirements)).map(drop)
}

fn external_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("external")
}
