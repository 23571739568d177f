//! The times of a call.

use std::time::Duration;

use serde::Serialize;

/// The times of a call in queue, batch and code, summed over its stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// From arrival at a stage until a batch took the entry.
    pub queue: Duration,
    /// From the forming of the batch until user code began: hand-over, and wake-up of the worker's thread.
    pub batch: Duration,
    /// User code, for the whole batch.
    pub compute: Duration,
}

impl Timing {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.queue + self.batch + self.compute
    }
}

/// A timing in microseconds of 32 bits, a quarter of the size of durations, because every waiting call stores a few.
/// They reach beyond the longest deadline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Micros([u32; 3]);

impl Micros {
    pub(crate) fn add(&mut self, timing: Timing) {
        for (sum, micros) in self.0.iter_mut().zip(Self::from(timing).0) {
            *sum = sum.saturating_add(micros);
        }
    }
}

impl From<Timing> for Micros {
    fn from(timing: Timing) -> Self {
        let micros = |duration: Duration| u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
        Self([timing.queue, timing.batch, timing.compute].map(micros))
    }
}

impl From<Micros> for Timing {
    fn from(micros: Micros) -> Self {
        let [queue, batch, compute] = micros.0.map(|micros| Duration::from_micros(micros.into()));
        Self { queue, batch, compute }
    }
}

impl std::ops::Add for Timing {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { queue: self.queue + other.queue, batch: self.batch + other.batch, compute: self.compute + other.compute }
    }
}
