//! The idle path: an entry that finds a free replica and nothing before it is handed over by its own caller.
//!
//! It asks no actor: code on the runtime runs in the caller's poll, a thread or future is woken once. The queue's
//! policy decides as it does for the batcher, and all that waits goes through the batcher.
//!
//! * **Full:** it holds a permit until a slot is its own.
//! * **Late, cancelled:** as every batch: an entry that nobody waits for does not run.
//! * **Isolation:** while entries run apart from others, nothing is handed over here.
//! * **Order:** an entry that waits comes first: with one in the queue, or on its way to it, the next one queues too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task;

use super::handle::Pool;
use super::run::BatchRun;
use crate::clock::Instant;
use crate::queue::{AdmissionDecision, DeadlineCheck, Entry, Load, QueueState, Release, Suspicion};
use crate::timeline::ReleaseReason;

/// After so many batches of one entry, another one is expected where a batch could have more. The entries of one burst
/// come one after the other: the first of them does not know of the next.
const LONE_BATCHES: usize = 4;

/// The task that last ran an entry by itself, where a batch could have had more.
///
/// Code on the runtime has answered before its caller's poll ends, so callers that are many never meet in the queue if
/// each of them runs its own entry. So only one that is alone does.
#[derive(Debug, Default)]
pub(super) struct LoneCaller(Mutex<Option<task::Id>>);

impl LoneCaller {
    /// Whether this task was the last one, too.
    fn is_still(&self) -> bool {
        let this = task::try_id();
        std::mem::replace(&mut *self.0.lock(), this) == this
    }
}

impl Pool {
    /// Hands an entry over at once, if it need not wait.
    ///
    /// # Errors
    ///
    /// Gives the entry back: it belongs into the queue.
    pub(super) fn hand_over_idle(self: &Arc<Self>, mut entry: Entry, now: Instant) -> Result<(), Entry> {
        let Some(reason) = self.release_alone(&entry, now) else { return Err(entry) };
        let Some(replica) = self.replicas.take_free() else { return Err(entry) };
        if self.entrance.is_isolating() {
            self.give_back_worker(&replica);
            return Err(entry);
        }
        entry.permit = None;
        self.demand.note_batch(now);
        let facts = self.release(1, entry.cost, replica.index(), Some(reason));
        entry.note_taken(self.name(), now, facts);
        replica.run(BatchRun::new(Arc::clone(self), vec![entry], now, facts, Suspicion::default()));
        Ok(())
    }

    /// Why an entry may leave alone, now, if a replica is free and this thread may run it.
    fn release_alone(&self, entry: &Entry, now: Instant) -> Option<ReleaseReason> {
        let is_first = self.queued_by_all() == 1 && entry.flight.session.is_none() && !self.entrance.is_isolating();
        if !is_first || !self.has_place(entry) {
            return None;
        }
        let has_delay = !self.policy().max_delay.is_zero();
        let waiting = QueueState {
            load: Load::new(1, entry.cost),
            oldest_arrival: has_delay.then_some(entry.enqueued_at),
            first_deadline: has_delay.then_some(entry.flight.deadline),
            estimate: if has_delay { self.cost.line().batch(entry.cost) } else { Duration::ZERO },
            returns_at: None,
            has_waited: false,
            last_batch: self.last_batch(),
            empty_yields: 0,
            is_draining: false,
            has_returned: false,
        };
        match self.policy().decide(now, &waiting) {
            Release::Now(reason) if self.has_time(entry) => Some(reason),
            _ => None,
        }
    }

    /// Whether it makes its deadline, by the measured cost. The batcher refuses it where it does not.
    fn has_time(&self, entry: &Entry) -> bool {
        self.cost.warm_line().is_none_or(|line| {
            let remaining = entry.flight.deadline.remaining(entry.enqueued_at);
            let check = DeadlineCheck {
                line,
                remaining,
                cost: entry.cost,
                before: Load::default(),
                running: None,
                others: Duration::ZERO,
                slots: 1,
            };
            check.judge(self.policy()) == AdmissionDecision::Queue
        })
    }

    /// Whether its code may run without the replica's actor, which watches threads that have a timeout, and moves tasks
    /// to threads.
    fn has_place(&self, entry: &Entry) -> bool {
        let is_single = self.policy().bounds().0 == 1;
        if !is_single && self.lone_batches() < LONE_BATCHES {
            return false;
        }
        if self.spec.is_async() {
            return true;
        }
        if !self.settings().runs_as_task() {
            return self.settings().timeout().is_none();
        }
        // Outputs have their reader in the same task.
        let is_quick = entry.outputs.is_none() && !self.replicas.is_moved_to_threads();
        is_quick && (is_single || self.lone_caller.is_still())
    }
}
