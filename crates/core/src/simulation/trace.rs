//! The events in order, and a hash over all of them.

use std::fmt;
use std::time::Duration;

/// A trace in words, and its FNV-1a hash.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: Vec<(u64, String)>,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: Vec::new() }
    }

    pub(super) fn note(&mut self, nanos: u64, what: String) {
        for byte in nanos.to_le_bytes().into_iter().chain(what.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.lines.push((nanos, what));
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nanos, what) in &self.lines {
            writeln!(f, "{:>14.6?}  {what}", Duration::from_nanos(*nanos))?;
        }
        write!(f, "trace {:016x}", self.hash)
    }
}
