//! The memory limit of a child: a control group of its own where this process may make one (cgroup v2), else a limit of
//! its address space.
//!
//! ```text
//!  the group of the node        its own, and delegated to it
//!    ├── callboard-PID-node     the node: a group with groups below it has no process itself
//!    └── callboard-PID-0        a child and its processes: memory.max, no swap, ended together
//! ```
//!
//! The next node that starts in the same place removes the groups of a node that was killed.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::process::{Pid, test_kill_process};

mod share;

pub(crate) use share::WatchedMemory;
pub use share::default_memory_limit;

/// The most bytes of memory of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// A [share](default_memory_limit) of this machine's memory, of which a spare has a replica's. The memory in use is
    /// measured ten times a second, of each child alone and without what a forked one has from its fork server; a child
    /// that holds more is killed.
    #[default]
    Share,
    /// This many, for all processes of the child, where this process may make control groups (cgroup v2); elsewhere
    /// for the address space of each. With control groups, a stage with such a limit moves this process one group down
    /// when it is declared.
    Bytes(u64),
    /// No limit.
    Unlimited,
}

impl MemoryLimit {
    /// The bytes that are set.
    pub(crate) fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Share | Self::Unlimited => None,
        }
    }
}

/// The operations on files of control groups.
trait Files: Send + Sync + Debug {
    fn make(&self, group: &Path) -> io::Result<()> {
        std::fs::create_dir(group)
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        std::fs::read_to_string(file)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        // The kernel made the files. A missing file must not be created.
        io::Write::write_all(&mut std::fs::File::options().write(true).open(file)?, text.as_bytes())
    }

    /// Fails while the group has a process. Its files go with it.
    fn remove(&self, group: &Path) -> io::Result<()> {
        std::fs::remove_dir(group)
    }
}

#[derive(Debug)]
struct System;

impl Files for System {}

/// The groups that this process makes.
#[derive(Debug)]
pub(crate) struct Groups {
    files: Box<dyn Files>,
    directory: PathBuf,
    pid: u32,
    next: AtomicU64,
    /// Groups that had a process when they were to be removed. Tried again with the next.
    leftover: Mutex<Vec<PathBuf>>,
}

/// The group of a child. Its processes are killed, and it is removed, when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    groups: Arc<Groups>,
    path: PathBuf,
}

/// Sets the memory limit of a process, if it has one to be set. `None`: it has no group.
pub(crate) fn limit(pid: Pid, limit: MemoryLimit) -> io::Result<Option<MemoryGroup>> {
    let MemoryLimit::Bytes(bytes) = limit else { return Ok(None) };
    match of_node() {
        Some(groups) => groups.limit(pid.as_raw_pid().unsigned_abs(), bytes).map(Some),
        None => limit_address_space(pid, bytes).map(|()| None),
    }
}

/// The groups of this process. Asked for before it starts others, which would be in its own.
pub(crate) fn of_node() -> Option<&'static Arc<Groups>> {
    static GROUPS: OnceLock<Option<Arc<Groups>>> = OnceLock::new();
    let try_new = || {
        let own = group_in(&std::fs::read_to_string("/proc/self/cgroup")?)?;
        Groups::try_new(Box::new(System), own, std::process::id(), is_alive)
    };
    let log = |error| tracing::info!("memory limits are limits of the address space: no control groups: {error}");
    GROUPS.get_or_init(|| try_new().map(Arc::new).map_err(log).ok()).as_ref()
}

/// The directory of the group of version 2 among these of a process.
fn group_in(groups: &str) -> io::Result<PathBuf> {
    let mut own = groups.lines().filter_map(|line| line.strip_prefix("0::/")).filter(|own| !own.contains(".."));
    let own = own.next().ok_or_else(|| io::Error::other("this process has none of version 2"))?;
    Ok(Path::new("/sys/fs/cgroup").join(own))
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

impl Groups {
    fn try_new(
        files: Box<dyn Files>,
        directory: PathBuf,
        pid: u32,
        is_alive: impl Fn(u32) -> bool,
    ) -> io::Result<Self> {
        let has_memory = |file: &str| {
            let file = directory.join(file);
            let words =
                files.read(&file).map_err(|error| io::Error::other(format!("`{}`: {error}", file.display())))?;
            io::Result::Ok(words.split_whitespace().any(|word| word == "memory"))
        };
        if !has_memory("cgroup.controllers")? {
            return Err(io::Error::other(format!("`{}` has no controller `memory`", directory.display())));
        }
        let is_prepared = has_memory("cgroup.subtree_control")?;
        let groups = Self { files, directory, pid, next: AtomicU64::new(0), leftover: Mutex::default() };
        groups.remove_stale(is_alive);
        if !is_prepared {
            groups.leave_own_group()?;
        }
        Ok(groups)
    }

    /// Removes the groups of nodes that were killed, whose number a new process may have. Groups with processes stay: a
    /// node that is alive in another container looks dead from here.
    fn remove_stale(&self, is_alive: impl Fn(u32) -> bool) {
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix("callboard-")?.split_once('-')?.0.parse().ok());
            if pid.is_some_and(|pid| pid == self.pid || !is_alive(pid)) {
                let _ = self.files.remove(&entry.path());
            }
        }
    }

    /// Moves this process one group down, and lets the groups below limit their memory.
    fn leave_own_group(&self) -> io::Result<()> {
        let (own, pid) = (self.directory.join(format!("callboard-{}-node", self.pid)), self.pid.to_string());
        self.files.make(&own)?;
        let moved = self.files.write(&own.join("cgroup.procs"), &pid);
        // It fails if there are other processes.
        let enabled = moved.and_then(|()| self.files.write(&self.directory.join("cgroup.subtree_control"), "+memory"));
        if enabled.is_err() {
            let _ = self.files.write(&self.directory.join("cgroup.procs"), &pid);
            let _ = self.files.remove(&own);
        }
        enabled
    }

    fn limit(self: &Arc<Self>, pid: u32, bytes: u64) -> io::Result<MemoryGroup> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("callboard-{}-{number}", self.pid));
        self.files.make(&path)?;
        let group = MemoryGroup { groups: Arc::clone(self), path };
        group.write("memory.max", &bytes.to_string())?;
        // A system may have no swap, and older ones end single processes.
        let _ = group.write("memory.swap.max", "0");
        let _ = group.write("memory.oom.group", "1");
        group.write("cgroup.procs", &pid.to_string())?;
        Ok(group)
    }

    fn remove(&self, group: PathBuf) {
        let _ = self.files.write(&group.join("cgroup.kill"), "1");
        let mut leftover = self.leftover.lock();
        leftover.push(group);
        leftover.retain(|group| self.files.remove(group).is_err_and(|error| error.kind() != io::ErrorKind::NotFound));
    }
}

impl MemoryGroup {
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        self.groups.files.write(&self.path.join(file), text)
    }

    /// Whether the kernel has killed a process of the group at its limit.
    pub(crate) fn was_exceeded(&self) -> bool {
        let events = self.groups.files.read(&self.path.join("memory.events")).unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
        kills.is_some_and(|kills| kills > 0)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        self.groups.remove(std::mem::take(&mut self.path));
    }
}

#[cfg(target_os = "linux")]
fn limit_address_space(pid: Pid, bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, prlimit};
    prlimit(Some(pid), Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space(_: Pid, _: u64) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no memory limit for another process"))
}

#[cfg(test)]
mod tests;
