//! Services in Python: the interpreter, what a file serves, and the command of its workers.

mod app;
mod configuration;
mod keyed;

pub use app::{
    PythonApp, PythonDependency, PythonRawBody, PythonReplicas, PythonRequestArgument, PythonRequestPlace,
    PythonService,
};
pub use keyed::PythonKeyed;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::config::ProcessConfig;
use crate::environment::child_command;
use crate::helper::HelperConfig;
use crate::ready::Readiness;

/// The service of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonConfig {
    /// File and name, `app.py:Sentiment`, or module and name, `package.module:Sentiment`.
    pub app: String,

    /// The interpreter. By default that of the active virtual environment, else of `.venv` beside the file, else of the
    /// environment that this program is installed in, else `python3`.
    pub python: Option<PathBuf>,
}

/// An import that takes longer does not end.
const IMPORT_LIMIT: Duration = Duration::from_secs(120);

/// The longest description: schemas of thousands of services.
const MAX_DESCRIPTION_BYTES: u64 = 16 << 20;

/// What is kept of the output of an import that fails: a traceback, and the message after it.
const LAST_BYTES: usize = 256 * 1024;

/// Keeps files beside the app from taking the place of Python's own modules. The package removes it for the app.
const SAFE_PATH: (&str, &str) = ("PYTHONSAFEPATH", "1");

/// The line of a process that has run the hooks of an app.
pub const HOOKS_READY: &str = "callboard.hooks: ready";

/// Why a Python file cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PythonError {
    /// The interpreter cannot be run.
    #[error("the Python interpreter `{}` cannot be run: {source}; set `python` to another one", python.display())]
    NoInterpreter {
        /// The interpreter.
        python: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The interpreter lacks our package.
    #[error("`{}` lacks the package `callboard`; install it from the source of Callboard: {} -m pip install PATH/TO/callboard/python", python.display(), python.display())]
    NoPackage {
        /// The interpreter.
        python: PathBuf,
    },
    /// The file cannot be imported, or serves nothing.
    #[error("{message}")]
    Refused {
        /// The last line that the interpreter printed.
        message: String,
    },
    /// The file serves nothing of this name.
    #[error("`{app}` is not served: {}", names(known))]
    UnknownName {
        /// What was asked for.
        app: String,
        /// What is served.
        known: Vec<String>,
    },
}

fn names(known: &[String]) -> String {
    if known.is_empty() { "nothing is".to_owned() } else { format!("there is {}", known.join(", ")) }
}

/// The environment of Python that a program is installed in, as by `pip install`.
fn environment_of(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    let environment = program.parent()?.parent()?;
    environment.join("pyvenv.cfg").is_file().then(|| environment.to_owned())
}

impl PythonConfig {
    /// With the default interpreter.
    pub fn new(app: impl Into<String>) -> Self {
        Self { app: app.into(), python: None }
    }

    /// The interpreter for files in `base`.
    #[must_use]
    pub fn interpreter(&self, base: &Path) -> PathBuf {
        let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        self.interpreter_of(base, active, std::env::current_exe().ok().as_deref())
    }

    /// The same, where this environment is active and this program runs.
    fn interpreter_of(&self, base: &Path, active: Option<PathBuf>, program: Option<&Path>) -> PathBuf {
        // The interpreter is started in `base`.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        match &self.python {
            // A path, not a name that is looked up in `PATH`.
            Some(python) if python.components().count() > 1 => absolute(base.join(python)),
            Some(python) => python.clone(),
            None => {
                let beside = absolute(base.join(".venv"));
                let installed = program.and_then(environment_of);
                let environments = active.into_iter().chain([beside]).chain(installed);
                let mut interpreters = environments.map(|environment| environment.join("bin/python"));
                interpreters.find(|python| python.exists()).unwrap_or_else(|| "python3".into())
            }
        }
    }

    /// The same for this service: whether its replicas are forked, and from a process that has set it up.
    #[must_use]
    pub fn process_of(&self, base: &Path, service: &PythonService) -> ProcessConfig {
        let mut process = self.process(base);
        if service.share_setup
            && let (Some(command), Some(target)) = (&mut process.fork_server, process.fork_target.take())
        {
            command.pop();
            command.push(target.into());
        }
        process.fork_server = process.fork_server.filter(|_| service.warm);
        process
    }

    /// The file or module. A path may have a colon, a name has none.
    fn source(&self) -> &str {
        match self.app.rsplit_once(':') {
            Some((source, name)) if !name.contains(['/', '\\']) => source,
            _ => &self.app,
        }
    }

    /// All that the file or module serves. Imports it, in a process of its own; the stages of one file share an import
    /// while no Python file of `base` changes.
    ///
    /// # Errors
    ///
    /// Without an interpreter or our package, or when the file cannot be imported.
    pub fn served(&self, base: &Path) -> Result<PythonApp, PythonError> {
        let python = self.interpreter(base);
        let source = self.source();
        let path = base.join(source);
        let is_here = path.is_file() || is_module_in(base, source);
        let imported = ImportedFile { python: python.clone(), path, files: python_files(base) };
        let latest = LATEST.lock().clone();
        let is_fresh = |at: Instant| is_here || at.elapsed() < MAX_AGE;
        if let Some((.., app)) = latest.filter(|(of, at, _)| *of == imported && is_fresh(*at)) {
            return Ok(app);
        }
        let app = describe(&python, source, base)?;
        *LATEST.lock() = Some((imported, Instant::now(), app.clone()));
        Ok(app)
    }

    /// The service that this names.
    ///
    /// # Errors
    ///
    /// As [`served`](Self::served), and if nothing has the name.
    pub fn service(&self, base: &Path) -> Result<PythonService, PythonError> {
        let PythonApp { services, .. } = self.served(base)?;
        let known = || services.iter().map(|service| service.target.clone()).collect();
        let auth = services.iter().find(|service| service.names_callers()).map(|service| service.target.clone());
        let found = services.iter().find(|service| service.target == self.app);
        let found = found.map(|service| PythonService { auth, ..service.clone() });
        found.ok_or_else(|| PythonError::UnknownName { app: self.app.clone(), known: known() })
    }

    /// A module of the package, such as `callboard.prepare`, to be run for this app with files in `base`.
    #[must_use]
    pub fn tool(&self, base: &Path, module: &str) -> Command {
        let mut command = child_command(self.interpreter(base));
        command.args(["-m", module]).arg(&self.app).env(SAFE_PATH.0, SAFE_PATH.1).current_dir(directory(base));
        command
    }

    fn words(&self, base: &Path, module: &str, target: &str) -> [OsString; 4] {
        [self.interpreter(base).into(), "-m".into(), module.into(), target.into()]
    }

    /// The process that runs what the app does once per node, with files in `base`.
    #[must_use]
    pub fn hooks(&self, name: &str, base: &Path) -> HelperConfig {
        let mut helper = HelperConfig::new(name, self.words(base, "callboard.hooks", &self.app));
        helper.env.insert(SAFE_PATH.0.to_owned(), SAFE_PATH.1.to_owned());
        helper.directory = Some(directory(base).to_owned());
        helper.ready = Readiness::Line(HOOKS_READY.to_owned());
        helper
    }

    /// The command of a worker for files in `base`, and that of a fork server, which imports the file and may have the
    /// workers of all its services. It may take its time to start, as long as it works.
    #[must_use]
    pub fn process(&self, base: &Path) -> ProcessConfig {
        let mut process = ProcessConfig::new(self.words(base, "callboard.worker", &self.app));
        process.fork_server = Some(self.words(base, "callboard.fork_server", self.source()).into());
        process.fork_target = Some(self.app.clone());
        process.start_timeout = None;
        process.label = Some(self.app.clone());
        process.directory = Some(directory(base).to_owned());
        process.env.insert(SAFE_PATH.0.to_owned(), SAFE_PATH.1.to_owned());
        process
    }
}

#[derive(Clone, PartialEq, Eq)]
struct ImportedFile {
    python: PathBuf,
    path: PathBuf,
    files: BTreeMap<PathBuf, SystemTime>,
}

/// The file or module that was imported last, when, and what it serves.
static LATEST: Mutex<Option<(ImportedFile, Instant, PythonApp)>> = Mutex::new(None);

/// An installed module may change without a file of the app: what it serves is kept for the stages of one plan.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Whether a module is a file or package in this directory.
#[must_use]
pub fn is_module_in(base: &Path, module: &str) -> bool {
    let path = base.join(module.replace('.', "/"));
    path.with_extension("py").is_file() || path.join("__init__.py").is_file()
}

/// The most files and levels of a directory that are looked at.
const MAX_FILES: usize = 10_000;
const MAX_LEVELS: usize = 8;

/// The Python files in a directory and below it, and when each was last written: what an import may read. Without
/// hidden directories and virtual environments; of a very large directory a part.
#[must_use]
pub fn python_files(directory: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let (mut files, mut entries) = (BTreeMap::new(), 0);
    let mut directories = vec![(self::directory(directory).to_owned(), 0)];
    while let Some((directory, level)) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            entries += 1;
            let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else { continue };
            let path = entry.path();
            let is_left_out = name.to_string_lossy().starts_with('.')
                || name == "__pycache__"
                || name == "node_modules"
                || path.join("pyvenv.cfg").exists();
            if entries > MAX_FILES {
                return files;
            }
            if kind.is_dir() && !is_left_out && level < MAX_LEVELS {
                directories.push((path, level + 1));
            } else if path.extension().is_some_and(|extension| extension == "py")
                && let Ok(modified) = path.metadata().and_then(|metadata| metadata.modified())
            {
                files.insert(path, modified);
            }
        }
    }
    files
}

/// Asks an interpreter what a file or module in `base` serves.
fn describe(python: &Path, file: &str, base: &Path) -> Result<PythonApp, PythonError> {
    let failed = |source| PythonError::NoInterpreter { python: python.to_owned(), source };
    let mut command = child_command(python);
    command.args(["-m", "callboard.describe", file]).env(SAFE_PATH.0, SAFE_PATH.1).current_dir(directory(base));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let mut child = child.map_err(failed)?;
    // An import that does not end, or that leaves a process with these pipes.
    let group = Pid::from_child(&child);
    let (done, is_done) = channel::<()>();
    let limit = thread::spawn(move || {
        let is_late = is_done.recv_timeout(IMPORT_LIMIT) == Err(RecvTimeoutError::Timeout);
        is_late.then(|| kill_process_group(group, Signal::KILL)).is_some()
    });
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let printed = thread::spawn(move || stderr.map(last_bytes).unwrap_or_default());
    let described = stdout.map_or_else(|| Ok(Vec::new()), |stdout| bounded(stdout, MAX_DESCRIPTION_BYTES));
    if described.is_err() {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let (printed, status) = (printed.join().unwrap_or_default(), child.wait());
    drop(done);
    if limit.join().unwrap_or_default() {
        return Err(PythonError::Refused { message: format!("{file} was not imported within {IMPORT_LIMIT:?}") });
    }
    let described = described.map_err(|reason| PythonError::Refused { message: format!("{file}: {reason}") })?;
    if !status.map_err(failed)?.success() {
        // The lines before it are the traceback.
        let printed = String::from_utf8_lossy(&printed);
        let printed = printed.trim_end();
        let last = || printed.lines().last().unwrap_or_default();
        let message = printed.rsplit_once("callboard.describe: ").map_or_else(last, |(_, message)| message).to_owned();
        let is_missing = message.contains("No module named callboard") || message.contains("named 'callboard'");
        return Err(if is_missing {
            PythonError::NoPackage { python: python.to_owned() }
        } else {
            PythonError::Refused { message }
        });
    }
    serde_json::from_slice(&described).map_err(|error| PythonError::Refused {
        message: format!("`{}` described {file} as something that is not known: {error}", python.display()),
    })
}

/// All bytes of a pipe. An import may print without end.
fn bounded(pipe: impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    pipe.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("its import prints more than {most} bytes to the standard output"));
    }
    Ok(bytes)
}

/// The last bytes of a pipe, to its end.
fn last_bytes(mut pipe: impl Read) -> Vec<u8> {
    let (mut last, mut piece) = (Vec::new(), vec![0; LAST_BYTES]);
    loop {
        let bytes = match pipe.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return last,
            Ok(bytes) => bytes,
        };
        last.drain(..(last.len() + bytes).saturating_sub(LAST_BYTES));
        last.extend_from_slice(&piece[..bytes]);
    }
}

/// A path that a process can change to.
fn directory(base: &Path) -> &Path {
    if base.as_os_str().is_empty() { Path::new(".") } else { base }
}

#[cfg(test)]
mod tests;
