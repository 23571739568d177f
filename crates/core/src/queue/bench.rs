//! The queue for the crate's own benches. Not part of the interface.

use std::time::Duration;

use super::waiting::{BatchQueue, EntryKey};
use crate::call::Priority;
use crate::clock::Instant;
use crate::deadline::Deadline;

/// A queue of numbers.
#[derive(Debug)]
pub struct Queue {
    queue: BatchQueue<u64>,
    now: Instant,
}

impl Queue {
    /// An empty one, at this time.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { queue: BatchQueue::new(super::BatchPolicy::DEFAULT_AGEING), now }
    }

    /// Queues `sequence`, due after `slack`, in one of the classes.
    pub fn push(&mut self, sequence: u64, slack: Duration) {
        let key = self.key(sequence, slack);
        self.queue.push(key, self.now, 1, sequence);
    }

    /// Takes the next entry.
    pub fn pop(&mut self) -> Option<u64> {
        self.queue.age(self.now);
        let head = self.queue.head()?;
        Some(self.queue.take(head))
    }

    /// Removes this entry.
    pub fn remove(&mut self, sequence: u64, slack: Duration) -> Option<u64> {
        self.queue.remove(self.key(sequence, slack))
    }

    /// The number of entries that would leave before it.
    #[must_use]
    pub fn before(&self, sequence: u64, slack: Duration) -> usize {
        self.queue.before(self.key(sequence, slack)).entries
    }

    /// Advances the time.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn key(&self, sequence: u64, slack: Duration) -> EntryKey {
        let priority = Priority::ALL[(sequence % 3) as usize];
        EntryKey { priority, deadline: Deadline::after(self.now, slack), sequence }
    }
}
