//! The task that runs a stream's calls, so that they go on while the consumer does something else.
//!
//! One task for all of them: the calls of a batch end together, and so the task, and the consumer behind it, are woken once
//! for the batch. A task for each call would cost half as much again as the call.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use callboard_codec::{Data, Payload};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::calls::Calls;
use crate::client::{AdmittedCall, panicked, read_output, run_admitted, runtime_gone};
use crate::error::CallError;

/// The consumer's end. Dropping it drops every call that is not over.
pub(super) struct Driver<Out> {
    shared: Arc<Shared<Out>>,
    task: AbortHandle,
}

type Shared<Out> = Mutex<State<Out>>;

/// What consumer and task hand each other. Everything in it is bounded by the stream's look-ahead.
struct State<Out> {
    /// Calls that are to begin.
    begun: Vec<Begun<Out>>,
    /// Calls whose outcome nobody waits for any more.
    given_up: Vec<usize>,
    /// The call that is first in order, and the outcomes from that one on, as far as they are there.
    first: usize,
    outcomes: VecDeque<Option<Result<Out, CallError>>>,
    consumer: Option<Waker>,
    driver: Option<Waker>,
    /// The runtime has dropped the task.
    gone: bool,
}

struct Begun<Out> {
    number: usize,
    work: Work<Out>,
}

/// A call that is to be run.
pub(super) enum Work<Out> {
    /// By this node, which has admitted it.
    Here(AdmittedCall, Payload),
    /// By whoever the stream's caller asks.
    Away(Calling<Out>),
}

/// A call of another caller than this node's.
pub(super) type Calling<Out> = Pin<Box<dyn Future<Output = Result<Out, CallError>> + Send>>;

impl<Out: Data + Clone> Driver<Out> {
    pub(super) fn spawn(runtime: &Handle) -> Self {
        let shared = Arc::new(Mutex::new(State {
            begun: Vec::new(),
            given_up: Vec::new(),
            first: 0,
            outcomes: VecDeque::new(),
            consumer: None,
            driver: None,
            gone: false,
        }));
        let task = runtime.spawn(drive(Arc::clone(&shared))).abort_handle();
        Self { shared, task }
    }

    /// Begins a call, the last in order.
    pub(super) fn begin(&self, work: Work<Out>) {
        let mut state = self.shared.lock();
        let number = state.first + state.outcomes.len();
        state.outcomes.push_back(None);
        state.begun.push(Begun { number, work });
        let driver = state.driver.take();
        drop(state);
        wake(driver);
    }

    /// Takes the outcome of the call that is first in order.
    pub(super) fn poll_first(&self, cx: &Context<'_>) -> Poll<Result<Out, CallError>> {
        let mut state = self.shared.lock();
        let there = state.outcomes.front().is_some_and(Option::is_some);
        if !there && !state.gone {
            if !state.consumer.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.consumer = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(state.take_first().unwrap_or_else(|| Err(runtime_gone())))
    }

    /// Gives up the call that is first in order: it gets no outcome.
    pub(super) fn give_up_first(&self) {
        let mut state = self.shared.lock();
        let number = state.first;
        state.take_first();
        state.given_up.push(number);
        let driver = state.driver.take();
        drop(state);
        wake(driver);
    }
}

impl<Out> Drop for Driver<Out> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<Out> State<Out> {
    fn take_first(&mut self) -> Option<Result<Out, CallError>> {
        self.first += 1;
        self.outcomes.pop_front().flatten()
    }

    fn put(&mut self, number: usize, outcome: Result<Out, CallError>) {
        // It may have been given up in the meantime.
        let place = number.checked_sub(self.first).and_then(|place| self.outcomes.get_mut(place));
        if let Some(place) = place {
            *place = Some(outcome);
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Runs what is begun until it is aborted.
async fn drive<Out: Data + Clone>(shared: Arc<Shared<Out>>) {
    let _gone = GoneOnDrop(&shared);
    let mut calls = Calls::new();
    let (mut begun, mut given_up, mut over) = (Vec::new(), Vec::new(), Vec::new());
    poll_fn(|cx| {
        loop {
            for number in given_up.drain(..) {
                calls.give_up(number);
            }
            for Begun { number, work } in begun.drain(..) {
                calls.begin(number, run(work));
            }
            calls.poll(cx, |number, outcome| over.push((number, outcome)));

            let mut state = shared.lock();
            for (number, outcome) in over.drain(..) {
                state.put(number, outcome);
            }
            mem::swap(&mut begun, &mut state.begun);
            mem::swap(&mut given_up, &mut state.given_up);
            let idle = begun.is_empty() && given_up.is_empty();
            if idle && !state.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.driver = Some(cx.waker().clone());
            }
            // The consumer waits for the first in order; the others' outcomes keep.
            let there = state.outcomes.front().is_some_and(Option::is_some);
            let consumer = if there { state.consumer.take() } else { None };
            drop(state);
            wake(consumer);
            if idle {
                return Poll::<()>::Pending;
            }
        }
    })
    .await;
}

async fn run<Out: Data + Clone>(work: Work<Out>) -> Result<Out, CallError> {
    let (call, payload) = match work {
        Work::Here(call, payload) => (call, payload),
        Work::Away(calling) => return calling.await,
    };
    let payload = run_admitted(call.admitted_at(), call, payload, AdmittedCall::succeeded).await?.payload;
    // The type's own `Deserialize` may run here. Its panic is this call's error, not the end of the others.
    match catch_unwind(AssertUnwindSafe(|| read_output::<Out>(payload))) {
        Ok(output) => output,
        Err(panic) => Err(panicked(panic.as_ref())),
    }
}

/// Tells the consumer that nobody runs its calls any more.
struct GoneOnDrop<'a, Out>(&'a Shared<Out>);

impl<Out> Drop for GoneOnDrop<'_, Out> {
    fn drop(&mut self) {
        let consumer = {
            let mut state = self.0.lock();
            state.gone = true;
            state.consumer.take()
        };
        wake(consumer);
    }
}
