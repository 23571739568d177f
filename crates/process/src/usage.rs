//! What a child uses of its machine, as the system counts it: for its memory limit, and for operators who ask.
//!
//! Each process is counted alone, without the processes that it starts. Only Linux tells.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_core::ProcessUsage;
use rustix::process::Pid;

/// The unit of times in `/proc/PID/stat`. It is part of the kernel's interface, and the same on every machine that this
/// program is built for.
const TICKS_PER_SECOND: u64 = 100;

/// Measures one child.
#[derive(Debug)]
pub(crate) struct UsageMeter {
    pid: Pid,
    /// The bytes that it shared with its fork server at its start.
    inherited: u64,
    has_ended: Arc<AtomicBool>,
}

impl UsageMeter {
    /// For a child that has just started.
    pub(crate) fn new(pid: Pid, is_forked: bool, has_ended: Arc<AtomicBool>) -> Self {
        let inherited = if is_forked { memory_in_use(pid).unwrap_or_default() } else { 0 };
        Self { pid, inherited, has_ended }
    }

    /// The bytes of memory that it holds, without those that a forked child has from its fork server.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        Some(memory_in_use(self.pid)?.saturating_sub(self.inherited))
    }

    pub(crate) fn measure(&self) -> Option<ProcessUsage> {
        let (cpu, memory_bytes) = (processor_time(self.pid)?, self.memory_bytes()?);
        // Else another process may have its number by now.
        let is_its_own = !self.has_ended.load(Ordering::SeqCst);
        is_its_own.then(|| ProcessUsage { pid: self.pid.as_raw_pid().unsigned_abs(), cpu, memory_bytes })
    }
}

/// A line of a file below `/proc`, such as `MemTotal:  16384 kB`, in bytes.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The bytes of memory that a process holds: of its own, shared but of no file, and swapped. Pages of files are the
/// system's. `None` if it has ended, or the system does not tell.
fn memory_in_use(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    let own = kibibytes(&status, "RssAnon:")?;
    let others = ["RssShmem:", "VmSwap:"].map(|name| kibibytes(&status, name).unwrap_or_default());
    Some(others.into_iter().fold(own, u64::saturating_add))
}

/// The processor time of all threads of a process, also of those that have ended.
fn processor_time(pid: Pid) -> Option<Duration> {
    time_of_stat(&fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
}

fn time_of_stat(stat: &str) -> Option<Duration> {
    // The name of the program is in parentheses, and may have any character.
    let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11).map_while(|ticks| ticks.parse::<u64>().ok());
    let ticks = times.next()?.checked_add(times.next()?)?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_in_use_is_what_was_written_and_not_what_is_reserved() {
        let own = rustix::process::getpid();
        let before = memory_in_use(own).unwrap();
        // Other tests of this process take memory meanwhile.
        let mut reserved = memmap2::MmapMut::map_anon(2 << 30).unwrap();
        assert!(memory_in_use(own).unwrap() < before + (1 << 30));
        reserved[..256 << 20].fill(1);
        let after = memory_in_use(own).unwrap();
        assert!(after > before + (128 << 20) && after < before + (1 << 30), "{before} {after}");
        let meter = |is_forked| UsageMeter::new(own, is_forked, Arc::default());
        assert!(meter(false).memory_bytes().unwrap() > 128 << 20);
        assert!(meter(true).memory_bytes().unwrap() < 128 << 20);
    }

    #[test]
    fn the_time_of_a_process_is_that_in_the_kernel_and_outside_whatever_its_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 0 0 0 1250 34 99 99 20 0 1 0 5 0 0 0";
        assert_eq!(time_of_stat(stat), Some(Duration::from_millis(12_840)));
        for broken in ["", "7 (a", "7 (a) S 1", &stat.replace("34", "x"), &stat.replace("34", &u64::MAX.to_string())] {
            assert_eq!(time_of_stat(broken), None, "{broken}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_of_a_process_that_works_is_counted() {
        let (own, begin) = (rustix::process::getpid(), std::time::Instant::now());
        while processor_time(own) == Some(Duration::ZERO) && begin.elapsed() < Duration::from_secs(10) {}
        assert!(processor_time(own).unwrap() > Duration::ZERO);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_has_ended_is_not_measured_by_its_number() {
        let has_ended = Arc::<AtomicBool>::default();
        let meter = UsageMeter::new(rustix::process::getpid(), false, Arc::clone(&has_ended));
        assert_eq!(meter.measure().unwrap().pid, std::process::id());
        has_ended.store(true, Ordering::SeqCst);
        assert_eq!(meter.measure(), None);
    }
}
