//! The state of one call, shared by its waiting caller and the stream that carries it.
//!
//! The caller cancels by dropping its [`PendingResponse`]: a queued call is then never sent, and a sent call is
//! cancelled by its stream. The stream owes an outcome: dropping a [`ResponseSlot`] ends the call as lost. One lock
//! guards the state, so it is exact whether the call was put on a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use callboard_codec::wire::FrameHead;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::super::fault::CallFault;

/// A received outcome. The caller's thread decodes it, not the transport's.
#[derive(Debug)]
pub(super) struct ReceivedOutcome {
    pub(super) head: FrameHead,
    pub(super) body: Vec<Bytes>,
}

type Outcome = Result<ReceivedOutcome, CallFault>;

#[derive(Debug)]
enum SlotState {
    /// Nothing of it was sent.
    Queued { caller: Option<Waker> },
    /// It is on a stream, which the signal cancels.
    Sent { caller: Option<Waker>, cancel: Arc<CancelSignal> },
    /// Its outcome waits for the caller.
    Ended(Outcome),
    /// Its caller has the outcome, or has cancelled it.
    Left,
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct PendingResponse(Arc<Mutex<SlotState>>);

/// The stream's end.
#[derive(Debug)]
pub(super) struct ResponseSlot(Arc<Mutex<SlotState>>);

/// Both ends of a queued call.
pub(super) fn slot() -> (PendingResponse, ResponseSlot) {
    let state = Arc::new(Mutex::new(SlotState::Queued { caller: None }));
    (PendingResponse(Arc::clone(&state)), ResponseSlot(state))
}

impl Future for PendingResponse {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.lock();
        match &mut *state {
            SlotState::Queued { caller } | SlotState::Sent { caller, .. } => {
                match caller {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *caller = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            SlotState::Ended(_) | SlotState::Left => match std::mem::replace(&mut *state, SlotState::Left) {
                SlotState::Ended(outcome) => Poll::Ready(outcome),
                _ => Poll::Ready(Err(CallFault::lost(&"its outcome was taken before"))),
            },
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), SlotState::Left);
        if let SlotState::Sent { cancel, .. } = before {
            cancel.notify();
        }
    }
}

impl ResponseSlot {
    /// Whether its caller left.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Left)
    }

    /// Puts it on the stream of this signal. `false`: it was cancelled.
    pub(super) fn send_on(&self, cancel: &Arc<CancelSignal>) -> bool {
        let mut state = self.0.lock();
        let SlotState::Queued { caller } = &mut *state else { return false };
        let caller = caller.take();
        *state = SlotState::Sent { caller, cancel: Arc::clone(cancel) };
        true
    }

    /// Ends the call with an outcome, and wakes its caller.
    pub(super) fn end(self, outcome: Outcome) {
        if let Some(caller) = self.end_unwoken(outcome) {
            caller.wake();
        }
    }

    /// Ends the call with an outcome. Returns the caller's waker, so that callers can be woken together.
    #[must_use]
    pub(super) fn end_unwoken(self, outcome: Outcome) -> Option<Waker> {
        self.end_with(|_| outcome)
    }

    fn end_with(&self, outcome: impl FnOnce(bool) -> Outcome) -> Option<Waker> {
        let mut state = self.0.lock();
        let (caller, was_sent) = match &mut *state {
            SlotState::Queued { caller } => (caller.take(), false),
            SlotState::Sent { caller, .. } => (caller.take(), true),
            SlotState::Ended(_) | SlotState::Left => return None,
        };
        *state = SlotState::Ended(outcome(was_sent));
        caller
    }
}

impl Drop for ResponseSlot {
    fn drop(&mut self) {
        let caller = self.end_with(|was_sent| {
            let reason = "the transport has ended";
            Err(if was_sent { CallFault::lost(&reason) } else { CallFault::not_started(reason) })
        });
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// Tells a shared stream that one of its calls was cancelled.
#[derive(Debug, Default)]
pub(super) struct CancelSignal {
    is_set: AtomicBool,
    stream: AtomicWaker,
}

impl CancelSignal {
    fn notify(&self) {
        self.is_set.store(true, Ordering::Release);
        self.stream.wake();
    }

    /// Waits for a cancellation since the last wait.
    pub(super) async fn notified(&self) {
        std::future::poll_fn(|context| {
            self.stream.register(context.waker());
            if self.is_set.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_queued_call_that_was_cancelled_is_not_sent() {
        let (response, call) = slot();
        drop(response);
        assert!(call.is_cancelled());
        assert!(!call.send_on(&Arc::default()));
    }

    #[test]
    fn a_stream_is_notified_only_when_one_of_its_calls_is_cancelled() {
        let signal = Arc::new(CancelSignal::default());
        let ((cancelled, first), (mut answered, second)) = (slot(), slot());
        assert!(first.send_on(&signal) && second.send_on(&signal));
        assert_eq!(signal.notified().now_or_never(), None);
        drop(cancelled);
        assert_eq!(signal.notified().now_or_never(), Some(()));
        assert_eq!(signal.notified().now_or_never(), None);
        assert!(first.is_cancelled() && !second.is_cancelled());
        second.end(Err(CallFault::lost(&"a test")));
        assert!((&mut answered).now_or_never().unwrap().unwrap_err().error().was_started());
        drop(answered);
        assert_eq!(signal.notified().now_or_never(), None);
    }

    #[test]
    fn a_dropped_slot_ends_its_call() {
        let (mut waiting, call) = slot();
        drop(call);
        assert!(!(&mut waiting).now_or_never().unwrap().unwrap_err().error().was_started());
        let (mut sent, call) = slot();
        assert!(call.send_on(&Arc::default()));
        drop(call);
        assert!((&mut sent).now_or_never().unwrap().unwrap_err().error().was_started());
    }
}
