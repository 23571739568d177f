//! Which owners and modes of the files of an identity are accepted.
//!
//! A key file belongs to this user, and nobody else has access. Or it belongs to root, and this process reads it as a
//! member of its group: Kubernetes mounts a secret so for a pod with an `fsGroup`, whatever the user of the process. A
//! file that is not secret belongs to either, and others may read it. The directory belongs to either, and nobody else
//! may write there; others may list it. A directory of root may be writable if it is sticky, as the mount point of such a
//! secret is: each file in it is checked for its owner.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{IdentityError, failed};

/// Opens a file with a key, in its checked directory.
///
/// # Errors
///
/// A file that another user can use, or that this user cannot read.
pub(crate) fn open_private(path: &Path) -> Result<fs::File, IdentityError> {
    open(path, file_fault)
}

/// Opens a file that is not secret, in its checked directory.
///
/// # Errors
///
/// A file that another user owns or can change, or that this user cannot read.
pub(crate) fn open_public(path: &Path) -> Result<fs::File, IdentityError> {
    open(path, public_file_fault)
}

fn open(path: &Path, fault: Fault) -> Result<fs::File, IdentityError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    check_directory(parent)?;
    let target = target(parent, path)?;
    // Before it is opened: a pipe of another user would keep this process waiting.
    check(path, &fs::metadata(&target).map_err(|source| failed(path, source))?, owner_fault)?;
    let file = fs::File::open(&target).map_err(|source| unreadable(path, &target, source))?;
    // Of the open file: the path may name another one by now.
    let metadata = file.metadata().map_err(|source| failed(path, source))?;
    check(path, &metadata, fault)?;
    Ok(file)
}

/// Refuses a directory that another user owns or can write to.
pub(crate) fn check_directory(path: &Path) -> Result<(), IdentityError> {
    // Metadata of the link itself: a path that ends with a slash or a dot would mean its target.
    let itself: PathBuf = path.components().collect();
    let metadata = fs::symlink_metadata(itself).map_err(|source| failed(path, source))?;
    if metadata.is_symlink() {
        return Err(exposed(path, "it is a symbolic link"));
    }
    check(path, &metadata, directory_fault)
}

/// The owner, the group and the mode of a file.
#[derive(Clone, Copy, Debug)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

/// The user and the groups of this process.
#[derive(Clone, Debug)]
struct Process {
    user: u32,
    groups: Vec<u32>,
}

impl Process {
    fn this() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let mut groups = vec![rustix::process::getegid().as_raw()];
        groups.extend(rustix::process::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()));
        Self { user, groups }
    }
}

const ROOT: u32 = 0;

/// Why a file or a directory is refused, if it is.
type Fault = fn(Access, &Process) -> Option<String>;

fn check(path: &Path, metadata: &Metadata, fault: Fault) -> Result<(), IdentityError> {
    let access = Access { owner: metadata.uid(), group: metadata.gid(), mode: metadata.mode() };
    fault(access, &Process::this()).map_or(Ok(()), |reason| Err(exposed(path, reason)))
}

fn exposed(path: &Path, reason: impl Into<String>) -> IdentityError {
    IdentityError::Exposed { path: path.to_owned(), reason: reason.into() }
}

/// Why a file with a key is refused.
fn file_fault(access: Access, process: &Process) -> Option<String> {
    let Access { owner, group, mode } = access;
    let shown = mode & 0o7777;
    if let Some(fault) = owner_fault(access, process) {
        Some(fault)
    } else if mode & 0o007 != 0 {
        Some(format!("its mode {shown:04o} gives all users access (a secret of Kubernetes: `defaultMode: 0400`)"))
    } else if mode & 0o030 != 0 || (owner != ROOT && mode & 0o040 != 0) {
        Some(format!(
            "its mode {shown:04o} gives group {group} access (a volume of Kubernetes: `fsGroupChangePolicy: \
             OnRootMismatch`)"
        ))
    } else if mode & 0o040 != 0 && !process.groups.contains(&group) {
        Some(format!("its mode {shown:04o} lets group {group} read it, and this process is not in that group"))
    } else {
        None
    }
}

/// Why a file without a secret is refused.
fn public_file_fault(access: Access, process: &Process) -> Option<String> {
    let others_write = || format!("its mode {:04o} lets others write to it", access.mode & 0o7777);
    owner_fault(access, process).or_else(|| (access.mode & 0o022 != 0).then(others_write))
}

fn owner_fault(Access { owner, .. }: Access, process: &Process) -> Option<String> {
    (owner != process.user && owner != ROOT).then(|| format!("it belongs to another user, {owner}"))
}

/// Why the directory of such files is refused.
fn directory_fault(access: Access, process: &Process) -> Option<String> {
    let Access { owner, mode, .. } = access;
    let is_sticky = owner == ROOT && mode & 0o1000 != 0;
    if let Some(fault) = owner_fault(access, process) {
        Some(fault)
    } else if mode & 0o022 != 0 && !is_sticky {
        Some(format!(
            "its mode {:04o} lets others write to it (a volume of Kubernetes: a directory inside the volume, and \
             `fsGroupChangePolicy: OnRootMismatch`)",
            mode & 0o7777
        ))
    } else {
        None
    }
}

/// The path of the file itself: of a link, its target within the directory, as in the volumes of Kubernetes
/// (`identity.pem` → `..data/identity.pem`, `..data` → a directory that is replaced as a whole).
fn target(directory: &Path, path: &Path) -> Result<PathBuf, IdentityError> {
    let metadata = fs::symlink_metadata(path).map_err(|source| failed(path, source))?;
    if !metadata.is_symlink() {
        return Ok(path.to_owned());
    }
    if ![ROOT, rustix::process::geteuid().as_raw()].contains(&metadata.uid()) {
        return Err(exposed(path, "it is a symbolic link of another user"));
    }
    let real = |path: &Path| fs::canonicalize(path).map_err(|source| failed(path, source));
    let (directory, target) = (real(directory)?, real(path)?);
    if !target.starts_with(&directory) {
        return Err(exposed(path, "it is a symbolic link that leaves its directory"));
    }
    let mut between = target.ancestors().skip(1).take_while(|between| *between != directory);
    between.try_for_each(check_directory)?;
    Ok(target)
}

/// A file that could not be opened.
fn unreadable(path: &Path, target: &Path, source: io::Error) -> IdentityError {
    match fs::metadata(target) {
        Ok(metadata) if source.kind() == io::ErrorKind::PermissionDenied => IdentityError::Unreadable {
            path: path.to_owned(),
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: format!("{:04o}", metadata.mode() & 0o7777),
            user: rustix::process::geteuid().as_raw(),
        },
        _ => failed(path, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 65_532;
    const GROUP: u32 = 4_711;

    fn faults(fault: Fault, owner: u32, group: u32) -> Vec<u32> {
        accepted_by(US, fault, owner, group)
    }

    fn accepted_by(user: u32, fault: Fault, owner: u32, group: u32) -> Vec<u32> {
        let process = Process { user, groups: vec![user, GROUP] };
        (0..=0o7777).filter(|&mode| fault(Access { owner, group, mode }, &process).is_none()).collect()
    }

    /// All 4,096 modes for each owner and group.
    #[test]
    fn a_key_is_read_by_this_user_or_from_root_by_its_group_and_never_written_by_others() {
        let accepted = |owner, group| faults(file_fault, owner, group).into_iter().map(|mode| mode & 0o077);
        assert!(accepted(US, US).all(|mode| mode == 0), "no group has access to an own file");
        assert_eq!(faults(file_fault, US, US).len(), 8 * 8, "all permissions of the owner, all special bits");
        assert!(accepted(ROOT, GROUP).all(|mode| mode & !0o040 == 0));
        assert_eq!(faults(file_fault, ROOT, GROUP).len(), 8 * 8 * 2);
        assert!(accepted(ROOT, 70).all(|mode| mode == 0), "a group without this process");
        assert_eq!(accepted(70, GROUP).count(), 0, "another user's");
    }

    /// A secret of Kubernetes is root's and its group's, whatever user the process has.
    #[test]
    fn a_process_of_root_accepts_the_same_files_of_root() {
        for group in [GROUP, 70] {
            assert_eq!(accepted_by(ROOT, file_fault, ROOT, group), faults(file_fault, ROOT, group));
        }
        assert!(accepted_by(ROOT, file_fault, ROOT, GROUP).contains(&0o440));
        assert!(accepted_by(ROOT, file_fault, US, GROUP).is_empty());
    }

    #[test]
    fn a_file_that_is_not_secret_is_read_by_all_and_changed_by_this_user_and_root_only() {
        for owner in [US, ROOT] {
            let accepted = faults(public_file_fault, owner, GROUP);
            assert_eq!(accepted.len(), 0o10_000 / 4, "all modes without the two rights to write");
            assert!(accepted.iter().all(|mode| mode & 0o022 == 0));
        }
        assert!(faults(public_file_fault, 70, GROUP).is_empty());
    }

    #[test]
    fn a_directory_is_changed_by_this_user_and_root_only() {
        let accepted = |owner| faults(directory_fault, owner, GROUP);
        assert!(accepted(US).iter().all(|mode| mode & 0o022 == 0));
        assert!(accepted(ROOT).iter().all(|mode| mode & 0o022 == 0 || mode & 0o1000 != 0));
        // The mount point of a secret, and the directory in it with an `fsGroup`.
        assert!(accepted(ROOT).contains(&0o3777) && accepted(ROOT).contains(&0o2755));
        assert!(!accepted(US).contains(&0o1777), "this user's own sticky directory is open to others");
        assert!(accepted(70).is_empty());
    }

    #[test]
    fn a_refusal_names_the_mode_and_the_setting_of_kubernetes() {
        let process = Process { user: US, groups: vec![GROUP] };
        let said = |owner, mode| file_fault(Access { owner, group: GROUP, mode }, &process).unwrap();
        assert!(said(ROOT, 0o100_644).contains("0644") && said(ROOT, 0o100_644).contains("defaultMode: 0400"));
        assert!(said(US, 0o100_660).contains("0660") && said(US, 0o100_660).contains("OnRootMismatch"));
    }
}
