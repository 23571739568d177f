//! The memory limit of children whose stage sets none: a share of this machine's memory, of what is in use.
//!
//! It is measured, not set: a control group moves the node, and a limit of the address space refuses what CUDA or a
//! pool of threads only reserves. Neither may happen to a stage that sets no limit
//! ([ADR 043](../../../../docs/adr/043-a-default-memory-limit-is-measured.md)).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::usage::{UsageMeter, kibibytes};

/// The children of one stage get three of four parts of the memory. The last part is for the node, for its other
/// stages, and for the growth of a child between two measurements.
const PARTS: u64 = 4;
const OF_STAGE: u64 = 3;

/// An interpreter with its packages starts with less, also on a small machine.
const LEAST: u64 = 256 << 20;

/// Shares are whole numbers of this, so that people can read them.
const UNIT: u64 = 1 << 20;

/// How often a process without work is measured: a hundred of them cost a node that does nothing next to nothing.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of memory of each child of a stage with this number of replicas and no limit of its own: three
/// quarters of this machine's memory, or of the control group's that this process is in, divided by the replicas, and
/// at least 256 MiB. `None` if the system does not tell.
#[must_use]
pub fn default_memory_limit(replicas: usize) -> Option<u64> {
    let physical = fs::read_to_string("/proc/meminfo").ok().and_then(|info| kibibytes(&info, "MemTotal:"))?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(share(physical.min(least_of_groups(Path::new("/sys/fs/cgroup"), &groups)), replicas))
}

fn share(memory: u64, children: usize) -> u64 {
    let share = memory / PARTS * OF_STAGE / (children as u64).max(1);
    (share / UNIT * UNIT).max(LEAST)
}

/// The smallest limit of the control groups that a process is in, of both versions. In a container only a part of
/// their path exists.
fn least_of_groups(mount: &Path, groups: &str) -> u64 {
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (mount.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
        let read = |group: &Path| fs::read_to_string(mount.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
        ancestors.filter_map(read).min()
    });
    limits.min().unwrap_or(u64::MAX)
}

/// A process whose memory is looked at from time to time.
#[derive(Debug)]
pub(crate) struct WatchedMemory {
    meter: Arc<UsageMeter>,
    limit: u64,
    measured_at: Mutex<Instant>,
}

impl WatchedMemory {
    pub(crate) fn new(meter: Arc<UsageMeter>, limit: u64) -> Self {
        Self { meter, limit, measured_at: Mutex::new(Instant::now()) }
    }

    /// The reason to end the process, if it holds too much. An idle process is measured less often.
    pub(crate) fn excess(&self, now: Instant, is_idle: bool) -> Option<String> {
        let mut measured_at = self.measured_at.lock();
        if is_idle && now.duration_since(*measured_at) < IDLE_INTERVAL {
            return None;
        }
        *measured_at = now;
        excess(self.meter.memory_bytes()?, self.limit)
    }
}

fn excess(bytes: u64, limit: u64) -> Option<String> {
    (bytes > limit).then(|| {
        format!(
            "it holds {bytes} bytes of memory, more than its memory limit of {limit} bytes (memory_limit, by default a \
             share of this machine's memory)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_of_a_stage_share_three_quarters_of_the_memory() {
        assert_eq!(share(16 << 30, 1), 12 << 30);
        assert_eq!(share(16 << 30, 8), 1536 << 20);
        assert_eq!(share(16 << 30, 0), 12 << 30);
        assert_eq!(share((16 << 30) + 12_345, 1), 12 << 30);
        assert_eq!((share(512 << 20, 4), share(1 << 30, 1)), (256 << 20, 768 << 20));
    }

    #[test]
    fn the_smallest_limit_of_all_groups_counts() {
        let mount = std::env::temp_dir().join(format!("callboard-groups-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            fs::create_dir_all(mount.join(file).parent().unwrap()).unwrap();
            fs::write(mount.join(file), text).unwrap();
        };
        write("app/node/memory.max", "max\n");
        write("app/memory.max", "3000\n");
        write("app/other/memory.max", "9000\n");
        write("memory/memory.limit_in_bytes", "5000\n");
        write("cpu/memory.limit_in_bytes", "1\n");
        let least = |groups: &str| least_of_groups(&mount, groups);
        assert_eq!(least("0::/app/node\n"), 3000);
        assert_eq!(least("0::/app/other\n"), 3000, "that of the group above");
        assert_eq!(least("0::/not/there\n"), u64::MAX);
        assert_eq!(least("4:cpu:/\n3:hugetlb,memory:/of/the/host\n0::/\n"), 5000);
        assert_eq!(least("3:memory:/x\n0::/app\n"), 3000);
        write("memory/small/memory.limit_in_bytes", "10\n");
        assert_eq!(least("4:cpu,cpuacct:/small\n3:memory:/\n"), 5000, "the group of another controller");
        assert_eq!(least("no group"), u64::MAX);
        fs::remove_dir_all(&mount).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_holds_more_than_its_limit_is_told_so_and_an_idle_one_is_measured_less_often() {
        let meter = Arc::new(UsageMeter::new(rustix::process::getpid(), false, Arc::default()));
        let watched = |limit| WatchedMemory::new(Arc::clone(&meter), limit);
        let (small, start) = (watched(64 << 10), Instant::now());
        assert!(small.excess(start, false).unwrap().contains("more than its memory limit of 65536 bytes"));
        assert_eq!(watched(u64::MAX).excess(start, false), None);
        let excess = |millis| small.excess(start + Duration::from_millis(millis), true).is_some();
        assert!(!excess(999), "it was just looked at");
        assert!(excess(1000) && !excess(1999) && excess(2000));
    }

    #[test]
    fn a_process_may_hold_its_limit() {
        assert_eq!(excess(100, 100), None);
        assert!(excess(101, 100).unwrap().starts_with("it holds 101 bytes of memory, more than"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_default_limit_is_a_part_of_this_machine_and_less_for_more_replicas() {
        let (one, many) = (default_memory_limit(1).unwrap(), default_memory_limit(1_000_000).unwrap());
        assert!(one >= many && many == LEAST, "{one} {many}");
    }
}
