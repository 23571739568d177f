//! Model files that operators send, and versions that they remove. It blocks.
//!
//! A file arrives in a hidden directory of its own in the directory of models, which no look sees, and gets its place
//! by a rename in the same file system. Nothing lies beside it: a model with weights in other files is refused. A name
//! or version that could lead out of the directory is refused before a file is made. The next node that starts
//! removes the uploads of a node that was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callboard_http::ModelUpload;

use callboard_config::models::listing::{MODEL_FILE, check_name, parse_version};

/// The beginning of the name of an upload's directory.
const PREFIX: &str = ".upload-";

/// A younger directory without a file may still get one.
const MAKING: Duration = Duration::from_secs(60);

/// Removes the uploads of ended processes. A live process, which may be another node of this directory, holds a lock on
/// the file of its upload.
pub(super) fn remove_leftovers(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) && is_leftover(&path) {
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed what an upload of an ended process has left"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "could not remove an old upload"),
            }
        }
    }
}

fn is_leftover(upload: &Path) -> bool {
    let versions = fs::read_dir(upload).into_iter().flatten().flatten();
    let mut files = versions.map(|version| version.path().join(MODEL_FILE)).filter(|file| file.is_file());
    match files.next() {
        Some(file) => File::open(file).is_ok_and(|file| file.try_lock().is_ok()),
        None => fs::symlink_metadata(upload)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MAKING)),
    }
}

/// A place for the file of a version.
pub(super) fn begin(root: &Path, name: &str, version: &str) -> Result<ModelUpload, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    version_directory(root, name, version)?;
    let number = parse_version(version)?;
    let own = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory = root.join(format!("{PREFIX}{}-{own}", std::process::id()));
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::directory::look::tests::Temporary;

    #[test]
    fn only_uploads_of_ended_processes_are_removed() {
        let directory = Temporary::new("leftovers");
        let root = &directory.0;
        // No process writes these any more: a file, and a directory that was made long ago.
        directory.write(".upload-1-0/3/model.onnx", b"half");
        fs::create_dir(root.join(".upload-1-1")).unwrap();
        let old = SystemTime::now() - 2 * MAKING;
        File::open(root.join(".upload-1-1")).unwrap().set_modified(old).unwrap();
        // These are written, or nothing of an upload.
        let mut upload = begin(root, "a", "1").unwrap();
        upload.write(b"x").unwrap();
        fs::create_dir(root.join(".upload-2-0")).unwrap();
        directory.write(".other/model.onnx", b"x");
        remove_leftovers(root);
        let left = |name: &str| root.join(name).exists();
        assert!(!left(".upload-1-0") && !left(".upload-1-1"));
        assert!(upload.path().exists() && left(".upload-2-0") && left(".other"));
    }

    #[cfg(unix)]
    #[test]
    fn an_upload_or_a_removal_follows_no_link_out_of_the_directory() {
        use std::os::unix::fs::symlink;

        let (directory, outside) = (Temporary::new("upload-links"), Temporary::new("upload-outside"));
        let root = &directory.0;
        outside.write("7/model.onnx", b"theirs");
        symlink(&outside.0, root.join("linked")).unwrap();
        fs::create_dir(root.join("sub")).unwrap();
        symlink(outside.0.join("7"), root.join("sub/7")).unwrap();
        symlink("../nowhere", root.join("sub/8")).unwrap();
        for (name, version) in [("linked", "7"), ("linked", "1"), ("sub", "7"), ("sub", "8")] {
            let refused = begin(root, name, version).unwrap_err();
            assert!(refused.contains("is a link out of the directory of models"), "{refused}");
            assert!(remove(root, name, version).is_err_and(|refused| refused.contains("is a link out of")));
        }
        // A link that is made while the file arrives.
        let upload = begin(root, "late", "1").unwrap();
        symlink(&outside.0, root.join("late")).unwrap();
        assert!(put(root, upload).is_err_and(|refused| refused.contains("is a link out of")));
        assert_eq!(fs::read(outside.0.join("7/model.onnx")).unwrap(), b"theirs");
        assert!(!outside.0.join("1").exists() && !root.join("nowhere").exists());
        // Links inside of the directory are the operator's own.
        fs::create_dir_all(root.join("own/1")).unwrap();
        symlink("own", root.join("alias")).unwrap();
        assert!(begin(root, "alias", "1").is_ok());
    }
}
