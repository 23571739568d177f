//! How much load a round puts on its target, and what the lanes of the round share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::schedule::Schedule;
use crate::target::Target;

/// The amount and the duration of a load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections open at a time.
    pub connections: usize,
    /// Requests at a time on each connection; more than one with HTTP/2 and QUIC only.
    pub streams: usize,
    /// Threads over which the connections are spread.
    pub threads: usize,
    /// The rate of an open loop; `None` for a closed loop.
    pub schedule: Option<Schedule>,
    /// Load before the counted time.
    pub warm_up: Duration,
    /// The counted time.
    pub duration: Duration,
    /// The round ends earlier after this many counted requests.
    pub requests: u64,
    /// The limit of one request, from its sending to the end of its answer.
    pub timeout: Duration,
}

/// Counters of the running round, for a progress bar.
#[derive(Debug, Default)]
pub struct Progress {
    /// Successes.
    pub ok: AtomicU64,
    /// All other outcomes.
    pub failed: AtomicU64,
}

/// The state that all lanes of a round share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) load: Load,
    pub(crate) target: Target,
    pub(crate) progress: Arc<Progress>,
    /// The time of the first request; the counted time begins after the warm-up.
    pub(crate) start: Instant,
    /// One permit for each slot that is due; closed when the round needs no more requests. Unused in a closed loop.
    pub(crate) tickets: Semaphore,
    /// The next slot of the schedule. Unused in a closed loop.
    pub(crate) next: AtomicU64,
    /// Counted requests started so far.
    pub(crate) counted: AtomicU64,
}

impl Shared {
    /// The start of the counted time, by due times of requests.
    pub(crate) fn begin(&self) -> Instant {
        self.start + self.load.warm_up
    }

    /// The end of the due times.
    pub(crate) fn end(&self) -> Instant {
        self.begin() + self.load.duration
    }
}

/// A lane still sends a slot this long after the end: the slot was due in time, and waking takes a moment.
pub(crate) const LAST_SLOTS: Duration = Duration::from_millis(100);
