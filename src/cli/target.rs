//! Finds and reads the target: the only part of the configuration that opens files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, FoundModel, Target};

use super::args::Program;
use super::models;

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
    if let Some((file, name)) = python_file(&path) {
        return python(file, name);
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
    let models = models::look(path).map_err(|error| problem(path, &unreadable(&error)))?;
    Ok(models.into_values().collect())
}

/// The file of `app.py` or `app.py:Name`, and the name.
#[cfg(feature = "process")]
fn python_file(path: &Path) -> Option<(PathBuf, Option<String>)> {
    let text = path.to_str()?;
    let (file, name) = match text.rsplit_once(':') {
        Some((file, name)) => (file, Some(name.to_owned())),
        None => (text, None),
    };
    Path::new(file).extension().is_some_and(|extension| extension == "py").then(|| (file.into(), name))
}

/// What a Python file means, as a configuration file.
#[cfg(feature = "process")]
fn python(path: PathBuf, name: Option<String>) -> Result<Target, ConfigError> {
    use callboard_process::PythonConfig;

    use crate::config::Hint;

    fs::metadata(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
    let base = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    let mut app = PythonConfig::new(&*file).served(&base).map_err(|error| problem(&path, &error.to_string()))?;
    if let Some(name) = name {
        let known = app.names();
        let hint = Hint::new(&name, known.iter().map(String::as_str));
        let missing = || problem(&path, &format!("it has no service or pipeline `{name}`; {hint}"));
        app = app.only(&file, &name).ok_or_else(missing)?;
    }
    Ok(Target::File { text: app.configuration(), path })
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
    fs::read_to_string(&path).map_err(|error| problem(&path, &unreadable(&error)))
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
