//! The demand for a stage, for its supervisor: when it was last used, and whether a call waits for its first replica.

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

/// The demand for one stage.
#[derive(Debug)]
pub(crate) struct Demand {
    since: Instant,
    /// The microseconds from `since` to the start of the last batch, plus one; 0 before the first. Written once per
    /// batch by the batcher, without a lock.
    last_batch: AtomicU64,
    /// The batcher has asked for a replica: at most one such message is on its way.
    is_asked: AtomicBool,
    last_change: Mutex<Option<ScaleChange>>,
}

impl Demand {
    pub(super) fn new() -> Self {
        Self {
            since: clock::now(),
            last_batch: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            last_change: Mutex::default(),
        }
    }

    /// A batch begins.
    pub(crate) fn note_batch(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.since).as_micros();
        self.last_batch.store(u64::try_from(micros).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    /// When the last batch began.
    pub(crate) fn last_batch(&self) -> Option<Instant> {
        let micros = self.last_batch.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.since + Duration::from_micros(micros))
    }

    /// Whether to send the supervisor a message: a call waits, and no such message is on its way.
    pub(crate) fn ask(&self) -> bool {
        !self.is_asked.swap(true, Ordering::AcqRel)
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
