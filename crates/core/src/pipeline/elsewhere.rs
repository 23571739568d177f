//! The seam for stages that run on other nodes: core says what it needs of them, and knows no network.
//!
//! A call stays with the node that admitted it. At each stage that node decides anew where it runs: here, unless it is clearly better
//! elsewhere; and where the one has no room, the other is asked. A call that came from another node is never sent on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::{Graph, Pipeline};
use crate::batcher::Pool;
use crate::call::{CallOptions, Flight, Reply};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::id::StageName;
use crate::timeline::Phase;

/// The other nodes, as a pipeline sees them. A node is given one with [`NodeHandle::join`](crate::NodeHandle::join).
pub trait Elsewhere: fmt::Debug + Send + Sync + 'static {
    /// Whether the next call of this stage should leave, given how the stage does here. Asked once per call and stage: it looks at what
    /// it knows, and waits for nothing.
    fn is_better(&self, stage: &str, here: &StageLoad) -> bool;

    /// Whether a node that runs this stage can be reached.
    fn offers(&self, stage: &str) -> bool;

    /// Runs a stage on another node.
    ///
    /// Its error [is retryable](CallError::is_retryable) exactly when no node has started the call: then it may still be run here.
    /// Dropping the future cancels the call where it runs.
    fn run(&self, call: StageCall) -> Pin<Box<dyn Future<Output = Result<Reply, CallError>> + Send>>;
}

/// How a stage does on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageLoad {
    /// It takes calls.
    pub open: bool,
    /// Entries that wait.
    pub queued: usize,
    /// Entries that its replicas take at once.
    pub capacity: usize,
}

/// One call of one stage, for another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageCall {
    /// The stage.
    pub stage: StageName,
    /// Its input.
    pub payload: Payload,
    /// Deadline, priority and session of the call.
    pub options: CallOptions,
    /// It may be run a second time when its outcome is not known. `None`: the node that runs the stage knows.
    pub may_run_again: Option<bool>,
}

/// Behind one thin pointer, because every call carries it.
#[derive(Debug)]
pub(crate) struct Beyond(pub(crate) Box<dyn Elsewhere>);

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// A stage of this name that runs on other nodes only. While none is known that runs it, its calls are `Unavailable`.
    ///
    /// ```
    /// use callboard_core::{Pipeline, Stage};
    ///
    /// let decode = Stage::each("decode", |text: &String| Ok(text.len()));
    /// let pipeline: Pipeline<String, f32> = Pipeline::from(decode).then(Pipeline::elsewhere("classify"));
    /// assert_eq!(pipeline.to_string(), "decode → <classify>");
    /// ```
    #[must_use]
    pub fn elsewhere(stage: &str) -> Self {
        let name = StageName::new(stage);
        let ask = Arc::new(move |payload, flight: Arc<Flight>| {
            let name = name.clone();
            let asking: Pin<Box<dyn Future<Output = Result<Payload, CallError>> + Send>> = Box::pin(async move {
                let Some(beyond) = &flight.beyond else { return Err(nowhere(&name)) };
                leave(&*beyond.0, call_of(&name, payload, &flight, None), &flight).await.map(|reply| reply.payload)
            });
            asking
        });
        Self::of(Graph::Ask { name: stage.into(), ask })
    }
}

/// Runs a stage here or elsewhere, whichever is better, and where it has no room, the other.
pub(super) async fn run_stage(
    pool: &Arc<Pool>,
    payload: Payload,
    flight: &Arc<Flight>,
    now: Instant,
) -> Result<Reply, CallError> {
    let Some(beyond) = &flight.beyond else { return here(pool, payload, flight, now).await };
    let (name, elsewhere) = (pool.name(), &beyond.0);
    let may_run_again = Some(pool.contract().may_run_again());
    let leave = |payload| leave(&**elsewhere, call_of(name, payload, flight, may_run_again), flight);
    if elsewhere.is_better(name.as_str(), &load_of(pool)) {
        let outcome = leave(payload.clone()).await;
        return match outcome {
            Err(error)
                if error.is_retryable() || (may_run_again == Some(true) && error.kind() == ErrorKind::Unavailable) =>
            {
                here(pool, payload, flight, clock::now()).await
            }
            outcome => outcome,
        };
    }
    if !elsewhere.offers(name.as_str()) {
        return here(pool, payload, flight, now).await;
    }
    match here(pool, payload.clone(), flight, now).await {
        Err(refusal) if refusal.is_retryable() => match leave(payload).await {
            // What this node said of itself is what its caller can do something about.
            Err(error) if error.is_retryable() => Err(refusal),
            outcome => outcome,
        },
        outcome => outcome,
    }
}

/// Runs a stage on another node, and notes in the call's record that it was there.
async fn leave(elsewhere: &dyn Elsewhere, call: StageCall, flight: &Flight) -> Result<Reply, CallError> {
    let now = clock::now();
    // What it does there is told with its outcome; until then it looks like work.
    flight.enter(Phase::Compute, now);
    let recorder = flight.recorder.as_ref().map(|recorder| (recorder, call.stage.clone()));
    if let Some((recorder, stage)) = &recorder {
        recorder.sent(stage, now);
    }
    let outcome = elsewhere.run(call).await;
    let now = clock::now();
    flight.enter(Phase::Outside, now);
    if let Some((recorder, stage)) = &recorder {
        recorder.came_back(stage, now);
    }
    outcome
}

async fn here(pool: &Arc<Pool>, payload: Payload, flight: &Arc<Flight>, now: Instant) -> Result<Reply, CallError> {
    let (payload, timing) = pool.submit(payload, flight, now).await?.into_parts();
    Ok(Reply::new(payload, timing))
}

fn load_of(pool: &Pool) -> StageLoad {
    let capacity = pool.replicas().saturating_mul(pool.policy().max_batch_size.get());
    StageLoad { open: pool.state().0.accepts_entries(), queued: pool.queued(), capacity }
}

fn call_of(stage: &StageName, payload: Payload, flight: &Flight, may_run_again: Option<bool>) -> StageCall {
    let mut options = CallOptions::new().with_deadline(flight.deadline).with_priority(flight.priority);
    if let Some(session) = flight.session {
        options = options.with_session_key(session);
    }
    StageCall { stage: stage.clone(), payload, options, may_run_again }
}

fn nowhere(stage: &StageName) -> CallError {
    let message = format!("no node is known that runs the stage `{stage}`");
    CallError::new(ErrorKind::Unavailable, message).at_stage(stage)
}
