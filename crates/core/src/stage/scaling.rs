//! Between which bounds a stage has replicas, and what makes it more or fewer.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::settings::at_least_one;

/// The bounds of the number of replicas, and what decides between them.
///
/// With `min` below `max` the node adds a replica when the queue would take longer than
/// [`queue_delay`](Self::queue_delay), within a second, and takes one away when the others would be busy less than
/// 70 % of the time, after a minute. With `min` 0 the last one goes after [`idle`](Self::idle) without a call, or when
/// another stage needs its [place](crate::Limits::max_loaded), and the next call starts one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    min: usize,
    max: NonZeroUsize,
    queue_delay: Duration,
    idle: Duration,
}

impl Scaling {
    /// The default bound of the queue delay: a wait that callers notice, and longer than a usual burst.
    pub const DEFAULT_QUEUE_DELAY: Duration = Duration::from_millis(100);

    /// The default time without a call after which a stage that may have no replica gives up its last one: a load of
    /// some seconds is then rare.
    pub const DEFAULT_IDLE: Duration = Duration::from_secs(5 * 60);

    /// Always this many replicas. 0 counts as 1.
    #[must_use]
    pub fn fixed(replicas: usize) -> Self {
        Self::between(replicas.max(1), replicas)
    }

    /// From `min` to `max` replicas; `min` may be 0. A `max` of 0, or below `min`, counts as the larger of `min` and 1.
    #[must_use]
    pub fn between(min: usize, max: usize) -> Self {
        let max = at_least_one(max.max(min));
        Self { min, max, queue_delay: Self::DEFAULT_QUEUE_DELAY, idle: Self::DEFAULT_IDLE }
    }

    pub(super) fn with_bounds(self, bounds: Self) -> Self {
        Self { min: bounds.min, max: bounds.max, ..self }
    }

    pub(crate) fn with_queue_delay(self, queue_delay: Duration) -> Self {
        Self { queue_delay, ..self }
    }

    pub(crate) fn with_idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// The fewest replicas, which a node starts with.
    #[must_use]
    pub fn min(&self) -> usize {
        self.min
    }

    /// The most replicas.
    #[must_use]
    pub fn max(&self) -> NonZeroUsize {
        self.max
    }

    /// How long the queue may take to drain, as estimated, before a replica is added. Default
    /// [`DEFAULT_QUEUE_DELAY`](Self::DEFAULT_QUEUE_DELAY). A shorter delay answers sooner and costs replicas that are
    /// idle most of the time.
    #[must_use]
    pub fn queue_delay(&self) -> Duration {
        self.queue_delay
    }

    /// The time without a call after which the last replica goes, where `min` is 0. Default
    /// [`DEFAULT_IDLE`](Self::DEFAULT_IDLE). The next call waits for the load of another one: set it well above that
    /// time.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Whether the number of replicas changes by itself.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.min == self.max.get()
    }

    /// Whether the stage may have no replica: then it is loaded by its first call.
    #[must_use]
    pub fn may_be_zero(&self) -> bool {
        self.min == 0
    }
}
