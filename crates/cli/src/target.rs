//! Finds and reads the target: the only part of the configuration that opens files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use callboard_codec::edited_text;

use callboard_config::{ConfigError, FoundModel, Target};

use crate::program::Program;

/// The configuration file of a directory.
pub(crate) const FILE_NAME: &str = "callboard.toml";

const NO_FILE: &str = "there is no callboard.toml in this directory, and no model such as NAME/1/model.onnx or NAME.onnx; \
     a model or a Python file is served without one: callboard serve model.onnx, callboard serve app.py";

/// A longer file is no configuration.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Finds and reads the target.
pub(crate) fn open(program: Program, typed: Option<PathBuf>) -> Result<Target, ConfigError> {
    match (program, typed) {
        (Program::Own, None) => Ok(Target::Program { file: None }),
        (Program::Own, Some(path)) => Ok(Target::Program { file: Some((path.clone(), read(path)?)) }),
        (Program::Callboard, typed) => served(typed.unwrap_or_else(|| PathBuf::from("."))),
    }
}

fn served(path: PathBuf) -> Result<Target, ConfigError> {
    #[cfg(feature = "process")]
    if let Some(app) = PythonTarget::of(&path) {
        return app.read(path);
    }
    let metadata = fs::metadata(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
    if metadata.is_dir() {
        let file = if path == Path::new(".") { PathBuf::from(FILE_NAME) } else { path.join(FILE_NAME) };
        if !file.exists() {
            let models = models_of(&path)?;
            if models.is_empty() {
                return Err(problem(&path, NO_FILE));
            }
            return Ok(Target::Models { path, models, file: None });
        }
        let text = read(file.clone())?;
        // A file without stages has the settings of the models beside it.
        let models = if Target::has_pipelines(&file, &text) { Vec::new() } else { models_of(&path)? };
        if models.is_empty() {
            return Ok(Target::File { text, path: file });
        }
        return Ok(Target::Models { path, models, file: Some((file, text)) });
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Target::File { text: read(path.clone())?, path }),
        Some("onnx") => Ok(Target::Model { path }),
        _ => Err(problem(&path, "expected a directory, a .toml, .py or .onnx file")),
    }
}

/// The models in a directory.
fn models_of(path: &Path) -> Result<Vec<FoundModel>, ConfigError> {
    let models = callboard_models::look(path).map_err(|error| problem(path, &unreadable(&error)))?;
    Ok(models.into_values().collect())
}

/// An app in Python as it is typed: `app.py`, `shop/app.py:Name`, `shop.app` or `shop.app:Name`.
#[cfg(feature = "process")]
#[derive(Debug)]
pub(crate) struct PythonTarget {
    /// The file in its directory, or the module.
    pub(crate) source: String,
    /// The directory of the file; the current one of a module.
    pub(crate) base: PathBuf,
    name: Option<String>,
    is_module: bool,
}

/// How the names of other files end, which are no modules.
#[cfg(feature = "process")]
const OTHER_FILES: [&str; 3] = ["toml", "onnx", "mar"];

#[cfg(feature = "process")]
impl PythonTarget {
    /// A path that is there is no module, whatever its name.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let text = path.to_str()?;
        let (source, name) = match text.rsplit_once(':') {
            Some((source, name)) => (source, Some(name.to_owned())),
            None => (text, None),
        };
        let file = Path::new(source);
        let extension = file.extension().and_then(|extension| extension.to_str());
        if extension == Some("py") {
            let base = file.parent().map_or_else(PathBuf::new, Path::to_owned);
            let source = file.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
            return Some(Self { source, base, name, is_module: false });
        }
        let is_other = path.exists() || extension.is_some_and(|extension| OTHER_FILES.contains(&extension));
        let is_module = !is_other && source.split('.').all(is_identifier);
        is_module.then(|| Self { source: source.to_owned(), base: PathBuf::new(), name, is_module })
    }

    /// What it means, as a configuration file. `path` is as it was typed.
    fn read(self, path: PathBuf) -> Result<Target, ConfigError> {
        use callboard_process::{PythonConfig, PythonError, is_module_in};

        use callboard_config::Hint;

        let Self { source, base, name, is_module } = self;
        let path = if is_module { path } else { base.join(&source) };
        if !is_module {
            fs::metadata(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
        }
        let mut app = PythonConfig::new(&*source).served(&base).map_err(|error| match error {
            // A word that is no module of this directory was probably meant to be a path.
            PythonError::NoInterpreter { .. } | PythonError::NoPackage { .. }
                if is_module && !is_module_in(&base, &source) =>
            {
                problem(&path, "there is no such file, directory or module")
            }
            PythonError::Refused { message } if is_module && message.starts_with("there is no module") => {
                problem(&path, &format!("there is no such file or directory, and {message}"))
            }
            error => problem(&path, &error.to_string()),
        })?;
        if let Some(name) = name {
            let known = app.names();
            let hint = Hint::new(&name, known.iter().map(String::as_str));
            let missing = || problem(&path, &format!("it has no service or pipeline `{name}`; {hint}"));
            app = app.only(&source, &name).ok_or_else(missing)?;
        }
        // Without the name, which is no part of a path.
        Ok(Target::File { text: app.configuration(), path: base.join(source) })
    }
}

#[cfg(feature = "process")]
fn is_identifier(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(|c| c.is_alphabetic() || c == '_') && letters.all(|c| c.is_alphanumeric() || c == '_')
}

/// Reads a configuration file, up to a limit.
fn read(path: PathBuf) -> Result<String, ConfigError> {
    let metadata = fs::metadata(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
    // A pipe or device might never end.
    if !metadata.is_file() {
        return Err(problem(&path, "not a regular file"));
    }
    let length = metadata.len();
    if length > MAX_FILE_BYTES {
        return Err(problem(&path, &format!("the file has {length} bytes, more than the {MAX_FILE_BYTES} allowed")));
    }
    let text = fs::read_to_string(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
    Ok(edited_text(&text).into_owned())
}

/// The message for an error of the operating system.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        io::ErrorKind::InvalidData => "the file is not UTF-8 text".to_owned(),
        _ => error.to_string(),
    }
}

fn problem(path: &Path, problem: &str) -> ConfigError {
    ConfigError::Target { path: path.to_owned(), problem: problem.to_owned() }
}
