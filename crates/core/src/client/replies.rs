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

use super::{AdmittedCall, Client, read_output};
use crate::batcher::StageOutcome;
use crate::call::{CallOptions, Flight, Reply, Timing};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::gateway::Admission;
use crate::pipeline::Graph;
use crate::router::Route;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Client {
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
        let admission = self.shared.gateway.admit(route, payload.size_hint() as u64)?;
        Ok(Replies::new(self.submit_streaming(admission, payload, options)))
    }

    /// Runs an admitted call and reads its outputs one by one: for edges.
    #[must_use = "a call runs as its replies are read"]
    pub fn submit_streaming(&self, admission: Admission, payload: Payload, options: CallOptions) -> PayloadReplies {
        let flight = Self::flight_of(&admission, &options);
        let first_by = options.first_item_timeout().map(|timeout| admission.admitted_at() + timeout);
        let route = Arc::clone(admission.route());
        let call = Arc::new(Mutex::new(Some(AdmittedCall::new(admission, Arc::clone(&flight)))));
        let end = self.runtime().spawn(end_at_deadline(Arc::clone(&call), Arc::clone(&flight))).abort_handle();
        let talk = Talk { call, end, route, flight, first_by, phase: Phase::Begin(payload) };
        PayloadReplies(stream::unfold(talk, Talk::next).boxed())
    }
}

/// The outputs of one call, decoded to `Out`.
#[must_use = "a call runs as its replies are read"]
pub struct Replies<Out> {
    /// Gone after an error.
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
        if matches!(item, Some(Err(_))) {
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

/// The outputs of one call, as they are.
#[must_use = "a call runs as its replies are read"]
pub struct PayloadReplies(Pin<Box<dyn Stream<Item = Result<Payload, CallError>> + Send>>);

impl PayloadReplies {
    /// The outputs that another door brings. After an error nothing more is asked of them.
    pub fn new(outputs: impl Stream<Item = Result<Payload, CallError>> + Send + 'static) -> Self {
        Self(outputs.boxed())
    }
}

impl Stream for PayloadReplies {
    type Item = Result<Payload, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl fmt::Debug for PayloadReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadReplies").finish_non_exhaustive()
    }
}

/// The call until it has its outcome, with its permits.
type Open = Arc<Mutex<Option<AdmittedCall>>>;

/// Ends a call when its time is up, whether somebody reads it or not: a reader that does not come back keeps no permit.
async fn end_at_deadline(call: Open, flight: Arc<Flight>) {
    tokio::time::sleep_until(flight.deadline.instant()).await;
    flight.expire();
    close(&call, &Err(late("outcome")));
}

/// Gives the call its outcome and its permits back, unless it has had one.
fn close(call: &Open, outcome: &Result<Reply, CallError>) -> bool {
    let open = call.lock().take();
    open.map(|mut call| call.close(outcome)).is_some()
}

fn late(what: &str) -> CallError {
    CallError::deadline_exceeded(&format!("before the {what} was there"))
}

/// A call in the middle of its answer.
struct Talk {
    call: Open,
    /// The task that waits for its deadline.
    end: AbortHandle,
    route: Arc<Route>,
    flight: Arc<Flight>,
    /// When the first output has to be there.
    first_by: Option<Instant>,
    phase: Phase,
}

enum Phase {
    /// Nothing has been asked for yet.
    Begin(Payload),
    /// The streaming stage is at work. Its outcome comes behind its last output.
    Streaming { outputs: mpsc::Receiver<Payload>, outcome: BoxFuture<StageOutcome>, ended: Option<StageOutcome> },
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
            next = Self::advance(&self.route, &self.flight, &mut self.phase) => next,
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
                let outcome = Ok(Reply { payload: Payload::new(()), timing: Timing::default() });
                if close(&self.call, &outcome) { None } else { self.end(late("outcome")) }
            }
            Err(error) => self.end(error),
        }
    }

    /// The error is the last item. What still runs is given up with it.
    fn end(mut self, error: CallError) -> Option<(Result<Payload, CallError>, Self)> {
        let ended = Err(error.after(self.flight.spent(clock::now())));
        close(&self.call, &ended);
        self.phase = Phase::Over;
        ended.err().map(|error| (Err(error), self))
    }

    /// The next output, or `None` after the last.
    async fn advance(route: &Route, flight: &Arc<Flight>, phase: &mut Phase) -> Result<Option<Payload>, CallError> {
        let steps = route.graph().steps();
        // All steps are before it, where none streams.
        let streams_at = route.streams_at().unwrap_or(steps.len());
        if matches!(phase, Phase::Begin(_))
            && let Phase::Begin(payload) = std::mem::replace(phase, Phase::Ending)
        {
            let head = Graph::run_steps(&steps[..streams_at], payload, flight, clock::now()).await?;
            let Some(stage) = steps.get(streams_at) else { return Ok(Some(head.payload)) };
            *phase = Self::begin_streaming(flight, stage, head.payload)?;
        }
        let Phase::Streaming { outputs, outcome, ended } = phase else { return Ok(None) };
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
        match output {
            Some(output) => {
                let reply = Graph::run_steps(&steps[streams_at + 1..], output, flight, clock::now()).await;
                // The stream has begun, and so has its side effect.
                Ok(Some(reply.map_err(|error| error.after_start(true))?.payload))
            }
            None => {
                let outcome = match ended.take() {
                    Some(outcome) => outcome,
                    None => outcome.await,
                };
                *phase = Phase::Ending;
                outcome.map(|_| None)
            }
        }
    }

    fn begin_streaming(
        flight: &Arc<Flight>,
        stage: &Graph<Arc<crate::batcher::Pool>>,
        payload: Payload,
    ) -> Result<Phase, CallError> {
        let Graph::Stage(pool) = stage else {
            return Err(CallError::new(ErrorKind::Internal, "the streaming step is not a stage"));
        };
        let (sender, outputs) = mpsc::channel(pool.settings().credit().get());
        let (pool, flight) = (Arc::clone(pool), Arc::clone(flight));
        let outcome = Box::pin(async move { pool.submit_streaming(payload, sender, &flight, clock::now()).await });
        Ok(Phase::Streaming { outputs, outcome, ended: None })
    }
}
