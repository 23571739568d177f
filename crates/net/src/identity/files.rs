//! Files with keys in them: for one user only, or refused, and there whole or not at all.
//!
//! Modes are set when a file is made and looked at whenever it is read: a backup that was restored with other ones, or a file that
//! somebody else has put there, is no secret. A symbolic link is refused as well, because it may name something else a moment later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::IdentityError;

/// What a file holds, if it is this user's alone and so is its directory.
pub(super) fn read_private(path: &Path) -> Result<String, IdentityError> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        check_private(directory)?;
    }
    check_private(path)?;
    read(path)
}

/// What a file holds that is no secret.
pub(super) fn read(path: &Path) -> Result<String, IdentityError> {
    fs::read_to_string(path).map_err(|source| failed(path, source))
}

/// Refuses what others can read, change or have put there: whoever has the key is this user.
#[cfg(unix)]
pub(super) fn check_private(path: &Path) -> Result<(), IdentityError> {
    use std::os::unix::fs::MetadataExt;
    // Of the link, not of what it names: with a slash or a dot at its end, a path means the latter.
    let itself: PathBuf = path.components().collect();
    let metadata = fs::symlink_metadata(itself).map_err(|source| failed(path, source))?;
    let exposed = |reason| Err(IdentityError::Exposed { path: path.to_owned(), reason });
    if metadata.file_type().is_symlink() {
        exposed("it is a symbolic link")
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        exposed("it belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        exposed("others may use it, too")
    } else {
        Ok(())
    }
}

/// Nothing is known of that here, which is why such identities are for loopback only.
#[cfg(not(unix))]
pub(super) fn check_private(_path: &Path) -> Result<(), IdentityError> {
    Ok(())
}

/// A directory in which an identity can be put, made where there is none. Whoever finds that it cannot be has not asked for one yet.
pub(super) fn check_writable(directory: &Path) -> Result<(), IdentityError> {
    private_directory(directory).map_err(|source| failed(directory, source))?;
    check_private(directory)?;
    let trial = beside(&directory.join("trial"));
    let written = private_file(&trial, "").and_then(|()| fs::remove_file(&trial));
    written.map_err(|source| failed(directory, source))
}

/// A directory for this user only, with those above it where they are missing.
#[cfg(unix)]
pub(super) fn private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A new file for this user only.
#[cfg(unix)]
pub(super) fn private_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    // A key that is gone after a power cut would have used up a token for nothing.
    file.sync_all()
}

#[cfg(not(unix))]
pub(super) fn private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

#[cfg(not(unix))]
pub(super) fn private_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

/// Makes a file where there is none, whole: of several that do it at once one does, and the others hear that it exists. What fails in
/// between, on a full disk or by a crash, leaves nothing under that name.
pub(super) fn claim_private_file(path: &Path, text: &str) -> io::Result<()> {
    let draft = beside(path);
    let linked = private_file(&draft, text).and_then(|()| fs::hard_link(&draft, path));
    let _ = fs::remove_file(&draft);
    linked?;
    sync_entries(path)
}

/// Removes a file. `false`: there was none.
pub(super) fn remove_private_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_entries(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until the directory of a file has its name for good: a file is on the disk before its name is, and a claim that is gone after
/// a power cut could be made twice.
#[cfg(unix)]
fn sync_entries(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::File::open(parent)?.sync_all()
}

#[cfg(not(unix))]
fn sync_entries(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Puts a file in the place of another one, at once: readers find the old one or the new one.
pub(super) fn replace_private_file(path: &Path, text: &str) -> Result<(), IdentityError> {
    let draft = beside(path);
    let renamed = private_file(&draft, text).and_then(|()| fs::rename(&draft, path));
    let written = renamed.and_then(|()| sync_entries(path));
    written.map_err(|source| {
        let _ = fs::remove_file(&draft);
        failed(path, source)
    })
}

/// Makes a directory with these files, whole or not at all. Says whether it was made: somebody else's is left as it is.
pub(super) fn make_directory(directory: &Path, files: &[(&str, &str)]) -> Result<bool, IdentityError> {
    let draft = beside(directory);
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let written = parent
        .map_or(Ok(()), private_directory)
        .and_then(|()| private_directory(&draft))
        .and_then(|()| files.iter().try_for_each(|(name, text)| private_file(&draft.join(name), text)))
        .and_then(|()| files.first().map_or(Ok(()), |(name, _)| sync_entries(&draft.join(name))));
    let renamed = written.and_then(|()| match fs::rename(&draft, directory) {
        // Whoever was first has made it.
        Err(_) if files.iter().all(|(name, _)| directory.join(name).exists()) => Ok(false),
        renamed => renamed.and_then(|()| sync_entries(directory)).map(|()| true),
    });
    if !matches!(renamed, Ok(true)) {
        // There may be a key in it.
        let _ = fs::remove_dir_all(&draft);
    }
    renamed.map_err(|source| failed(directory, source))
}

pub(super) fn failed(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::File { path: path.to_owned(), source }
}

/// A name of this moment's own beside `path`.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}-{}-{:x}", std::process::id(), fastrand::u64(..)))
}
