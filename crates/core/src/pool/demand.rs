//! The demand for a stage, for its supervisor: when it was last used, and whether a call waits for its first replica.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{self, Instant};

/// Why a stage without a replica has none: its last start failed.
#[derive(Clone, Debug)]
pub(crate) struct FailedStart {
    pub(crate) reason: String,
    /// Until then a call is answered with the reason, and no other start is tried.
    pub(crate) until: Instant,
}

/// A change of the number of replicas.
#[derive(Clone, Debug)]
pub(crate) struct ScaleChange {
    pub(crate) at: Instant,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) reason: String,
}

/// Asks the supervisor to look.
pub(crate) type WakePort = Box<dyn Fn() + Send + Sync>;

/// The demand for one stage.
pub(crate) struct Demand {
    /// Set by the supervisor when it starts.
    wake: OnceLock<WakePort>,
    since: Instant,
    /// The microseconds from `since` to the start of the last batch, plus one; 0 before the first. Written once per
    /// batch by the batcher, without a lock.
    last_batch: AtomicU64,
    /// The supervisor was asked: at most one such message is on its way.
    is_asked: AtomicBool,
    last_change: Mutex<Option<ScaleChange>>,
}

impl Demand {
    pub(super) fn new() -> Self {
        Self {
            wake: OnceLock::new(),
            since: clock::now(),
            last_batch: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            last_change: Mutex::default(),
        }
    }

    /// A batch begins.
    pub(crate) fn note_batch(&self, now: Instant) {
        let since = now.saturating_duration_since(self.since);
        let micros = since.as_secs() * 1_000_000 + u64::from(since.subsec_micros());
        self.last_batch.store(micros + 1, Ordering::Relaxed);
    }

    /// When the last batch began.
    pub(crate) fn last_batch(&self) -> Option<Instant> {
        let micros = self.last_batch.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.since + Duration::from_micros(micros))
    }

    pub(crate) fn set_wake(&self, wake: WakePort) {
        let _ = self.wake.set(wake);
    }

    /// Asks the supervisor to look, unless such a message is on its way: a call waits for a replica, or what kept a
    /// replica from its start is over.
    pub(crate) fn wake(&self) {
        if let Some(wake) = self.wake.get()
            && !self.is_asked.swap(true, Ordering::AcqRel)
        {
            wake();
        }
    }

    /// The supervisor is about to look.
    pub(crate) fn heard(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    pub(crate) fn note_change(&self, change: ScaleChange) {
        *self.last_change.lock() = Some(change);
    }

    /// The last change of the number of replicas.
    pub(crate) fn last_change(&self) -> Option<ScaleChange> {
        self.last_change.lock().clone()
    }
}

impl fmt::Debug for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demand").field("last_batch", &self.last_batch()).finish_non_exhaustive()
    }
}
