//! The machine in a stream: pulls inputs while there is room, starts their calls, yields results in the order of the inputs.
//!
//! The calls run in a task of the stream's own ([`driver`](super::driver)). Inputs are pulled only by the consumer's polling.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use callboard_codec::{Data, Payload};
use futures_util::Stream;
use tokio::runtime::Handle;
use tokio::task::coop;
use tokio::time::Sleep;

use super::driver::{Calling, Driver, Work};
use super::prepare::Prepare;
use super::window::Window;
use crate::call::{CallOptions, Flight, Priority};
use crate::client::{AdmittedCall, CAPACITY_POLL_INTERVAL, LocalClient};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::gateway::Admission;
use crate::timeline::Phase;

/// A result, and what was kept of its input.
pub(super) type Yielded<K, Out> = (Option<K>, Result<Out, CallError>);

pub(super) struct Ordered<S: Stream, Out, P: Prepare<S::Item>> {
    pub(super) door: Door<Out>,
    pub(super) route: String,
    /// None once the producer has ended.
    pub(super) inputs: Option<S>,
    pub(super) prepare: P,
    pub(super) keep_inputs: bool,
    pub(super) stop_at_error: bool,
    pub(super) options: CallOptions,
    pub(super) timeout: Duration,
    /// The longest that the route and the node allow.
    pub(super) max_timeout: Duration,
    pub(super) window: Window,
    /// The input for which the node had no room.
    pub(super) held: Option<Held<P::Kept>>,
    pub(super) calls: VecDeque<Call<P::Kept>>,
    /// Made with the first call.
    pub(super) driver: Option<Driver<Out>>,
    pub(super) timer: Timer,
    /// When the result that the consumer waits for is late.
    pub(super) head_late_at: Option<Instant>,
    /// It has ended, by itself or by an error.
    pub(super) over: bool,
}

/// Who makes the calls.
pub(super) enum Door<Out> {
    /// This node, which admits them.
    Here(LocalClient),
    /// Another caller, which waits for room by itself.
    Away(Away<Out>),
}

pub(super) struct Away<Out> {
    pub(super) runtime: Handle,
    pub(super) call: Box<dyn Fn(Payload, CallOptions) -> Calling<Out> + Send + Sync>,
}

impl<Out> Door<Out> {
    fn runtime(&self) -> &Handle {
        match self {
            Self::Here(client) => client.runtime(),
            Self::Away(away) => &away.runtime,
        }
    }
}

/// An input on its way to its call.
pub(super) struct Held<K> {
    kept: Option<K>,
    payload: Payload,
    /// Since when there is no room for it.
    since: Option<Instant>,
}

/// One input's place in the order.
pub(super) struct Call<K> {
    kept: Option<K>,
    state: State,
}

enum State {
    /// The driver has it.
    Running(AbandonOnDrop),
    /// Without a call: it could not be made.
    Refused(CallError),
}

/// A call of which nothing starts any more once this is dropped, even before the runtime gets to drop the driver.
struct AbandonOnDrop(Arc<Flight>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl<S, Out, P> Ordered<S, Out, P>
where
    S: Stream + Unpin,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Yielded<P::Kept, Out>>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            self.top_up(cx);
            if !self.calls.is_empty() {
                let outcome = ready!(self.poll_head(cx));
                return Poll::Ready(Some(self.yield_head(outcome, cx)));
            }
            match (&self.held, &self.inputs) {
                // Others have filled the node: there is no event of ours to wait for.
                (Some(_), _) => {
                    ready!(self.timer.poll_at(clock::now() + CAPACITY_POLL_INTERVAL, self.door.runtime(), cx))
                }
                (None, Some(_)) => return Poll::Pending,
                (None, None) => self.over = true,
            }
        }
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        if self.over {
            return (0, Some(0));
        }
        let (at_least, at_most) = self.inputs.as_ref().map_or((0, Some(0)), Stream::size_hint);
        let begun = self.window.outstanding();
        let at_least =
            if self.stop_at_error { at_least.saturating_add(begun).min(1) } else { at_least.saturating_add(begun) };
        (at_least, at_most.and_then(|at_most| at_most.checked_add(begun)))
    }

    /// Starts calls while there are inputs and room for them.
    fn top_up(&mut self, cx: &mut Context<'_>) {
        if let Some(held) = self.held.take() {
            self.send(held);
        }
        while self.held.is_none() && self.window.has_room() {
            let Some(inputs) = &mut self.inputs else { return };
            let input = match Pin::new(inputs).poll_next(cx) {
                Poll::Ready(Some(input)) => input,
                Poll::Ready(None) => {
                    self.inputs = None;
                    return;
                }
                Poll::Pending => return,
            };
            self.window.pull();
            match self.prepare.prepare(input, self.keep_inputs) {
                (kept, Ok(payload)) => self.send(Held { kept, payload, since: None }),
                (kept, Err(failure)) => self.refuse(kept, CallError::from_failure_outside(failure)),
            }
        }
    }

    /// Starts the call for an input, or holds it back when the node has no room.
    fn send(&mut self, held: Held<P::Kept>) {
        let client = match &self.door {
            Door::Here(client) => client,
            Door::Away(away) => {
                let options = self.options.clone().with_deadline(self.window.deadline(clock::now(), self.timeout));
                let calling = (away.call)(held.payload, options);
                // Dropped, the call itself is cancelled; this only tells that it may have run.
                let flight = Flight::patient(Deadline::after(clock::now(), self.timeout), Priority::default());
                flight.enter(Phase::Compute, clock::now());
                let flight = Arc::new(flight);
                return self.begin(held.kept, flight, Work::Away(calling));
            }
        };
        let route = match client.hold(&self.route) {
            Ok(route) => route,
            Err(error) => return self.refuse(held.kept, error),
        };
        let gateway = &client.shared.gateway;
        let bytes = held.payload.size_hint() as u64;
        match gateway.try_admit_at(clock::now(), route, bytes, client.outer.as_ref()) {
            Ok(admission) => self.start(held.kept, held.payload, admission),
            Err(refusal) => {
                let since = held.since.unwrap_or_else(clock::now);
                if refusal.may_pass() && clock::now() < since + self.timeout {
                    self.held = Some(Held { since: Some(since), ..held });
                } else {
                    let error = gateway.refuse(refusal);
                    self.refuse(held.kept, error);
                }
            }
        }
    }

    fn start(&mut self, kept: Option<P::Kept>, payload: Payload, admission: Admission) {
        let now = admission.admitted_at();
        let deadline = self.window.deadline(now, self.timeout);
        let deadline = self.options.deadline_from(now).map_or(deadline, |own| own.min(deadline));
        let flight = Flight::patient(deadline, admission.route().default_priority());
        let flight = Arc::new(flight.admitted(&admission, &self.options));
        let call = AdmittedCall::new(admission, Arc::clone(&flight));
        self.begin(kept, flight, Work::Here(call, payload));
    }

    fn begin(&mut self, kept: Option<P::Kept>, flight: Arc<Flight>, work: Work<Out>) {
        let driver = self.driver.get_or_insert_with(|| Driver::spawn(self.door.runtime()));
        driver.begin(work);
        self.calls.push_back(Call { kept, state: State::Running(AbandonOnDrop(flight)) });
    }

    fn refuse(&mut self, kept: Option<P::Kept>, error: CallError) {
        self.calls.push_back(Call { kept, state: State::Refused(error) });
    }

    /// The outcome of the first call in order. Its time runs from when the consumer waits for it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Out, CallError>> {
        let Some(head) = self.calls.front() else { return Poll::Pending };
        // A consumer that always finds something must not keep the runtime's thread.
        let coop = ready!(coop::poll_proceed(cx));
        let (flight, driver) = match (&head.state, &self.driver) {
            (State::Running(AbandonOnDrop(flight)), Some(driver)) => (flight, driver),
            (State::Refused(error), _) => {
                coop.made_progress();
                return Poll::Ready(Err(error.clone()));
            }
            (State::Running(_), None) => unreachable!("what runs was begun by the driver"),
        };
        if let Poll::Ready(outcome) = driver.poll_first(cx) {
            coop.made_progress();
            return Poll::Ready(outcome);
        }
        let late_at = *self.head_late_at.get_or_insert_with(|| clock::now() + self.timeout);
        ready!(self.timer.poll_at(late_at, self.door.runtime(), cx));
        flight.expire();
        driver.give_up_first();
        let late = CallError::deadline_exceeded("while the stream waited for this result");
        Poll::Ready(Err(flight.told(late, clock::now())))
    }

    /// Takes the head out, lets the next input in, and decides whether the stream goes on.
    fn yield_head(&mut self, outcome: Result<Out, CallError>, cx: &mut Context<'_>) -> Yielded<P::Kept, Out> {
        let kept = self.calls.pop_front().and_then(|mut call| call.kept.take());
        self.head_late_at = None;
        let index = self.window.yield_next();
        match outcome {
            Err(error) if self.stop_at_error => {
                self.end();
                let message = format!("input {index} of the stream: {}", error.message());
                (kept, Err(error.with_message(message)))
            }
            outcome => {
                // Before the consumer goes off with the result: its next input is to be worked on meanwhile.
                self.top_up(cx);
                (kept, outcome)
            }
        }
    }

    /// Cancels what is outstanding, and lets the producer go.
    fn end(&mut self) {
        self.over = true;
        self.calls.clear();
        self.driver = None;
        self.held = None;
        self.inputs = None;
    }
}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for Ordered<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, window, over, .. } = self;
        f.debug_struct("CallStream")
            .field("route", route)
            .field("window", window)
            .field("over", over)
            .finish_non_exhaustive()
    }
}

/// One timer for whatever the stream waits for next; made when it is needed first.
#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready at `at`, or if the timer has passed since it was last asked.
    fn poll_at(&mut self, at: Instant, runtime: &Handle, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| {
            let _runtime = runtime.enter();
            Box::pin(tokio::time::sleep_until(at))
        });
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}
