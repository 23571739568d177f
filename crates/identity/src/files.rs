//! Files of an identity: private keys are read by one user only, no file is changed by another; written whole or not at
//! all.
//!
//! The mode is set when a file is created and checked each time it is read (`access.rs`): a backup may have been
//! restored with another mode. A symbolic link is followed within its directory, where only this user or root can have
//! made it; another link is refused, because it may point to another file a moment later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use callboard_codec::edited_text;

#[cfg(unix)]
pub(crate) use crate::access::check_directory;
#[cfg(unix)]
use crate::access::{open_private, open_public};
use crate::error::{IdentityError, failed};

/// The file that makes a directory that of a member.
pub(crate) const IDENTITY: &str = "identity.pem";

/// Reads a file that only this user may read, in a directory that only this user may change. Root may do both.
pub(crate) fn read_private(path: &Path) -> Result<String, IdentityError> {
    let text = io::read_to_string(open_private(path)?).map_err(|source| failed(path, source))?;
    Ok(edited_text(&text).into_owned())
}

/// Reads a file that is not secret, and that only this user or root may change.
pub(crate) fn read(path: &Path) -> Result<String, IdentityError> {
    let text = io::read_to_string(open_public(path)?).map_err(|source| failed(path, source))?;
    Ok(edited_text(&text).into_owned())
}

/// This system has no such check, so identities are for loopback only here.
#[cfg(not(unix))]
pub(crate) fn check_directory(_path: &Path) -> Result<(), IdentityError> {
    Ok(())
}

#[cfg(not(unix))]
fn open_public(path: &Path) -> Result<fs::File, IdentityError> {
    open_private(path)
}

#[cfg(not(unix))]
fn open_private(path: &Path) -> Result<fs::File, IdentityError> {
    fs::File::open(path).map_err(|source| failed(path, source))
}

/// Creates the directory if it is missing, and checks that files can be written there, before a token is used.
pub(crate) fn check_writable(directory: &Path) -> Result<(), IdentityError> {
    private_directory(directory).map_err(|source| failed(directory, source))?;
    check_directory(directory)?;
    let trial = draft_path(&directory.join("trial"));
    let written = private_file(&trial, "").and_then(|()| fs::remove_file(&trial));
    written.map_err(|source| failed(directory, source))
}

/// Creates a directory for this user only, and its missing parents.
#[cfg(unix)]
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file for this user only.
#[cfg(unix)]
pub(crate) fn private_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    // A key lost in a power cut would have used up a token for nothing.
    file.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

#[cfg(not(unix))]
pub(crate) fn private_file(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

/// Creates a file atomically: of several callers one succeeds, and the others get `AlreadyExists`. A failure in between
/// leaves nothing under that name.
pub(crate) fn claim_private_file(path: &Path, text: &str) -> io::Result<()> {
    Claim::prepare(path, text)?.make()
}

/// A file that is written under another name, which dropping this removes. [`make`](Self::make) gives it its own. So a
/// full disk refuses it before it is claimed.
#[derive(Debug)]
pub(crate) struct Claim {
    draft: PathBuf,
    path: PathBuf,
}

impl Claim {
    /// Writes the file.
    pub(crate) fn prepare(path: &Path, text: &str) -> io::Result<Self> {
        let claim = Self { draft: draft_path(path), path: path.to_owned() };
        private_file(&claim.draft, text).map(|()| claim)
    }

    /// Gives it its name, which must not exist.
    pub(crate) fn make(&self) -> io::Result<()> {
        fs::hard_link(&self.draft, &self.path)?;
        sync_entries(&self.path)
    }

    /// Its path, once it is made.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.draft);
    }
}

/// Removes a file. `false`: it did not exist.
pub(crate) fn remove_private_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_entries(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Syncs the directory of a file: without it a power cut may lose the name, and a claim could be made twice.
#[cfg(unix)]
fn sync_entries(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::File::open(parent)?.sync_all()
}

#[cfg(not(unix))]
fn sync_entries(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Replaces a file atomically: readers find the old content or the new.
pub(crate) fn replace_private_file(path: &Path, text: &str) -> Result<(), IdentityError> {
    let draft = draft_path(path);
    let renamed = private_file(&draft, text).and_then(|()| fs::rename(&draft, path));
    let written = renamed.and_then(|()| sync_entries(path));
    written.map_err(|source| {
        let _ = fs::remove_file(&draft);
        failed(path, source)
    })
}

/// Creates a directory with these files, whole or not at all. `false`: another process was first; its directory stays.
pub(crate) fn make_directory(directory: &Path, files: &[(&str, &str)]) -> Result<bool, IdentityError> {
    let draft = draft_path(directory);
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let written = parent
        .map_or(Ok(()), private_directory)
        .and_then(|()| private_directory(&draft))
        .and_then(|()| files.iter().try_for_each(|(name, text)| private_file(&draft.join(name), text)))
        .and_then(|()| files.first().map_or(Ok(()), |(name, _)| sync_entries(&draft.join(name))));
    let renamed = written.and_then(|()| match fs::rename(&draft, directory) {
        // Another process was first.
        Err(_) if files.iter().all(|(name, _)| directory.join(name).exists()) => Ok(false),
        renamed => renamed.and_then(|()| sync_entries(directory)).map(|()| true),
    });
    if !matches!(renamed, Ok(true)) {
        // It may contain a key.
        let _ = fs::remove_dir_all(&draft);
    }
    renamed.map_err(|source| failed(directory, source))
}

/// A unique hidden name in the same directory.
fn draft_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}-{}-{:x}", std::process::id(), fastrand::u64(..)))
}
