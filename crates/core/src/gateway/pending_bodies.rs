//! Admitted calls whose bodies are still arriving: how many there may be.
//!
//! Together they have at most half of the node's calls in flight, so that complete calls always find a permit; further
//! ones are refused with `overloaded`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::admission::Limits;
use crate::error::{CallError, RETRY_AFTER};

/// The admitted calls whose bodies are still arriving.
#[derive(Debug)]
pub(super) struct PendingBodies {
    count: Arc<AtomicUsize>,
    limit: usize,
}

/// Counts one call whose body is still arriving, until it is dropped.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct PendingBody(Arc<AtomicUsize>);

impl PendingBodies {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { count: Arc::default(), limit: (limits.max_in_flight / 2).max(1) }
    }

    pub(super) fn begin(&self) -> Result<PendingBody, CallError> {
        // Made before the count grows: on a refusal, its drop takes the count back.
        let body = PendingBody(Arc::clone(&self.count));
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            let message = format!("{} calls in flight are still waiting for their bodies", self.limit);
            return Err(CallError::overloaded(message, RETRY_AFTER));
        }
        Ok(body)
    }
}

impl Drop for PendingBody {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_pending_bodies_is_limited() {
        let pending = PendingBodies::new(&Limits { max_in_flight: 5, ..Limits::default() });
        let (first, second) = (pending.begin().unwrap(), pending.begin().unwrap());
        for _ in 0..3 {
            assert!(pending.begin().unwrap_err().is_retryable(), "a refusal does not count");
        }
        drop(first);
        let third = pending.begin().unwrap();
        assert!(pending.begin().is_err());
        drop((second, third));
        assert_eq!(pending.count.load(Ordering::Relaxed), 0);
    }
}
