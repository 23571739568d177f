//! One call between its caller, who waits, and the pack that carries it: in whose hands it is, and what became of it.
//!
//! A call is given up by dropping its [`Ticket`]: while it waits, it is never sent; when it is on a stream, the pack is rung for. Whoever
//! carries a call owes it an outcome, so a [`Carried`] that is dropped says that it was lost. Both move it under one lock, so that what is
//! known of a call is exact: it was either handed to a stream or it was not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use callboard_codec::wire::FrameHead;
use callboard_core::CallError;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::fault::{not_started, unknown};

/// What came back for a call, as it came: it is read where its caller is, not on the transport's thread.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) head: FrameHead,
    pub(super) body: Vec<Bytes>,
}

type Outcome = Result<Received, CallError>;

#[derive(Debug)]
enum State {
    /// Nothing of it was sent.
    Waiting { caller: Option<Waker> },
    /// It is on a stream.
    Sent { caller: Option<Waker>, pack: Arc<Bell> },
    /// Its outcome waits for the caller.
    Ended(Outcome),
    /// Its caller has the outcome, or wants none any more.
    Left,
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Ticket(Arc<Mutex<State>>);

/// The carrier's end.
#[derive(Debug)]
pub(super) struct Carried(Arc<Mutex<State>>);

/// Both ends of a call that waits.
pub(super) fn slot() -> (Ticket, Carried) {
    let state = Arc::new(Mutex::new(State::Waiting { caller: None }));
    (Ticket(Arc::clone(&state)), Carried(state))
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Waiting { caller } | State::Sent { caller, .. } => {
                match caller {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *caller = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Ended(_) | State::Left => match std::mem::replace(&mut *state, State::Left) {
                State::Ended(outcome) => Poll::Ready(outcome),
                _ => Poll::Ready(Err(unknown("its outcome was taken before"))),
            },
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Left);
        if let State::Sent { pack, .. } = before {
            pack.ring();
        }
    }
}

impl Carried {
    /// Whether nobody waits for it any more.
    pub(super) fn is_left(&self) -> bool {
        matches!(*self.0.lock(), State::Left)
    }

    /// Takes it onto the stream that is rung for by `pack`; not if it was given up.
    pub(super) fn board(&self, pack: &Arc<Bell>) -> bool {
        let mut state = self.0.lock();
        let State::Waiting { caller } = &mut *state else { return false };
        let caller = caller.take();
        *state = State::Sent { caller, pack: Arc::clone(pack) };
        true
    }

    /// Gives its caller the outcome.
    pub(super) fn end(self, outcome: Outcome) {
        if let Some(caller) = self.end_unwoken(outcome) {
            caller.wake();
        }
    }

    /// Leaves the outcome for its caller, who is still to be woken: those who are woken together come back together.
    #[must_use]
    pub(super) fn end_unwoken(self, outcome: Outcome) -> Option<Waker> {
        self.settle(|_| outcome)
    }

    fn settle(&self, outcome: impl FnOnce(bool) -> Outcome) -> Option<Waker> {
        let mut state = self.0.lock();
        let (caller, was_sent) = match &mut *state {
            State::Waiting { caller } => (caller.take(), false),
            State::Sent { caller, .. } => (caller.take(), true),
            State::Ended(_) | State::Left => return None,
        };
        *state = State::Ended(outcome(was_sent));
        caller
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let caller = self.settle(|was_sent| {
            let reason = "the transport has ended";
            Err(if was_sent { unknown(reason) } else { not_started(reason.to_owned()) })
        });
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// Rung when a call of a pack was given up.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: AtomicBool,
    pack: AtomicWaker,
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.pack.wake();
    }

    /// Waits until it was rung since the last time.
    pub(super) async fn rung(&self) {
        std::future::poll_fn(|context| {
            self.pack.register(context.waker());
            match self.rung.swap(false, Ordering::AcqRel) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_call_that_was_given_up_while_it_waited_is_not_taken_along() {
        let (ticket, carried) = slot();
        drop(ticket);
        assert!(carried.is_left());
        assert!(!carried.board(&Arc::default()));
    }

    #[test]
    fn the_pack_is_rung_for_when_a_call_of_it_is_given_up_and_only_then() {
        let bell = Arc::new(Bell::default());
        let ((given_up, first), (mut answered, second)) = (slot(), slot());
        assert!(first.board(&bell) && second.board(&bell));
        assert_eq!(bell.rung().now_or_never(), None);
        drop(given_up);
        assert_eq!(bell.rung().now_or_never(), Some(()));
        assert_eq!(bell.rung().now_or_never(), None);
        assert!(first.is_left() && !second.is_left());
        second.end(Err(unknown("a test")));
        assert!((&mut answered).now_or_never().unwrap().unwrap_err().was_started());
        drop(answered);
        assert_eq!(bell.rung().now_or_never(), None);
    }

    #[test]
    fn a_carrier_that_is_gone_leaves_word() {
        let (mut waiting, carried) = slot();
        drop(carried);
        assert!(!(&mut waiting).now_or_never().unwrap().unwrap_err().was_started());
        let (mut sent, carried) = slot();
        assert!(carried.board(&Arc::default()));
        drop(carried);
        assert!((&mut sent).now_or_never().unwrap().unwrap_err().was_started());
    }
}
