//! The resources of a process, from Linux's `/proc`. Other systems check nothing.

use std::time::Duration;

/// Ticks of processor time per second, as `/proc` counts them on every architecture.
const TICKS_PER_SECOND: u64 = 100;

/// This process, or one that it started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Process {
    Own,
    Child(u32),
}

impl Process {
    fn read(self, file: &str) -> Option<String> {
        let path = match self {
            Self::Own => format!("/proc/self/{file}"),
            Self::Child(id) => format!("/proc/{id}/{file}"),
        };
        std::fs::read_to_string(path).ok()
    }

    fn status_kib(self, field: &str) -> Option<u64> {
        let status = self.read("status")?;
        status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse().ok())
    }

    /// Resident memory now.
    pub(crate) fn resident_kib(self) -> Option<u64> {
        self.status_kib("VmRSS:")
    }

    /// Peak resident memory.
    pub(crate) fn most_resident_kib(self) -> Option<u64> {
        self.status_kib("VmHWM:")
    }

    /// CPU time on all processors.
    pub(crate) fn computed(self) -> Option<Duration> {
        let stat = self.read("stat")?;
        // The program's name is in parentheses and may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS_PER_SECOND))
    }
}
