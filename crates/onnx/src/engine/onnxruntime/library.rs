//! Finds the library of ONNX Runtime, and loads it once per process.
//!
//! A process has one ONNX Runtime at most: its threads and allocators are the process's. The first model that needs it
//! loads it; a later model that names another file is an error that names both.

use std::env;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ort::environment::Environment;
use ort::logging::LogLevel;

/// The oldest version that the binding can speak to.
const OLDEST: u32 = ort::MINOR_VERSION;

/// Names a library for programs that load ONNX Runtime. The variable is ONNX Runtime's own.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// The library of this process.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    pub(crate) environment: Environment,
}

/// Why there is no ONNX Runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// There is none in any of the places. Remedy: `pip install onnxruntime`, or name one by `library`.
    #[error(
        "found no library of ONNX Runtime: not by `library`, {VARIABLE}, the package `onnxruntime` of the active \
         virtual environment, or the system's search path"
    )]
    NotFound,
    /// A file that cannot be loaded: for another machine, incomplete, or not ONNX Runtime.
    #[error("cannot load ONNX Runtime {}: {reason}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The words of the loader.
        reason: String,
    },
    /// Remedy: install a newer version.
    #[error("ONNX Runtime {} is version {version}, older than 1.{OLDEST}", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// As the library tells it.
        version: String,
    },
    /// Remedy: name one file for all stages.
    #[error("ONNX Runtime {} cannot be loaded beside {}: a process has one", path.display(), loaded.display())]
    Second {
        /// The file that this model names.
        path: PathBuf,
        /// The file that an earlier model loaded.
        loaded: PathBuf,
    },
}

static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// The library that the binding has taken. It takes no other one, also if this one fails later.
static TAKEN: OnceLock<PathBuf> = OnceLock::new();

/// The library, loaded at the first call: `named` by the configuration, or found.
pub(crate) fn load(named: Option<&Path>) -> Result<Library, LibraryError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let insisted = named.map(Path::to_owned).or_else(from_environment);
    if let Some(library) = &*loaded {
        return match named.filter(|path| !is_same_file(path, &library.path)) {
            Some(path) => Err(LibraryError::Second { path: path.to_owned(), loaded: library.path.clone() }),
            None => Ok(library.clone()),
        };
    }
    let library = match insisted {
        Some(path) => open(&path)?,
        None => first_that_opens(installed().into_iter().chain(system()))?,
    };
    Ok(loaded.insert(library).clone())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Whether a library is named, so that a broken one must not be passed over.
pub(crate) fn is_named(named: Option<&Path>) -> bool {
    named.is_some() || from_environment().is_some()
}

fn from_environment() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The packages of the active virtual environment and of the environment that this program is installed in.
fn installed() -> Vec<PathBuf> {
    let active = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    active.into_iter().chain(own_environment()).flat_map(|environment| packaged(&environment)).collect()
}

fn own_environment() -> Option<PathBuf> {
    let program = env::current_exe().ok()?.canonicalize().ok()?;
    let environment = program.parent()?.parent()?;
    environment.join("pyvenv.cfg").is_file().then(|| environment.to_owned())
}

/// The libraries of the package in this environment, the last by name first.
fn packaged(environment: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for python in files(&environment.join("lib"), "python3") {
        found.extend(files(&python.join("site-packages/onnxruntime/capi"), "libonnxruntime."));
    }
    found.sort();
    found.reverse();
    found
}

/// Bare names: the loader of the system looks for them.
fn system() -> [PathBuf; 2] {
    let name = format!("{}onnxruntime{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    [PathBuf::from(&name), PathBuf::from(format!("{name}.1"))]
}

/// The entries of a directory whose names start so; none if there is no such directory.
fn files(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = directory.read_dir().into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start)).map(|entry| entry.path()).collect()
}

/// The first that opens. If none does, the first that exists tells why; a bare name that is not there tells nothing.
fn first_that_opens(places: impl Iterator<Item = PathBuf>) -> Result<Library, LibraryError> {
    let mut reason = LibraryError::NotFound;
    for place in places {
        match open(&place) {
            Ok(library) => return Ok(library),
            Err(error) if place.is_absolute() && reason == LibraryError::NotFound => reason = error,
            Err(LibraryError::TooOld { path, version }) if reason == LibraryError::NotFound => {
                reason = LibraryError::TooOld { path, version };
            }
            Err(_) => {}
        }
    }
    Err(reason)
}

fn open(path: &Path) -> Result<Library, LibraryError> {
    if let Some(taken) = TAKEN.get() {
        return Err(LibraryError::Second { path: path.to_owned(), loaded: taken.clone() });
    }
    let broken = |reason: String| LibraryError::Broken { path: path.to_owned(), reason };
    // The binding asserts what a sound library gives; a panic says that this one is not sound.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let builder = ort::init_from(path).map_err(|error| match error {
            ort::LoadDynamicError::BadVersion { version_str, path } => {
                LibraryError::TooOld { path, version: version_str }
            }
            ort::LoadDynamicError::Dlopen { error, .. } => {
                broken(error.source().map_or_else(|| error.to_string(), ToString::to_string))
            }
            other => broken(other.to_string()),
        })?;
        let _first = TAKEN.set(path.to_owned());
        let builder = builder.with_name("callboard").with_telemetry(false).with_logger(Arc::new(log));
        let built = builder.build();
        built.map_err(|error| broken(error.to_string()))
    }));
    let environment = opened.map_err(|_| broken("it does not answer as ONNX Runtime".to_owned()))??;
    // Below a warning there is a line per operator.
    environment.set_log_level(LogLevel::Warning);
    Ok(Library { path: path.to_owned(), environment })
}

/// Logs a message of the library. It also returns its errors, and a caller's wrong input is such an error.
fn log(level: LogLevel, _category: &str, _id: &str, place: &str, message: &str) {
    match level {
        LogLevel::Fatal => tracing::error!(place, "{message}"),
        LogLevel::Warning => tracing::warn!(place, "{message}"),
        LogLevel::Error | LogLevel::Info | LogLevel::Verbose => tracing::debug!(place, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let path = env::temp_dir().join(format!("callboard-{}-not-a-library.so", std::process::id()));
        std::fs::write(&path, "text").unwrap();
        let error = open(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.starts_with(&format!("cannot load ONNX Runtime {}: ", path.display())), "{error}");
    }
}
