//! The state machine of a stream: pulls inputs, starts their calls, yields the results in the order of the inputs.
//!
//! Inputs are pulled only while the consumer polls. The calls run in a task of their own ([`driver`](super::driver)).

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

use super::attempts::Attempts;
use super::driver::{BoxedCall, Driver};
use super::prepare::Prepare;
use super::window::Window;
use crate::call::{CallOptions, Flight, Priority};
use crate::client::{AdmittedCall, CAPACITY_POLL_INTERVAL, LocalClient};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::router::Admission;
use crate::timeline::Phase;

pub(super) struct Settings<Out> {
    target: CallTarget<Out>,
    pub(super) look_ahead: usize,
    timeout: Duration,
    /// The maximum of the route and the node.
    max_timeout: Duration,
    pub(super) options: CallOptions,
    pub(super) store_inputs: bool,
    pub(super) stop_at_error: bool,
}

/// Where the calls go.
pub(super) enum CallTarget<Out> {
    /// A route of this node. The node admits each call.
    Local { client: LocalClient, route: String },
    /// Another caller, which waits for room by itself.
    Remote { runtime: Handle, call: Box<dyn Fn(Payload, CallOptions) -> BoxedCall<Out> + Send + Sync> },
}

impl<Out> Settings<Out> {
    pub(super) fn new(target: CallTarget<Out>, look_ahead: usize, timeout: Duration, max_timeout: Duration) -> Self {
        Self {
            target,
            look_ahead,
            timeout: timeout.min(max_timeout),
            max_timeout,
            options: CallOptions::new(),
            store_inputs: false,
            stop_at_error: false,
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout.min(self.max_timeout);
    }

    fn runtime(&self) -> &Handle {
        match &self.target {
            CallTarget::Local { client, .. } => client.runtime(),
            CallTarget::Remote { runtime, .. } => runtime,
        }
    }
}

/// A result, and its input if that is stored.
pub(super) type OrderedItem<T, Out> = (Option<T>, Result<Out, CallError>);

pub(super) struct Ordered<S: Stream, Out, P: Prepare<S::Item>> {
    pub(super) settings: Settings<Out>,
    /// `None` after the producer has ended.
    inputs: Option<S>,
    prepare: P,
    window: Window,
    /// The input for which the node has no room.
    waiting: Option<WaitingInput<P::Stored>>,
    calls: VecDeque<OrderedCall<P::Stored>>,
    /// Spawned with the first call.
    driver: Option<Driver<Out>>,
    /// Made with the first call on this node.
    attempts: Option<Arc<Attempts>>,
    timer: StreamTimer,
    /// The time at which the result that the consumer waits for is late.
    late_at: Option<Instant>,
    is_over: bool,
}

/// A prepared input whose call is not admitted yet.
struct WaitingInput<T> {
    stored: Option<T>,
    payload: Payload,
    /// When the node first had no room for it.
    since: Option<Instant>,
}

/// The call of one input, in the order of the inputs.
struct OrderedCall<T> {
    stored: Option<T>,
    state: CallState,
}

enum CallState {
    /// The driver runs it.
    Running(AbandonOnDrop),
    /// The call could not be made.
    Refused(CallError),
}

/// Abandons a call when dropped: none of its work starts any more, even before the runtime drops the driver.
struct AbandonOnDrop(Arc<Flight>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl<S: Stream, Out, P: Prepare<S::Item>> Ordered<S, Out, P> {
    pub(super) fn new(inputs: Option<S>, prepare: P, settings: Settings<Out>) -> Self {
        Self {
            settings,
            inputs,
            prepare,
            window: Window::default(),
            waiting: None,
            calls: VecDeque::new(),
            driver: None,
            attempts: None,
            timer: StreamTimer::default(),
            late_at: None,
            is_over: false,
        }
    }

    /// The same stream with another way to prepare its inputs.
    pub(super) fn with_prepare<Q: Prepare<S::Item>>(self, prepare: Q) -> Ordered<S, Out, Q> {
        Ordered::new(self.inputs, prepare, self.settings)
    }
}

impl<S, Out, P> Ordered<S, Out, P>
where
    S: Stream + Unpin,
    Out: Data + Clone,
    P: Prepare<S::Item>,
{
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OrderedItem<P::Stored, Out>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            self.pull_inputs(cx);
            if !self.calls.is_empty() {
                let outcome = ready!(self.poll_first(cx));
                return Poll::Ready(Some(self.yield_first(outcome, cx)));
            }
            match (&self.waiting, &self.inputs) {
                // Other callers fill the node, and none of their ends wakes this stream.
                (Some(_), _) => {
                    let look_at = clock::now() + CAPACITY_POLL_INTERVAL;
                    ready!(self.timer.poll_at(look_at, self.settings.runtime(), cx));
                }
                (None, Some(_)) => return Poll::Pending,
                (None, None) => self.is_over = true,
            }
        }
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_over {
            return (0, Some(0));
        }
        let (at_least, at_most) = self.inputs.as_ref().map_or((0, Some(0)), Stream::size_hint);
        let outstanding = self.window.outstanding();
        let at_least = at_least.saturating_add(outstanding);
        let at_least = if self.settings.stop_at_error { at_least.min(1) } else { at_least };
        (at_least, at_most.and_then(|at_most| at_most.checked_add(outstanding)))
    }

    /// Pulls inputs and starts their calls while the window and the node have room.
    fn pull_inputs(&mut self, cx: &mut Context<'_>) {
        if let Some(waiting) = self.waiting.take() {
            self.send(waiting);
        }
        while self.waiting.is_none() && self.window.has_room(self.settings.look_ahead) {
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
            match self.prepare.prepare(input, self.settings.store_inputs) {
                (stored, Ok(payload)) => self.send(WaitingInput { stored, payload, since: None }),
                (stored, Err(failure)) => self.refuse(stored, CallError::from_failure_outside(failure)),
            }
        }
    }

    /// Starts the call of an input, or lets it wait if the node has no room.
    fn send(&mut self, input: WaitingInput<P::Stored>) {
        let Settings { target, options, timeout, .. } = &self.settings;
        let (client, target_route) = match target {
            CallTarget::Local { client, route } => (client, route),
            CallTarget::Remote { call, .. } => {
                let now = clock::now();
                let options = options.clone().with_deadline(self.window.deadline(now, *timeout));
                let call = call(input.payload, options);
                // Dropping `call` cancels it. This flight only says in errors that the call may have run.
                let flight = Flight::patient(Deadline::after(now, *timeout), Priority::default());
                flight.enter(Phase::Compute, now);
                return self.start(input.stored, Arc::new(flight), call);
            }
        };
        let route = match client.hold(target_route, options.session()) {
            Ok(route) => route,
            Err(error) => return self.refuse(input.stored, error),
        };
        let gateway = &client.shared.gateway;
        let bytes = input.payload.size_hint() as u64;
        match gateway.try_admit_at(clock::now(), route, bytes, client.outer.as_ref()) {
            Ok(admission) => {
                let attempts = self.attempts.get_or_insert_with(|| {
                    let (client, route) = (client.clone(), target_route.to_owned());
                    let policy = options.retry().unwrap_or_default();
                    Arc::new(Attempts { client, route, options: options.clone(), policy })
                });
                let attempts = Arc::clone(attempts);
                self.start_admitted(input.stored, input.payload, admission, attempts);
            }
            Err(refusal) => {
                let since = input.since.unwrap_or_else(clock::now);
                if refusal.may_pass() && clock::now() < since + *timeout {
                    self.waiting = Some(WaitingInput { since: Some(since), ..input });
                } else {
                    let error = gateway.refuse(refusal);
                    self.refuse(input.stored, error);
                }
            }
        }
    }

    fn start_admitted(
        &mut self,
        stored: Option<P::Stored>,
        payload: Payload,
        admission: Admission,
        attempts: Arc<Attempts>,
    ) {
        let Settings { options, timeout, .. } = &self.settings;
        let now = admission.admitted_at();
        let deadline = self.window.deadline(now, *timeout);
        let deadline = options.deadline_from(now).map_or(deadline, |own| own.min(deadline));
        let flight = Flight::patient(deadline, admission.route().default_priority());
        let flight = Arc::new(flight.admitted(&admission, options));
        let call = AdmittedCall::new(admission, Arc::clone(&flight));
        self.start(stored, flight, Box::pin(attempts.run(call, payload)));
    }

    fn start(&mut self, stored: Option<P::Stored>, flight: Arc<Flight>, call: BoxedCall<Out>) {
        self.driver.get_or_insert_with(|| Driver::spawn(self.settings.runtime())).start(call);
        self.calls.push_back(OrderedCall { stored, state: CallState::Running(AbandonOnDrop(flight)) });
    }

    fn refuse(&mut self, stored: Option<P::Stored>, error: CallError) {
        self.calls.push_back(OrderedCall { stored, state: CallState::Refused(error) });
    }

    /// The result of the first call. Its timeout begins when the consumer waits for it.
    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<Out, CallError>> {
        let Some(first) = self.calls.front() else { return Poll::Pending };
        let (flight, driver) = match (&first.state, &mut self.driver) {
            (CallState::Running(AbandonOnDrop(flight)), Some(driver)) => (flight, driver),
            (CallState::Running(_), None) => unreachable!("the driver runs it"),
            (CallState::Refused(error), _) => {
                // A producer whose inputs are all refused must not occupy the runtime's thread.
                ready!(coop::poll_proceed(cx)).made_progress();
                return Poll::Ready(Err(error.clone()));
            }
        };
        if let Poll::Ready(outcome) = driver.poll_first(cx) {
            return Poll::Ready(outcome);
        }
        let late_at = *self.late_at.get_or_insert_with(|| clock::now() + self.settings.timeout);
        ready!(self.timer.poll_at(late_at, self.settings.runtime(), cx));
        flight.expire();
        driver.cancel_first();
        let late = CallError::deadline_exceeded("while the stream waited for this result");
        Poll::Ready(Err(flight.with_timing(late, clock::now())))
    }

    /// Removes the first call, and pulls the next input unless the stream ends here.
    fn yield_first(&mut self, outcome: Result<Out, CallError>, cx: &mut Context<'_>) -> OrderedItem<P::Stored, Out> {
        let stored = self.calls.pop_front().and_then(|call| call.stored);
        self.late_at = None;
        let index = self.window.yield_next();
        match outcome {
            Err(error) if self.settings.stop_at_error => {
                self.end();
                let message = format!("input {index} of the stream: {}", error.message());
                (stored, Err(error.with_message(message)))
            }
            outcome => {
                // The next call runs while the consumer works on this result.
                self.pull_inputs(cx);
                (stored, outcome)
            }
        }
    }

    /// Cancels the outstanding calls and drops the producer.
    fn end(&mut self) {
        self.is_over = true;
        self.calls.clear();
        self.driver = None;
        self.waiting = None;
        self.inputs = None;
    }
}

impl<S: Stream, Out, P: Prepare<S::Item>> fmt::Debug for Ordered<S, Out, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStream")
            .field("window", &self.window)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

/// The timer of a stream, for its next event. Created on first use.
#[derive(Default)]
struct StreamTimer(Option<Pin<Box<Sleep>>>);

impl StreamTimer {
    /// Ready at `at`, or if the timer has fired since the last poll.
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
