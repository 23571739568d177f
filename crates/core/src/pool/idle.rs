//! The idle path: an entry that finds a free replica and nothing before it is handed over by its own caller.
//!
//! It asks no actor: quick code on the runtime runs in the caller's poll, a thread or future is woken once. The queue's
//! policy decides as it does for the batcher, and all that waits goes through the batcher.
//!
//! * **Full:** it holds a permit until a slot is its own.
//! * **Late, cancelled:** as every batch: an entry without a waiting caller does not run.
//! * **Isolation:** while entries run apart from others, nothing is handed over here.
//! * **Order:** an entry that waits comes first: with one in the queue, or on its way to it, the next one queues too.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::handle::Pool;
use super::run::{BatchRun, Finish};
use crate::clock::Instant;
use crate::queue::{AdmissionDecision, DeadlineCheck, Entry, Load, QueueState, Release, Suspicion};
use crate::timeline::ReleaseReason;

/// Code that takes longer than a few turns of the runtime runs in its replica's own task, beside its caller and the
/// caller's other calls.
const QUICK: Duration = Duration::from_micros(20);

thread_local! {
    /// Whether the code that this thread polls may run stages in its poll.
    static MAY_RUN: Cell<bool> = const { Cell::new(true) };
}

/// Polls a call for a caller that does not wait for it: no stage runs in this poll.
pub(crate) fn without_running<T>(poll: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MAY_RUN.set(self.0);
        }
    }
    let _restore = Restore(MAY_RUN.replace(false));
    poll()
}

/// The recent mean time of user code for one entry, in nanoseconds. A single slow run counts little.
#[derive(Debug)]
pub(super) struct Quickness(AtomicU32);

impl Default for Quickness {
    /// Nothing is quick before it was measured.
    fn default() -> Self {
        Self(AtomicU32::new(2 * QUICK.as_nanos() as u32))
    }
}

impl Quickness {
    /// A batch took so long. Of two at once one may be left out.
    pub(super) fn observe(&self, compute: Duration) {
        let nanos = compute.min(4 * QUICK).as_nanos() as u32;
        let mean = self.0.load(Ordering::Relaxed);
        self.0.store((mean * 3 + nanos) / 4, Ordering::Relaxed);
    }

    fn is_quick(&self) -> bool {
        u128::from(self.0.load(Ordering::Relaxed)) <= QUICK.as_nanos()
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
        // With the slot, which keeps both from changing once more: they may have changed since the first look.
        if self.entrance.is_isolating() || self.is_task() && self.replicas.is_moved_to_threads() {
            self.give_back_worker(&replica);
            return Err(entry);
        }
        entry.permit = None;
        self.demand.note_batch(now);
        let facts = self.release(1, entry.cost, replica.index(), Some(reason));
        entry.note_taken(self.name(), now, facts);
        let (pool, suspicion) = (Arc::clone(self), Suspicion::default());
        replica.run(BatchRun::new(pool, vec![entry], now, facts, suspicion, Finish::AnswersFirst));
        Ok(())
    }

    /// Whether batches go to its threads or futures without the replica's actor, which watches threads that have a
    /// timeout, and moves tasks to threads.
    pub(crate) fn hands_over_directly(&self) -> bool {
        let Self { spec, .. } = self.with_replicas();
        spec.is_async() || !spec.settings().runs_as_task() && spec.settings().timeout().is_none()
    }

    /// Whether the batcher may run this stage's code itself: quick code on the runtime, one entry per batch, one
    /// replica. With more replicas or batches, entries gather while a message travels.
    pub(crate) fn runs_in_batcher(&self, replicas: usize) -> bool {
        let is_alone = replicas == 1 && !self.policy().has_batches();
        is_alone && self.is_task() && self.quickness.is_quick() && !self.replicas.is_moved_to_threads()
    }

    fn is_task(&self) -> bool {
        let Self { spec, .. } = self.with_replicas();
        !spec.is_async() && spec.settings().runs_as_task()
    }

    /// Why an entry may leave alone, now, if a replica is free and this thread may run it.
    fn release_alone(&self, entry: &Entry, now: Instant) -> Option<ReleaseReason> {
        let is_single = self.policy().max_delay.is_zero() && self.needs_no_company(entry, now);
        let is_first = self.queued_by_all() == 1 && entry.flight.session.is_none() && !self.entrance.is_isolating();
        if !is_single || !is_first || !self.may_run_without_actor(entry) {
            return None;
        }
        let load = Load::new(1, entry.cost);
        let waiting = QueueState { load, ..QueueState::default() };
        match self.policy().decide(now, &waiting) {
            Release::Now(reason) if self.has_time(entry) => Some(reason),
            _ => None,
        }
    }

    /// Whether nothing could be in one batch with the entry.
    ///
    /// The entries of one burst come one after the other: the first of them does not know of the next. So where they
    /// could share a batch they meet in the queue. A burst is made in one task, or by several callers at about the same
    /// time. A call that is alone in its task belongs to none if the last batch had one entry, and began longer ago than
    /// quick code takes. Others that follow at once find that batch too young, and lose one run of quick code at most.
    fn needs_no_company(&self, entry: &Entry, now: Instant) -> bool {
        if !self.policy().has_batches() {
            return true;
        }
        let is_late = |last: Instant| now.saturating_duration_since(last) > QUICK;
        let is_sparse = || self.last_batch() <= 1 && self.demand.last_batch().is_none_or(is_late);
        entry.flight.is_alone && self.is_task() && is_sparse()
    }

    /// Whether the entry's code may run without the replica's actor.
    fn may_run_without_actor(&self, entry: &Entry) -> bool {
        if !self.is_task() {
            return self.hands_over_directly();
        }
        // Outputs have their reader in the same task.
        let is_quick = entry.outputs.is_none() && self.quickness.is_quick() && MAY_RUN.get();
        is_quick && entry.flight.permit.as_ref().is_some_and(|permit| permit.gateway().offload().is_entered())
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
}
