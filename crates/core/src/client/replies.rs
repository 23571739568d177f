//! The outputs of one call of a streaming route, read one by one.
//!
//! The reader drives its call: each output passes the steps after the streaming stage when the reader polls for it.
//! Dropping the replies cancels the call.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use callboard_codec::{Data, Payload};
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::{AdmittedCall, LocalClient, read_output};
use crate::call::{CallOptions, Flight, NodeElsewhere, PayloadReplies};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};
use crate::id::RouteName;
use crate::pipeline::{Graph, StageStep, StreamPlace, may_repeat, place_stream, stream_remote, was_lost};
use crate::pool::Pool;
use crate::queue::EntryOutcome;
use crate::remote::StageOutputs;
use crate::router::{Admission, HeldRoute, Route};

impl LocalClient {
    /// Calls a route and reads its outputs one by one, as they arrive. A route that does not stream gives one output.
    ///
    /// An error is the last item. The deadline covers the whole stream.
    ///
    /// # Errors
    ///
    /// Errors that are known at once: no such route, a full or draining node. All other errors are items.
    ///
    /// # Cancellation
    ///
    /// Dropping the replies cancels the call.
    pub fn replies<In: Data, Out: Data + Clone>(&self, route: &str, input: In) -> Result<Replies<Out>, CallError> {
        self.replies_with(route, input, CallOptions::new())
    }

    /// Reads a route's outputs one by one, with options such as a deadline or a priority.
    ///
    /// # Errors
    ///
    /// As [`replies`](Self::replies).
    pub fn replies_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Replies<Out>, CallError> {
        let (admission, payload, options) = self.admit_replies(route, Payload::new(input), options)?;
        let route = admission.route().id().clone();
        Ok(Replies::new(route, self.read_replies(admission, payload, options)))
    }

    /// As [`replies_with`](Self::replies_with), with payloads: nothing is converted.
    pub(crate) fn payload_replies(
        &self,
        route: &str,
        payload: Payload,
        options: CallOptions,
    ) -> Result<PayloadReplies, CallError> {
        let (admission, payload, options) = self.admit_replies(route, payload, options)?;
        Ok(self.read_replies(admission, payload, options))
    }

    fn admit_replies(
        &self,
        route: &str,
        payload: Payload,
        options: CallOptions,
    ) -> Result<(Admission, Payload, CallOptions), CallError> {
        let held = self.hold(route, options.session())?;
        let options = held.with_called_path(route, options);
        Ok((self.let_in(clock::now(), held, payload.size_hint() as u64)?, payload, options))
    }

    /// Runs an admitted call. The reader of its outputs drives it.
    pub(crate) fn read_replies(&self, admission: Admission, payload: Payload, options: CallOptions) -> PayloadReplies {
        self.read_replies_until(Admission::latest_deadline, admission, payload, options)
    }

    /// The same for a call whose deadline is at most this one.
    pub(crate) fn read_replies_until(
        &self,
        latest: fn(&Admission) -> Deadline,
        admission: Admission,
        payload: Payload,
        options: CallOptions,
    ) -> PayloadReplies {
        let flight = Arc::new(Self::new_flight(&admission, &options, latest));
        let first_by = options.first_item_timeout().map(|timeout| admission.admitted_at() + timeout);
        let steps = CallSteps::Route(Arc::clone(admission.route()));
        self.read_steps(
            OpenCall { call: AdmittedCall::new(admission, flight), _held: Vec::new() },
            steps,
            first_by,
            payload,
        )
    }

    /// Runs a call along its steps. The reader of its outputs drives it.
    pub(crate) fn read_steps(
        &self,
        call: OpenCall,
        steps: CallSteps,
        first_by: Option<Instant>,
        payload: Payload,
    ) -> PayloadReplies {
        let flight = Arc::clone(&call.call.flight);
        let call = Arc::new(Mutex::new(Some(call)));
        let end = self.runtime().spawn(end_at_deadline(Arc::clone(&call), Arc::clone(&flight))).abort_handle();
        let phase = match steps.elsewhere(&flight) {
            Some((node, route)) => StreamPhase::Remote { outputs: node.calls.replies(route, payload), passed: 0 },
            None => StreamPhase::Begin(payload),
        };
        let declared = match &steps {
            CallSteps::Route(route) => route.response().cloned(),
            CallSteps::Stages(_) => None,
        };
        let stream = ReplyStream { call, end, steps, flight: Arc::clone(&flight), first_by, phase };
        PayloadReplies::of_call(&flight, declared, stream::unfold(stream, ReplyStream::next))
    }
}

/// The outputs of one call, decoded to `Out`.
#[must_use = "a call runs as its replies are read"]
pub struct Replies<Out> {
    /// `None` after the last output, and after an error.
    payloads: Option<PayloadReplies>,
    /// For errors.
    route: RouteName,
    types: PhantomData<fn() -> Out>,
}

impl<Out: Data + Clone> Replies<Out> {
    /// Reads the payloads of an edge or network client as `Out`; errors name the route.
    pub fn new(route: impl Into<RouteName>, payloads: PayloadReplies) -> Self {
        Self { payloads: Some(payloads), route: route.into(), types: PhantomData }
    }

    /// The next output. `None` after the last one, and after an error.
    pub async fn next(&mut self) -> Option<Result<Out, CallError>> {
        StreamExt::next(self).await
    }
}

impl<Out: Data + Clone> Stream for Replies<Out> {
    type Item = Result<Out, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(payloads) = &mut self.payloads else { return Poll::Ready(None) };
        let payload = ready!(payloads.poll_next_unpin(context));
        let item = payload.map(|payload| read_output::<Out>(self.route.as_str(), payload?));
        if !matches!(item, Some(Ok(_))) {
            self.payloads = None;
        }
        Poll::Ready(item)
    }
}

impl<Out> fmt::Debug for Replies<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").finish_non_exhaustive()
    }
}

/// The call and its permits, until it has its outcome.
type SharedCall = Arc<Mutex<Option<OpenCall>>>;

/// A call with a reader, and the further routes that keep its stages. All are dropped with its outcome.
pub(crate) struct OpenCall {
    pub(crate) call: AdmittedCall,
    pub(crate) _held: Vec<HeldRoute>,
}

/// Ends a call at its deadline, even if its reader has stopped polling: the reader must not keep the permit.
async fn end_at_deadline(call: SharedCall, flight: Arc<Flight>) {
    tokio::time::sleep_until(flight.deadline.instant()).await;
    flight.expire();
    close(&call, Err(ErrorKind::DeadlineExceeded));
}

/// Gives the call its outcome and frees its permits, unless it already has an outcome.
fn close(call: &SharedCall, outcome: Result<(), ErrorKind>) -> bool {
    let open = call.lock().take();
    open.map(|mut open| open.call.close(outcome)).is_some()
}

fn late(what: &str) -> CallError {
    CallError::deadline_exceeded(&format!("before the {what} was there"))
}

/// The steps of a call with a streaming stage.
pub(crate) enum CallSteps {
    Route(Arc<Route>),
    /// A streaming stage and the stages after it, called by another node.
    Stages(Vec<Graph<Arc<Pool>>>),
}

impl CallSteps {
    fn steps(&self) -> &[Graph<Arc<Pool>>] {
        match self {
            Self::Route(route) => route.graph().steps(),
            Self::Stages(steps) => steps,
        }
    }

    /// The position of the streaming stage; after all steps if no stage streams.
    fn streams_at(&self) -> usize {
        match self {
            Self::Route(route) => route.streams_at().unwrap_or_else(|| self.steps().len()),
            Self::Stages(_) => 0,
        }
    }

    /// The node in another process that has the route, and its name there.
    fn elsewhere<'a>(&'a self, flight: &'a Flight) -> Option<(&'a NodeElsewhere, &'a str)> {
        let Self::Route(route) = self else { return None };
        flight.node_elsewhere().filter(|_| route.is_elsewhere()).map(|node| (node, route.name()))
    }
}

/// A call whose outputs are being read.
struct ReplyStream {
    call: SharedCall,
    /// The task that ends the call at its deadline.
    end: AbortHandle,
    steps: CallSteps,
    flight: Arc<Flight>,
    /// The time by which the first output is due.
    first_by: Option<Instant>,
    phase: StreamPhase,
}

enum StreamPhase {
    /// The reader has not polled yet.
    Begin(Payload),
    /// The streaming stage runs on this node. Its outcome comes after its last output.
    Streaming {
        outputs: mpsc::Receiver<Payload>,
        outcome: BoxFuture<'static, EntryOutcome>,
        ended: Option<EntryOutcome>,
        /// The input and the chosen revision, kept while another node may take the call after a refusal here.
        spare: Option<(Payload, Option<u64>)>,
    },
    /// The streaming stage and the next stages, `passed` in all, run on another node.
    Remote { outputs: PayloadReplies, passed: usize },
    /// The last output was given.
    Ending,
    /// The outcome was given.
    Over,
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        self.end.abort();
        // At once, because the runtime drops an aborted task later.
        drop(self.call.lock().take());
    }
}

impl ReplyStream {
    async fn next(mut self) -> Option<(Result<Payload, CallError>, Self)> {
        if matches!(self.phase, StreamPhase::Over) {
            return None;
        }
        if self.call.lock().is_none() {
            return self.end(late("outcome"));
        }
        let deadline = self.flight.deadline.instant();
        let due = self.first_by.map_or(deadline, |first_by| first_by.min(deadline));
        let next = tokio::select! {
            biased;
            next = Self::advance(&self.steps, &self.flight, &mut self.phase) => next,
            () = tokio::time::sleep_until(due) => {
                Err(late(if self.first_by.is_some() { "first output" } else { "outcome" }))
            }
        };
        match next {
            Ok(Some(payload)) => {
                self.first_by = None;
                Some((Ok(payload), self))
            }
            Ok(None) => {
                if close(&self.call, Ok(())) {
                    None
                } else {
                    self.end(late("outcome"))
                }
            }
            Err(error) => self.end(error),
        }
    }

    /// The error is the last item. Stages that still run are cancelled.
    fn end(mut self, error: CallError) -> Option<(Result<Payload, CallError>, Self)> {
        let error = self.flight.with_timing(error, clock::now());
        close(&self.call, Err(error.kind()));
        self.phase = StreamPhase::Over;
        Some((Err(error), self))
    }

    /// The next output, or `None` after the last.
    async fn advance(
        call_steps: &CallSteps,
        flight: &Arc<Flight>,
        phase: &mut StreamPhase,
    ) -> Result<Option<Payload>, CallError> {
        let steps = call_steps.steps();
        let streams_at = call_steps.streams_at();
        let first = steps.get(streams_at).and_then(Graph::stage_step);
        if matches!(phase, StreamPhase::Begin(_))
            && let StreamPhase::Begin(payload) = std::mem::replace(phase, StreamPhase::Ending)
        {
            let head = Graph::run_steps(&steps[..streams_at], payload, flight, clock::now()).await?;
            let Some(first) = first else { return Ok(Some(head.payload)) };
            let started = Self::begin_streaming(flight, first, &steps[streams_at..], head.payload).await;
            *phase =
                started.map_err(|error| error.after_runs(streams_at > 0, may_repeat(&steps[..streams_at], flight)))?;
        }
        let (output, passed) = loop {
            match phase {
                StreamPhase::Streaming { outputs, outcome, ended, spare } => {
                    match next_here(outputs, outcome, ended).await {
                        Ok(output) => {
                            *spare = None;
                            break (output, 1);
                        }
                        // Refused before its start: the caller gets the refusal of this node, which it can act on.
                        Err(refusal) => match spare.take().filter(|_| refusal.is_refusal()) {
                            None => return Err(refusal),
                            Some((payload, revision)) => {
                                match stream_remote(&steps[streams_at..], payload, flight, revision).await {
                                    Err(error) if error.is_refusal() => return Err(refusal),
                                    started => *phase = remote_phase(started?),
                                }
                            }
                        },
                    }
                }
                StreamPhase::Remote { outputs, passed } => match outputs.next().await {
                    Some(output) => break (Some(output?), *passed),
                    None => break (None, *passed),
                },
                StreamPhase::Begin(_) | StreamPhase::Ending | StreamPhase::Over => return Ok(None),
            }
        };
        let Some(output) = output else {
            *phase = StreamPhase::Ending;
            return Ok(None);
        };
        let reply = Graph::run_steps(&steps[streams_at + passed..], output, flight, clock::now()).await;
        // The stream has begun, so its side effects may have happened.
        Ok(Some(reply.map_err(|error| error.after_start(true))?.payload))
    }

    /// Begins the stream of a stage, on this node or on another. `steps` begin with the stage.
    async fn begin_streaming(
        flight: &Arc<Flight>,
        stage: StageStep<'_>,
        steps: &[Graph<Arc<Pool>>],
        payload: Payload,
    ) -> Result<StreamPhase, CallError> {
        let (pool, spare) = match place_stream(stage, flight) {
            StreamPlace::Remote { revision, pool } => {
                match (stream_remote(steps, payload.clone(), flight, revision).await, pool) {
                    (Err(error), Some(pool)) if error.is_refusal() || was_lost(&error) => (pool, None),
                    (started, _) => return started.map(remote_phase),
                }
            }
            StreamPlace::Here { pool, may_leave, revision } => (pool, may_leave.then(|| (payload.clone(), revision))),
        };
        let (sender, outputs) = mpsc::channel(pool.settings().credit().get());
        let (pool, flight) = (Arc::clone(pool), Arc::clone(flight));
        let outcome = Box::pin(async move { pool.submit_streaming(payload, sender, &flight, clock::now()).await });
        Ok(StreamPhase::Streaming { outputs, outcome, ended: None, spare })
    }
}

fn remote_phase(started: StageOutputs) -> StreamPhase {
    StreamPhase::Remote { outputs: started.outputs, passed: started.stages }
}

/// The next output of a stage on this node, or `None` after the last.
async fn next_here(
    outputs: &mut mpsc::Receiver<Payload>,
    outcome: &mut BoxFuture<'static, EntryOutcome>,
    ended: &mut Option<EntryOutcome>,
) -> Result<Option<Payload>, CallError> {
    let output = loop {
        tokio::select! {
            biased;
            output = outputs.recv() => break output,
            outcome = &mut *outcome, if ended.is_none() => {
                // A thread that hangs may hold the other end; its earlier outputs are still read.
                outputs.close();
                *ended = Some(outcome);
            }
        }
    };
    if output.is_some() {
        return Ok(output);
    }
    let outcome = match ended.take() {
        Some(outcome) => outcome,
        None => outcome.await,
    };
    outcome.map(|_| None)
}
