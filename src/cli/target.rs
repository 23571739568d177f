//! Finds and reads the target: the only part of the configuration that opens files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, Target};

use super::args::Program;

/// The configuration file of a directory.
pub(crate) const FILE_NAME: &str = "callboard.toml";

const NO_FILE: &str =
    "there is no callboard.toml in this directory; a model is served without one: callboard serve model.onnx";

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
    let metadata = fs::metadata(&path).map_err(|error| problem(&path, &unreadable(&error)))?;
    if metadata.is_dir() {
        let file = if path == Path::new(".") { PathBuf::from(FILE_NAME) } else { path.join(FILE_NAME) };
        if !file.exists() {
            return Err(problem(&path, NO_FILE));
        }
        return Ok(Target::File { text: read(file.clone())?, path: file });
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Target::File { text: read(path.clone())?, path }),
        Some("onnx") => Ok(Target::Model { path }),
        _ => Err(problem(&path, "expected a directory, a .toml file or an .onnx file")),
    }
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
