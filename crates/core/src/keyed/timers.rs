//! Timers of a key: messages that an instance sends itself later. They belong to the instance and are not saved.
//!
//! * **Full:** an instance has at most [`MAX_TIMERS`] timers that wait; a further one is refused.
//! * **Late:** a timer that is due waits for the message in hand, and then takes turns with the messages that wait.
//! * **Ended:** the timers of an instance end with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{self, Instant};
use crate::containment::drop_contained;
use crate::error::AskError;

/// The most timers of an instance that wait.
pub(super) const MAX_TIMERS: usize = 64;

/// The timers of one instance.
pub(super) struct KeyTimers {
    /// The questions that the kind accepts.
    accepted: Arc<[&'static str]>,
    waiting: Mutex<TimerList>,
    /// The wake-up of the key: a new timer ends its rest.
    wake: Arc<Notify>,
}

#[derive(Default)]
struct TimerList {
    timers: Vec<Timer>,
    next_id: u64,
    is_over: bool,
}

struct Timer {
    id: u64,
    at: Instant,
    question: &'static str,
    payload: Payload,
}

/// A message that a key sends itself later. Dropping this handle does not cancel it.
#[derive(Clone)]
pub struct KeyTimer {
    timers: Arc<KeyTimers>,
    id: u64,
}

impl KeyTimers {
    pub(super) fn new(accepted: Arc<[&'static str]>, wake: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { accepted, waiting: Mutex::default(), wake })
    }

    pub(super) fn set(
        self: &Arc<Self>,
        delay: Duration,
        question: &'static str,
        payload: Payload,
    ) -> Result<KeyTimer, AskError> {
        let refused = |reason: String| AskError::NotAccepted { reason };
        if !self.accepted.contains(&question) {
            return Err(refused(format!("the keyed actors accept no `{question}`")));
        }
        let at = clock::now().checked_add(delay).ok_or_else(|| refused(format!("a timer after {delay:?}")))?;
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return Err(AskError::Unreachable { reason: "this instance of the key has ended".to_owned() });
        }
        if waiting.timers.len() >= MAX_TIMERS {
            return Err(AskError::Full);
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        waiting.timers.push(Timer { id, at, question, payload });
        drop(waiting);
        self.wake.notify_one();
        Ok(KeyTimer { timers: Arc::clone(self), id })
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.lock().timers.iter().map(|timer| timer.at).min()
    }

    /// The question of the earliest due timer; of two for the same time, of the one set first.
    pub(super) fn take_due(&self, now: Instant) -> Option<(&'static str, Payload)> {
        let mut waiting = self.waiting.lock();
        let timers = waiting.timers.iter().enumerate().filter(|(_, timer)| timer.at <= now);
        let (index, _) = timers.min_by_key(|(_, timer)| (timer.at, timer.id))?;
        let Timer { question, payload, .. } = waiting.timers.swap_remove(index);
        Some((question, payload))
    }

    /// The instance has ended.
    pub(super) fn end(&self) {
        let timers = {
            let mut waiting = self.waiting.lock();
            waiting.is_over = true;
            std::mem::take(&mut waiting.timers)
        };
        drop_contained(timers);
    }
}

impl KeyTimer {
    /// Cancels the timer. A message that the instance has in hand is still handled.
    pub fn cancel(&self) {
        let cancelled = {
            let mut waiting = self.timers.waiting.lock();
            let found = waiting.timers.iter().position(|timer| timer.id == self.id);
            found.map(|index| waiting.timers.swap_remove(index))
        };
        drop_contained(cancelled);
        self.timers.wake.notify_one();
    }
}

impl fmt::Debug for KeyTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTimer").field("id", &self.id).finish_non_exhaustive()
    }
}
