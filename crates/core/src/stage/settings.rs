//! The knobs of one stage.

use std::num::NonZeroUsize;

use crate::batcher::BatchPolicy;
use crate::supervisor::{BackoffPolicy, Intensity};

/// Entries that may wait in one stage: a second's work for a fast stage, and at most 30 s of patience for a slow one.
pub const DEFAULT_QUEUE_ENTRIES: usize = 1024;

/// Payload bytes that may be in flight on one node by default.
pub const DEFAULT_QUEUE_BYTES: u64 = 256 * 1024 * 1024;

/// Where a stage's code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// Inline on the runtime's threads. A cross-thread wake-up costs more than the whole pipeline, so quick code stays
    /// here; code that holds a thread for over 10 ms is moved away, with a warning that names the stage.
    Task,
    /// On an OS thread per replica. The default of workers, whose calls take milliseconds and more.
    Thread,
}

/// How a stage batches, queues, runs and restarts.
#[derive(Clone, Debug)]
pub struct StageSettings {
    batching: BatchPolicy,
    replicas: NonZeroUsize,
    queue: NonZeroUsize,
    placement: Placement,
    intensity: Intensity,
    backoff: BackoffPolicy,
}

impl StageSettings {
    /// The defaults for this placement: one replica, no batching, a queue of [`DEFAULT_QUEUE_ENTRIES`].
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        Self {
            batching: BatchPolicy::default(),
            replicas: NonZeroUsize::MIN,
            queue: NonZeroUsize::new(DEFAULT_QUEUE_ENTRIES).unwrap_or(NonZeroUsize::MIN),
            placement,
            intensity: Intensity::default(),
            backoff: BackoffPolicy::default(),
        }
    }

    /// When a batch is full, and how long it may wait to become so.
    #[must_use]
    pub fn batching(&self) -> &BatchPolicy {
        &self.batching
    }

    /// See [`batching`](Self::batching).
    #[must_use]
    pub fn with_batching(mut self, batching: BatchPolicy) -> Self {
        self.batching = batching;
        self
    }

    /// The number of workers. Default 1. Each is built on its own: memory grows with it.
    #[must_use]
    pub fn replicas(&self) -> NonZeroUsize {
        self.replicas
    }

    /// See [`replicas`](Self::replicas).
    #[must_use]
    pub fn with_replicas(mut self, replicas: NonZeroUsize) -> Self {
        self.replicas = replicas;
        self
    }

    /// How many entries may wait. Default [`DEFAULT_QUEUE_ENTRIES`]. One more is refused with `Overloaded` and a
    /// `retry_after` from the measured drain rate. Longer queues only help bursts; under lasting overload they turn into
    /// latency, up to the callers' deadlines.
    #[must_use]
    pub fn queue(&self) -> NonZeroUsize {
        self.queue
    }

    /// See [`queue`](Self::queue).
    #[must_use]
    pub fn with_queue(mut self, queue: NonZeroUsize) -> Self {
        self.queue = queue;
        self
    }

    /// Where the code runs.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// See [`placement`](Self::placement).
    #[must_use]
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// How many crashes in which time make the stage `Failed`.
    #[must_use]
    pub fn intensity(&self) -> Intensity {
        self.intensity
    }

    /// See [`intensity`](Self::intensity).
    #[must_use]
    pub fn with_intensity(mut self, intensity: Intensity) -> Self {
        self.intensity = intensity;
        self
    }

    /// How long a replica that keeps crashing waits before its next start.
    #[must_use]
    pub fn backoff(&self) -> &BackoffPolicy {
        &self.backoff
    }

    /// See [`backoff`](Self::backoff).
    #[must_use]
    pub fn with_backoff(mut self, backoff: BackoffPolicy) -> Self {
        self.backoff = backoff;
        self
    }

    pub(crate) fn runs_as_task(&self) -> bool {
        self.placement == Placement::Task
    }
}
