//! Model files that operators send, and versions that they remove. It blocks.
//!
//! A file arrives in a hidden directory of its own in the directory of models, which no look sees, and gets its place
//! by a rename in the same file system. Nothing lies beside it: a model with weights in other files is refused. A name
//! or version that could lead out of the directory is refused before a file is made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use callboard_http::ModelUpload;

use crate::config::models::listing::{MODEL_FILE, check_name, parse_version};

/// A place for the file of a version.
pub(super) fn begin(root: &Path, name: &str, version: &str) -> Result<ModelUpload, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    version_directory(root, name, version)?;
    let number = parse_version(version)?;
    let directory = root.join(format!(".upload-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    // Of an earlier process with this number.
    let _ = fs::remove_dir_all(&directory);
    ModelUpload::create(name, number, directory, MODEL_FILE).map_err(|error| format!("{}: {error}", root.display()))
}

/// Puts a whole file into its place.
pub(super) fn put(root: &Path, upload: ModelUpload) -> Result<(), String> {
    let directory = version_directory(root, &upload.name, &upload.version.to_string())?;
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    upload.put(&directory.join(MODEL_FILE)).map_err(failed)
}

/// Removes the files of a version.
pub(super) fn remove(root: &Path, name: &str, version: &str) -> Result<(), String> {
    let directory = version_directory(root, name, version)?;
    fs::remove_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// The directory of a version, which lies in the directory of models also if parts of it are links.
fn version_directory(root: &Path, name: &str, version: &str) -> Result<PathBuf, String> {
    check_name(name)?;
    let number = parse_version(version)?;
    if root.join(format!("{name}.onnx")).exists() {
        return Err(format!("`{name}` is the single file {name}.onnx; a model with versions is a directory"));
    }
    let directory = root.join(name).join(number.to_string());
    let inside = fs::canonicalize(root).map_err(|error| format!("{}: {error}", root.display()))?;
    for path in [&root.join(name), &directory] {
        let leads_out = match fs::symlink_metadata(path) {
            Ok(_) => !fs::canonicalize(path).is_ok_and(|path| path.starts_with(&inside)),
            Err(_) => false,
        };
        if leads_out {
            return Err(format!("{} is a link out of the directory of models", path.display()));
        }
    }
    Ok(directory)
}
