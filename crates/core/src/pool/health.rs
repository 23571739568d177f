//! The health of one stage: its state, the poison entries that degrade it, and whether it accepts entries.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::lifecycle::{Lifecycle, StageState};
use super::poison::PoisonShare;
use crate::clock::Instant;

/// The health of one stage, which callers, batcher, replicas and supervisor share.
#[derive(Debug, Default)]
pub(crate) struct Health {
    lifecycle: Mutex<Lifecycle>,
    /// In Ready, Degraded and, for calls admitted before, Draining.
    accepts_entries: AtomicBool,
    /// When a failed stage tries again.
    retry_at: Mutex<Option<Instant>>,
    poison: Mutex<PoisonShare>,
    /// Whether poison entries were found lately. Most stages read this instead of taking the lock.
    has_poison: AtomicBool,
}

impl Health {
    pub(crate) fn state(&self) -> StageState {
        self.lifecycle.lock().state()
    }

    /// The state, and why it was entered.
    pub(crate) fn state_and_reason(&self) -> (StageState, Option<String>) {
        let lifecycle = self.lifecycle.lock();
        (lifecycle.state(), lifecycle.reason().map(str::to_owned))
    }

    /// When a stage that has failed tries again. `None`: it does not, or has not failed.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        *self.retry_at.lock()
    }

    pub(super) fn set_retry_at(&self, at: Option<Instant>) {
        *self.retry_at.lock() = at;
    }

    /// Without a lock, for the path of a call.
    pub(super) fn accepts_entries(&self) -> bool {
        self.accepts_entries.load(Ordering::Acquire)
    }

    /// Enters a state. Returns the state before and the reason, or `None` for an invalid step, which changes nothing.
    pub(super) fn enter(&self, state: StageState, reason: Option<String>) -> Option<(StageState, Option<String>)> {
        let mut lifecycle = self.lifecycle.lock();
        let before = lifecycle.state();
        if !lifecycle.enter(state, reason) {
            return None;
        }
        self.accepts_entries.store(state.accepts_entries(), Ordering::Release);
        Some((before, lifecycle.reason().map(str::to_owned)))
    }

    /// Records an entry that killed its worker or ran beyond the stage's timeout.
    pub(super) fn record_culprit(&self) {
        self.has_poison.store(true, Ordering::Relaxed);
        let mut poison = self.poison.lock();
        poison.record_poison();
        self.judge(&poison);
    }

    /// Records entries that had their outcome.
    pub(super) fn record_outcomes(&self, entries: usize) {
        if self.has_poison.load(Ordering::Relaxed) {
            let mut poison = self.poison.lock();
            poison.record_runs(entries);
            self.judge(&poison);
            self.has_poison.store(!poison.is_negligible(), Ordering::Relaxed);
        }
    }

    fn judge(&self, poison: &PoisonShare) {
        let complaint =
            poison.excess().map(|_| "more than a fifth of its entries end or block their worker".to_owned());
        self.lifecycle.lock().complain(complaint);
    }
}
