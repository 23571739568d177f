//! The replicas of one stage on this node: which of them run, their target number, the last restarts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorId;

use super::replica::ReplicaHandle;
use crate::clock::Instant;

/// The last restarts of a stage that are kept for its description.
const REMEMBERED_RESTARTS: usize = 8;

/// How long a stage counts as ready after its last replica has ended. A replica that starts within this time and was
/// ended by an input does not take its node out of rotation. A replica that loads for longer does, until it is up: its
/// start may hang, and calls would wait in vain.
const READY_WITHOUT_REPLICA: Duration = Duration::from_secs(5);

/// Why a replica was started again.
#[derive(Clone, Debug)]
pub(crate) struct Restart {
    pub(crate) replica: usize,
    pub(crate) at: Instant,
    pub(crate) reason: String,
}

/// The replicas of one stage.
#[derive(Debug)]
pub(crate) struct ReplicaSet {
    handles: Mutex<Vec<Arc<ReplicaHandle>>>,
    /// The last restarts, the newest last.
    restarts: Mutex<VecDeque<Restart>>,
    /// Since when no replica is up, after some were: noted when a replica dies, or when readiness is asked for.
    none_since: Mutex<Option<Instant>>,
    target: AtomicUsize,
    is_moved_to_threads: AtomicBool,
    abandoned_threads: AtomicUsize,
}

impl ReplicaSet {
    pub(super) fn new(target: usize) -> Self {
        Self {
            handles: Mutex::default(),
            restarts: Mutex::default(),
            none_since: Mutex::default(),
            target: AtomicUsize::new(target),
            is_moved_to_threads: AtomicBool::new(false),
            abandoned_threads: AtomicUsize::new(0),
        }
    }

    /// The replicas that are up, and those that finish their batches before they leave.
    pub(crate) fn all(&self) -> Vec<Arc<ReplicaHandle>> {
        self.handles.lock().iter().filter(|handle| counts(handle)).cloned().collect()
    }

    /// Adds a replica that came up, in place of its previous life.
    pub(crate) fn add(&self, replica: Arc<ReplicaHandle>) {
        let mut handles = self.handles.lock();
        let is_over =
            |other: &ReplicaHandle| other.is_gone() || (other.index() == replica.index() && !replica.is_leaving());
        handles.retain(|other| other.is_leaving() || !is_over(other));
        handles.push(replica);
        *self.none_since.lock() = None;
    }

    /// Whether calls can count on a replica: one is up, or was a moment ago. A replica that has just ended may be known
    /// here before its supervisor hears of it.
    pub(crate) fn is_manned(&self, now: Instant) -> bool {
        let handles = self.handles.lock();
        if handles.iter().any(|handle| counts(handle)) {
            return true;
        }
        // Under the lock of the handles: a replica that comes up now clears it afterwards.
        let mut none_since = self.none_since.lock();
        if !handles.is_empty() {
            none_since.get_or_insert(now);
        }
        none_since.is_some_and(|since| now.saturating_duration_since(since) < READY_WITHOUT_REPLICA)
    }

    /// Whether this replica was leaving; if so, removes it.
    pub(crate) fn remove_leaving(&self, who: ActorId) -> bool {
        let mut handles = self.handles.lock();
        let left = handles.iter().position(|handle| handle.actor().get_id() == who && handle.is_leaving());
        left.map(|position| handles.swap_remove(position)).is_some()
    }

    /// Notes why a replica is started again; forgets the oldest restart.
    pub(crate) fn note_restart(&self, replica: usize, at: Instant, reason: String) {
        let mut restarts = self.restarts.lock();
        if restarts.len() == REMEMBERED_RESTARTS {
            restarts.pop_front();
        }
        restarts.push_back(Restart { replica, at, reason });
    }

    /// The last restarts, the newest last.
    pub(crate) fn last_restarts(&self) -> Vec<Restart> {
        self.restarts.lock().iter().cloned().collect()
    }

    /// The target number of replicas.
    pub(crate) fn target(&self) -> usize {
        self.target.load(Ordering::Relaxed)
    }

    pub(crate) fn set_target(&self, replicas: usize) {
        self.target.store(replicas, Ordering::Relaxed);
    }

    /// The number of batches that can run at once. At least one: a replica that is down is about to come back.
    pub(crate) fn slots(&self) -> usize {
        self.slots_and_free().0.max(1)
    }

    /// The number of batches that can run at once, and whether one more can begin now.
    pub(crate) fn slots_and_free(&self) -> (usize, bool) {
        let handles = self.handles.lock();
        let live = handles.iter().filter(|handle| !handle.is_gone());
        live.fold((0, false), |(slots, free), handle| (slots + handle.slots(), free || handle.free_slots() > 0))
    }

    /// A replica that takes a batch now, with its slot taken.
    pub(super) fn take_free(&self) -> Option<Arc<ReplicaHandle>> {
        self.handles.lock().iter().find(|handle| !handle.is_leaving() && handle.try_take()).cloned()
    }

    /// Says that replicas run on threads from now on. True: they did not before.
    pub(super) fn move_to_threads(&self) -> bool {
        !self.is_moved_to_threads.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_moved_to_threads(&self) -> bool {
        self.is_moved_to_threads.load(Ordering::Acquire)
    }

    pub(super) fn abandon_thread(&self) {
        self.abandoned_threads.fetch_add(1, Ordering::Relaxed);
    }

    /// An abandoned thread has come back, and ends.
    pub(super) fn thread_came_back(&self) {
        self.abandoned_threads.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn abandoned_threads(&self) -> usize {
        self.abandoned_threads.load(Ordering::Relaxed)
    }
}

/// Whether a replica is up, or finishes its batches before it leaves.
fn counts(handle: &ReplicaHandle) -> bool {
    !handle.is_gone() || handle.is_leaving()
}
