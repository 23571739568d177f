//! Control groups in a directory that behaves as the kernel's.

use std::fs;

use super::*;

/// A directory in the place of the kernel: a group has its files from its start, and cannot be removed while it has a
/// process.
#[derive(Clone, Debug, Default)]
struct Directory {
    log: Arc<Mutex<Vec<String>>>,
    /// Processes do not end at once: groups are removed only when they are asked for the second time.
    is_slow: bool,
    /// Another process is in the node's own group.
    is_shared: bool,
    /// The kernel has no such file.
    refused: Option<&'static str>,
    tried: Arc<Mutex<Vec<PathBuf>>>,
}

impl Directory {
    fn note(&self, what: &str, path: &Path, text: &str) {
        let parts: Vec<_> = path.iter().rev().take(2).filter_map(|part| part.to_str()).collect();
        let name = if what == "write" { format!("{}/{}", parts[1], parts[0]) } else { parts[0].to_owned() };
        self.log.lock().push(format!("{what} {name} {text}").trim_end().to_owned());
    }
}

impl Files for Directory {
    fn make(&self, group: &Path) -> io::Result<()> {
        self.note("make", group, "");
        fs::create_dir(group)?;
        for file in
            ["memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "cgroup.procs", "cgroup.kill"]
        {
            fs::write(group.join(file), "")?;
        }
        Ok(())
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        self.note("write", file, text);
        if self.is_shared && file.ends_with("cgroup.subtree_control") {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if self.refused.is_some_and(|name| file.ends_with(name)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        System.write(file, text)
    }

    fn remove(&self, group: &Path) -> io::Result<()> {
        let mut tried = self.tried.lock();
        if self.is_slow && !tried.iter().any(|other| other == group) {
            tried.push(group.to_owned());
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.note("remove", group, "");
        fs::remove_dir_all(group)
    }
}

/// The group of a node, which is removed at the end of the test.
struct Own(PathBuf);

impl Own {
    fn new(controllers: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("callboard-memory-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        for (file, text) in [("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("cgroup.procs", "")]
        {
            fs::write(path.join(file), text).unwrap();
        }
        Self(path)
    }

    /// Of a node with number 7; only 8 runs beside it.
    fn groups(&self, directory: &Directory) -> io::Result<Arc<Groups>> {
        Groups::try_new(Box::new(directory.clone()), self.0.clone(), 7, |pid| pid == 8).map(Arc::new)
    }

    fn below(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A kernel that says this of all groups.
#[derive(Debug)]
struct Events(&'static str);

impl Files for Events {
    fn make(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, _: &Path) -> io::Result<String> {
        Ok(self.0.to_owned())
    }

    fn write(&self, _: &Path, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl MemoryGroup {
    /// A group whose `memory.events` are these.
    pub(crate) fn with_events(events: &'static str) -> Self {
        let (files, directory, path) = (Box::new(Events(events)), PathBuf::new(), PathBuf::new());
        let groups = Groups { files, directory, pid: 7, next: AtomicU64::new(0), leftover: Mutex::default() };
        Self { groups: Arc::new(groups), path }
    }
}

#[test]
fn a_child_is_limited_before_it_enters_its_group_and_the_group_ends_with_it() {
    let (own, directory) = (Own::new("cpu memory pids\n"), Directory::default());
    let name = own.0.file_name().unwrap().to_str().unwrap().to_owned();
    let groups = own.groups(&directory).unwrap();
    let expected = [
        "make callboard-7-node".to_owned(),
        "write callboard-7-node/cgroup.procs 7".to_owned(),
        format!("write {name}/cgroup.subtree_control +memory"),
    ];
    assert_eq!(std::mem::take(&mut *directory.log.lock()), expected);

    let group = groups.limit(40, 1 << 20).unwrap();
    assert!(!group.was_exceeded());
    fs::write(group.path.join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 0\n").unwrap();
    assert!(!group.was_exceeded(), "memory was reclaimed, and nothing killed");
    fs::write(group.path.join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 1\n").unwrap();
    assert!(group.was_exceeded());
    drop(group);
    let expected = [
        "make callboard-7-0",
        "write callboard-7-0/memory.max 1048576",
        "write callboard-7-0/memory.swap.max 0",
        "write callboard-7-0/memory.oom.group 1",
        "write callboard-7-0/cgroup.procs 40",
        "write callboard-7-0/cgroup.kill 1",
        "remove callboard-7-0",
    ];
    assert_eq!(*directory.log.lock(), expected);
}

#[test]
fn a_thousand_children_leave_no_group_although_their_processes_end_late() {
    let (own, directory) = (Own::new("memory"), Directory { is_slow: true, ..Directory::default() });
    let groups = own.groups(&directory).unwrap();
    for _ in 0..1000 {
        drop(groups.limit(40, 1 << 20).unwrap());
        assert!(own.below().len() <= 2, "{:?}", own.below());
    }
    groups.remove(own.0.join("callboard-7-999"));
    assert_eq!(own.below(), ["callboard-7-node"]);
}

#[test]
fn groups_of_a_node_that_was_killed_are_removed_by_the_next() {
    let (own, directory) = (Own::new("memory"), Directory::default());
    for name in ["callboard-6-node", "callboard-6-3", "callboard-7-1", "callboard-8-0", "other", "callboard-x-1"] {
        directory.make(&own.0.join(name)).unwrap();
    }
    let _groups = own.groups(&directory).unwrap();
    assert_eq!(own.below(), ["callboard-7-node", "callboard-8-0", "callboard-x-1", "other"]);
    let log = directory.log.lock();
    assert!(!log.iter().any(|line| line.contains("cgroup.kill")), "it may be alive in another container: {log:?}");
}

#[test]
fn a_node_without_the_controller_or_with_others_in_its_group_makes_no_group() {
    let own = Own::new("cpu pids");
    let error = own.groups(&Directory::default()).err().unwrap().to_string();
    assert!(error.ends_with("has no controller `memory`"), "{error}");
    assert!(own.below().is_empty());
    let own = Own::new("memory");
    let directory = Directory { is_shared: true, ..Directory::default() };
    assert_eq!(own.groups(&directory).err().unwrap().kind(), io::ErrorKind::ResourceBusy);
    assert!(own.below().is_empty(), "it is back in its own group: {:?}", directory.log.lock());
    let no_version_2 = Groups::try_new(Box::new(System), PathBuf::from("/no/such/directory"), 7, |_| false);
    assert!(no_version_2.is_err());
}

#[test]
fn a_child_whose_limit_cannot_be_set_does_not_enter_a_group_and_leaves_none() {
    let own = Own::new("memory");
    let directory = Directory { refused: Some("memory.max"), ..Directory::default() };
    let groups = own.groups(&directory).unwrap();
    assert!(groups.limit(40, 1 << 20).is_err());
    assert_eq!(own.below(), ["callboard-7-node"]);
    assert!(!directory.log.lock().iter().any(|line| line.ends_with("cgroup.procs 40")));
    let (own, directory) = (Own::new("memory"), Directory { refused: Some("memory.swap.max"), ..Directory::default() });
    assert!(own.groups(&directory).unwrap().limit(40, 1 << 20).is_ok(), "a system may have no swap");
}

/// The kernel is in the place of the directory of a test.
#[test]
fn files_of_groups_are_written_and_never_made() {
    let own = Own::new("");
    let (group, file) = (own.0.join("group"), own.0.join("group/memory.max"));
    System.make(&group).unwrap();
    assert_eq!(System.make(&group).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(System.write(&file, "7").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(!file.exists());
    fs::write(&file, "").unwrap();
    System.write(&file, "7").unwrap();
    assert_eq!(System.read(&file).unwrap(), "7");
    assert!(System.remove(&group).is_err(), "it is not empty");
    fs::remove_file(&file).unwrap();
    System.remove(&group).unwrap();
    assert!(!group.exists());
}

#[test]
fn the_group_of_a_process_is_that_of_version_2_below_its_own_root() {
    let group = |groups: &str| group_in(groups).ok();
    assert_eq!(group("4:memory:/x\n0::/a/b\n"), Some(PathBuf::from("/sys/fs/cgroup/a/b")));
    assert_eq!(group("0::/"), Some(PathBuf::from("/sys/fs/cgroup/")));
    for other in ["", "4:memory:/x\n", "0::/../../other\n"] {
        assert_eq!(group(other), None, "{other}");
    }
}

#[test]
fn a_process_is_alive_until_it_has_ended_and_was_waited_for() {
    assert!(is_alive(std::process::id()));
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert!(!is_alive(pid) && !is_alive(0) && !is_alive(u32::MAX));
}

#[test]
fn only_a_limit_in_bytes_is_set_and_measured_ones_are_not() {
    let bytes = [MemoryLimit::Bytes(7), MemoryLimit::Share, MemoryLimit::Unlimited].map(MemoryLimit::bytes);
    assert_eq!(bytes, [Some(7), None, None]);
    for unset in [MemoryLimit::Share, MemoryLimit::Unlimited] {
        assert!(limit(rustix::process::getpid(), unset).unwrap().is_none());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_address_space_of_another_process_is_limited_for_good() {
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    limit_address_space(Pid::from_child(&child), 1 << 30).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["1073741824", "1073741824", "bytes"]);
}
