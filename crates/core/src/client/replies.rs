//! The outputs of one call of a streaming route, read one by one.
//!
//! The reader drives its call: an output is passed through what comes behind the streaming stage when it is asked for. Dropping
//! the replies cancels the call.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use callboard_codec::{Data, Payload};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::{AdmittedCall, LocalClient, read_output};
use crate::call::{CallOptions, Flight, PayloadReplies};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::pipeline::{Graph, StageOutputs, StreamPlace, all_may_run_again, place_stream, stream_remote};
use crate::pool::Pool;
use crate::queue::EntryOutcome;
use crate::router::{Admission, HeldRoute, Route};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl LocalClient {
    /// Calls a route and reads its outputs one by one, as they come. A route that does not stream gives one.
    ///
    /// An error is the last item. The deadline covers the whole stream.
    ///
    /// # Errors
    ///
    /// What is clear at once: there is no such route, or the node is full or draining. All else is an item.
    ///
    /// # Cancellation
    ///
    /// Dropping the replies cancels the call.
    pub fn replies<In: Data, Out: Data + Clone>(&self, route: &str, input: In) -> Result<Replies<Out>, CallError> {
        self.replies_with(route, input, CallOptions::new())
    }

    /// Reads a route's outputs one by one, with a deadline or priority of its own.
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
        let payload = Payload::new(input);
        let route = self.hold(route)?;
        let admission = self.let_in(clock::now(), route, payload.size_hint() as u64)?;
        Ok(Replies::new(self.submit_streaming(admission, payload, options)))
    }

    /// Runs an admitted call and reads its outputs one by one: for edges.
    #[must_use = "a call runs as its replies are read"]
    pub fn submit_streaming(&self, admission: Admission, payload: Payload, options: CallOptions) -> PayloadReplies {
        let flight = Self::flight_of(&admission, &options);
        let first_by = options.first_item_timeout().map(|timeout| admission.admitted_at() + timeout);
        let way = Way::Route(Arc::clone(admission.route()));
        self.talk(OpenCall { call: AdmittedCall::new(admission, flight), _held: Vec::new() }, way, first_by, payload)
    }

    /// Runs a call along its way as its outputs are read.
    pub(super) fn talk(&self, call: OpenCall, way: Way, first_by: Option<Instant>, payload: Payload) -> PayloadReplies {
        let flight = Arc::clone(&call.call.flight);
        let call = Arc::new(Mutex::new(Some(call)));
        let end = self.runtime().spawn(end_at_deadline(Arc::clone(&call), Arc::clone(&flight))).abort_handle();
        let talk = Talk { call, end, way, flight, first_by, phase: Phase::Begin(payload) };
        PayloadReplies::new(stream::unfold(talk, Talk::next))
    }
}

/// The outputs of one call, decoded to `Out`.
#[must_use = "a call runs as its replies are read"]
pub struct Replies<Out> {
    /// Gone after the last one, and after an error.
    payloads: Option<PayloadReplies>,
    types: PhantomData<fn() -> Out>,
}

impl<Out: Data + Clone> Replies<Out> {
    /// Reads the payloads of another door as `Out`.
    pub fn new(payloads: PayloadReplies) -> Self {
        Self { payloads: Some(payloads), types: PhantomData }
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
        let item = ready!(payloads.poll_next_unpin(context)).map(|payload| read_output::<Out>(payload?));
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

/// The call until it has its outcome, with its permits.
type Open = Arc<Mutex<Option<OpenCall>>>;

/// A call whose outputs are read, and the routes beside its own that keep its stages: all of them go with its outcome.
pub(super) struct OpenCall {
    pub(super) call: AdmittedCall,
    pub(super) _held: Vec<HeldRoute>,
}

/// Ends a call when its time is up, whether somebody reads it or not: a reader that does not come back keeps no permit.
async fn end_at_deadline(call: Open, flight: Arc<Flight>) {
    tokio::time::sleep_until(flight.deadline.instant()).await;
    flight.expire();
    close(&call, Err(ErrorKind::DeadlineExceeded));
}

/// Gives the call its outcome and its permits back, unless it has had one.
fn close(call: &Open, outcome: Result<(), ErrorKind>) -> bool {
    let open = call.lock().take();
    open.map(|mut open| open.call.close(outcome)).is_some()
}

fn late(what: &str) -> CallError {
    CallError::deadline_exceeded(&format!("before the {what} was there"))
}

/// The steps of a call with a stream in it.
pub(super) enum Way {
    Route(Arc<Route>),
    /// A stage that streams, and those behind it: what another node asked for.
    Stages(Vec<Graph<Arc<Pool>>>),
}

impl Way {
    fn steps(&self) -> &[Graph<Arc<Pool>>] {
        match self {
            Self::Route(route) => route.graph().steps(),
            Self::Stages(steps) => steps,
        }
    }

    /// Where the streaming stage stands; behind all steps where none streams.
    fn streams_at(&self) -> usize {
        match self {
            Self::Route(route) => route.streams_at().unwrap_or_else(|| self.steps().len()),
            Self::Stages(_) => 0,
        }
    }
}

/// A call in the middle of its answer.
struct Talk {
    call: Open,
    /// The task that waits for its deadline.
    end: AbortHandle,
    way: Way,
    flight: Arc<Flight>,
    /// When the first output has to be there.
    first_by: Option<Instant>,
    phase: Phase,
}

enum Phase {
    /// Nothing has been asked for yet.
    Begin(Payload),
    /// The streaming stage is at work. Its outcome comes behind its last output.
    Streaming {
        outputs: mpsc::Receiver<Payload>,
        outcome: BoxFuture<EntryOutcome>,
        ended: Option<EntryOutcome>,
        /// The input again, and the revision that was chosen, while another node may take the call if this one refuses it.
        spare: Option<(Payload, Option<u64>)>,
    },
    /// The streaming stage is at work on another node, and so are those behind it, up to this step.
    Remote { outputs: PayloadReplies, passed: usize },
    /// The last output was given.
    Ending,
    /// The outcome was given.
    Over,
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.end.abort();
        // Not by the task's drop: the runtime comes to that in its own time.
        drop(self.call.lock().take());
    }
}

impl Talk {
    async fn next(mut self) -> Option<(Result<Payload, CallError>, Self)> {
        if matches!(self.phase, Phase::Over) {
            return None;
        }
        if self.call.lock().is_none() {
            return self.end(late("outcome"));
        }
        let deadline = self.flight.deadline.instant();
        let due = self.first_by.map_or(deadline, |first_by| first_by.min(deadline));
        let next = tokio::select! {
            biased;
            next = Self::advance(&self.way, &self.flight, &mut self.phase) => next,
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

    /// The error is the last item. What still runs is given up with it.
    fn end(mut self, error: CallError) -> Option<(Result<Payload, CallError>, Self)> {
        let error = self.flight.told(error, clock::now());
        close(&self.call, Err(error.kind()));
        self.phase = Phase::Over;
        Some((Err(error), self))
    }

    /// The next output, or `None` after the last.
    async fn advance(way: &Way, flight: &Arc<Flight>, phase: &mut Phase) -> Result<Option<Payload>, CallError> {
        let steps = way.steps();
        let streams_at = way.streams_at();
        if matches!(phase, Phase::Begin(_))
            && let Phase::Begin(payload) = std::mem::replace(phase, Phase::Ending)
        {
            let head = Graph::run_steps(&steps[..streams_at], payload, flight, clock::now()).await?;
            if streams_at == steps.len() {
                return Ok(Some(head.payload));
            }
            let begun = Self::begin_streaming(flight, &steps[streams_at..], head.payload).await;
            *phase =
                begun.map_err(|error| error.after_runs(streams_at > 0, all_may_run_again(&steps[..streams_at])))?;
        }
        let (output, passed) = loop {
            match phase {
                Phase::Streaming { outputs, outcome, ended, spare } => match next_here(outputs, outcome, ended).await {
                    Ok(output) => {
                        *spare = None;
                        break (output, 1);
                    }
                    // Refused before it began. What this node said of itself is what its caller can do something about.
                    Err(refusal) => match spare.take().filter(|_| refusal.is_refusal()) {
                        None => return Err(refusal),
                        Some((payload, revision)) => {
                            match stream_remote(&steps[streams_at..], payload, flight, revision).await {
                                Err(error) if error.is_refusal() => return Err(refusal),
                                begun => *phase = elsewhere(begun?),
                            }
                        }
                    },
                },
                Phase::Remote { outputs, passed } => match outputs.next().await {
                    Some(output) => break (Some(output?), *passed),
                    None => break (None, *passed),
                },
                Phase::Begin(_) | Phase::Ending | Phase::Over => return Ok(None),
            }
        };
        let Some(output) = output else {
            *phase = Phase::Ending;
            return Ok(None);
        };
        let reply = Graph::run_steps(&steps[streams_at + passed..], output, flight, clock::now()).await;
        // The stream has begun, and so has its side effect.
        Ok(Some(reply.map_err(|error| error.after_start(true))?.payload))
    }

    /// Begins the stream of the first step, here or elsewhere.
    async fn begin_streaming(
        flight: &Arc<Flight>,
        steps: &[Graph<Arc<Pool>>],
        payload: Payload,
    ) -> Result<Phase, CallError> {
        let pool = match &steps[0] {
            Graph::Stage(pool) => Some(pool),
            _ => None,
        };
        let spare = match place_stream(&steps[0], flight) {
            StreamPlace::Remote(revision) => {
                let begun = stream_remote(steps, payload.clone(), flight, revision).await;
                match begun {
                    Err(error) if error.is_refusal() && pool.is_some() => None,
                    begun => return begun.map(elsewhere),
                }
            }
            StreamPlace::Here { may_leave, revision } => may_leave.then(|| (payload.clone(), revision)),
        };
        let Some(pool) = pool else {
            return Err(CallError::new(ErrorKind::Internal, "the streaming step is not a stage"));
        };
        let (sender, outputs) = mpsc::channel(pool.settings().credit().get());
        let (pool, flight) = (Arc::clone(pool), Arc::clone(flight));
        let outcome = Box::pin(async move { pool.submit_streaming(payload, sender, &flight, clock::now()).await });
        Ok(Phase::Streaming { outputs, outcome, ended: None, spare })
    }
}

fn elsewhere(begun: StageOutputs) -> Phase {
    Phase::Remote { outputs: begun.outputs, passed: begun.stages }
}

/// The next output of a stage on this node, or `None` after the last.
async fn next_here(
    outputs: &mut mpsc::Receiver<Payload>,
    outcome: &mut BoxFuture<EntryOutcome>,
    ended: &mut Option<EntryOutcome>,
) -> Result<Option<Payload>, CallError> {
    let output = loop {
        tokio::select! {
            biased;
            output = outputs.recv() => break output,
            outcome = &mut *outcome, if ended.is_none() => {
                // A thread that does not come back may hold the other end; what it sent before is still read.
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
