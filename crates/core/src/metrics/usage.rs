//! What the process of a replica uses of its machine, where its code runs in one of its own.
//!
//! It is measured when a description or the metrics of the node are asked for, never for a call.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;

/// What a process uses of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessUsage {
    /// Its number.
    pub pid: u32,
    /// The processor time of all its threads since its start.
    pub cpu: Duration,
    /// The bytes of memory that it holds.
    pub memory_bytes: u64,
}

type Measure = dyn Fn() -> Option<ProcessUsage> + Send + Sync;

/// How the process of one life of a replica is measured, if it has one.
#[derive(Clone, Default)]
pub(crate) struct UsagePort(Arc<OnceLock<Box<Measure>>>);

impl UsagePort {
    pub(crate) fn connect(&self, measure: impl Fn() -> Option<ProcessUsage> + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(measure));
    }

    pub(crate) fn measure(&self) -> Option<ProcessUsage> {
        self.0.get()?()
    }
}

impl fmt::Debug for UsagePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsagePort").finish_non_exhaustive()
    }
}
