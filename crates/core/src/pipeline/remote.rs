//! The seam for stages that run on other nodes: core says what it needs of them, and knows no network.
//!
//! A call stays with the node that admitted it. At each stage that node decides anew where it runs: here, unless it is clearly better
//! elsewhere; and where the one has no room, the other is asked. Stages that stand behind one that leaves, and run elsewhere only, go
//! along. A call that came from another node is never sent on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Account, Data, Payload};
use serde::Serialize;

use super::run::check_time;
use super::{Graph, Pipeline, StreamPipeline};
use crate::call::{CallOptions, Flight, PayloadReplies, Reply, SessionKey};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::gateway::Gateway;
use crate::host::OpaqueHandle;
use crate::id::StageName;
use crate::pool::Pool;
use crate::restart::BackoffPolicy;
use crate::stage::DEFAULT_CREDIT;
use crate::timeline::{NodeFacts, Phase, Timing};

/// How long a call that can wait leaves nodes alone that have no room, behind what they say themselves: longer each time, because it is
/// sent with its whole input, and not all calls for as long.
const ASK_AGAIN: BackoffPolicy =
    BackoffPolicy { initial: Duration::from_millis(5), max: Duration::from_secs(2), jitter: 0.2 };

/// The most that is believed of what they say.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(2);

/// What will be there, or why not.
pub type RemoteFuture<T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>;

/// The other nodes, as a pipeline sees them. A node is given one with [`NodeHandle::join`](crate::NodeHandle::join).
pub trait RemoteStages: fmt::Debug + Send + Sync + 'static {
    /// Where the next call of a stage goes that runs here as well, given how it does here. Asked once per call and stage: it looks at
    /// what it knows, and waits for nothing.
    fn choose(&self, stage: &str, session: Option<SessionKey>, here: &StageLoad) -> StageTarget;

    /// Whether a stage may be called together with the one before it, on whatever node that one is. Not where its node is to be
    /// chosen for its own sake.
    fn can_chain(&self, stage: &str) -> bool;

    /// Whether a node that runs this stage can be reached.
    fn offers(&self, stage: &str) -> bool;

    /// The other nodes, for whoever looks. Those that are none, or do not say, are left out.
    fn peers(&self) -> Vec<PeerDescription> {
        Vec::new()
    }

    /// Runs the first of the call's stages on another node, and as many of those behind it as that node runs as well.
    ///
    /// Its error [is a refusal](CallError::is_refusal) exactly when no node has started the call: then it may still be
    /// run here. Dropping the future cancels the call where it runs.
    fn run(&self, call: StageCall) -> RemoteFuture<StageReply>;

    /// As [`run`](Self::run), where the first stage answers with a stream: ready when its first output is there, or its end. Until then
    /// the same holds for the error, and after that every error is the last item. Dropping the outputs cancels the call.
    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs>;
}

/// Another node, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerDescription {
    /// Where it is looked for.
    pub address: String,
    /// What it calls itself; empty for a node without a name, and while there is no link.
    pub node: String,
    /// How long calls could go there without a break. `None`: they cannot.
    pub linked_for: Option<Duration>,
    /// The stages that it runs for others.
    pub stages: Vec<String>,
}

impl PeerDescription {
    /// A node that is looked for at this address, without a link.
    #[must_use]
    pub fn away(address: impl Into<String>) -> Self {
        Self { address: address.into(), node: String::new(), linked_for: None, stages: Vec::new() }
    }

    /// The same, linked: what it calls itself, for how long, and the stages that it runs.
    #[must_use]
    pub fn linked(mut self, node: impl Into<String>, linked_for: Duration, stages: Vec<String>) -> Self {
        (self.node, self.linked_for, self.stages) = (node.into(), Some(linked_for), stages);
        self
    }
}

/// Where a call of a stage goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTarget {
    /// To another node first.
    pub is_remote: bool,
    /// To a node that runs this revision, wherever that is, as long as there is one.
    pub revision: Option<u64>,
}

/// How a stage does on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageLoad {
    /// It takes calls.
    pub open: bool,
    /// Entries that wait.
    pub queued: usize,
    /// Entries that its replicas take at once.
    pub capacity: usize,
    /// Which revision of it this is; see [`StageSettings::revision`](crate::StageSettings::revision).
    pub revision: u64,
}

/// One call of a stage, and of those behind it, for another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageCall {
    /// The stages in their order, at least one.
    pub stages: Vec<StageName>,
    /// The input of the first.
    pub payload: Payload,
    /// Deadline, priority, session and record of the call. What happens on the other node is not for that record: it is told with
    /// the reply.
    pub options: CallOptions,
    /// They may be run a second time when their outcome is not known. `None`: the node that runs them knows.
    pub may_run_again: Option<bool>,
    /// The node that asks runs the first of them as well, and will where no other has room: there is no need to wait for any.
    pub can_run_here: bool,
    /// It is a call that found room nowhere, once more.
    pub is_retry: bool,
    /// The revision of the first stage that was chosen for this call.
    pub revision: Option<u64>,
    /// How many outputs there is room for, where the first stage streams.
    pub credit: usize,
    payer: Option<Payer>,
}

impl StageCall {
    /// The account of the call on this node, which pays for what an outcome becomes here.
    #[must_use]
    pub fn account(&self) -> Option<Arc<dyn Account>> {
        self.payer.as_ref().map(|Payer(account)| Arc::clone(account))
    }

    /// The first stage.
    #[must_use]
    pub fn stage(&self) -> &str {
        self.stages.first().map_or("", StageName::as_str)
    }
}

/// An account, in what can be printed.
#[derive(Clone)]
struct Payer(Arc<dyn Account>);

impl fmt::Debug for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Payer")
    }
}

/// What stages gave that ran on another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageReply {
    /// The output of the last that ran.
    pub reply: Reply,
    /// How many of the call's stages ran.
    pub stages: usize,
    /// Where, for a call whose options have a record.
    pub node: Option<String>,
    /// Why the next stage did not run there: the caller's error where the output cannot go back.
    pub refused: Option<CallError>,
}

impl StageReply {
    /// The outcome of so many stages.
    #[must_use]
    pub fn new(reply: Reply, stages: usize) -> Self {
        Self { reply, stages, node: None, refused: None }
    }

    /// The same, with the error of the stage behind them, which refused.
    #[must_use]
    pub fn refused_with(mut self, refusal: CallError) -> Self {
        self.refused = Some(refusal);
        self
    }

    /// The same, with the name of the node that ran them.
    #[must_use]
    pub fn with_node(mut self, node: Option<String>) -> Self {
        self.node = node;
        self
    }
}

/// What a streaming stage gives that runs on another node.
#[derive(Debug)]
#[non_exhaustive]
pub struct StageOutputs {
    /// Its outputs, at the pace of whoever asks for them.
    pub outputs: PayloadReplies,
    /// How many of the call's stages each of them has passed.
    pub stages: usize,
}

impl StageOutputs {
    /// The outputs of so many stages.
    #[must_use]
    pub fn new(outputs: PayloadReplies, stages: usize) -> Self {
        Self { outputs, stages }
    }
}

/// The other nodes, as the gateway of this node carries them without their type.
#[derive(Debug)]
pub(crate) struct ClusterHandle(Box<dyn RemoteStages>);

impl ClusterHandle {
    pub(crate) fn new(stages: impl RemoteStages) -> Self {
        Self(Box::new(stages))
    }
}

/// The other nodes, once this node has joined them.
pub(crate) fn remote_stages(gateway: &Gateway) -> Option<&dyn RemoteStages> {
    stages_of(gateway.cluster()?)
}

/// The other nodes, for a call that may leave this one.
fn reachable_by(flight: &Flight) -> Option<&dyn RemoteStages> {
    stages_of(flight.cluster()?)
}

fn stages_of(cluster: &OpaqueHandle) -> Option<&dyn RemoteStages> {
    cluster.downcast_ref::<ClusterHandle>().map(|ClusterHandle(stages)| &**stages)
}

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// A stage of this name that runs on other nodes only. While none is known that runs it, its calls are `Unavailable`. Several in a
    /// row that one node runs are one call to it.
    ///
    /// ```
    /// use callboard_core::{Pipeline, Stage};
    ///
    /// let decode = Stage::each("decode", |text: &String| Ok(text.len()));
    /// let pipeline: Pipeline<String, f32> = Pipeline::from(decode).then(Pipeline::remote("classify"));
    /// assert_eq!(pipeline.to_string(), "decode → ↗classify");
    /// ```
    #[must_use]
    pub fn remote(stage: &str) -> Self {
        Self::of(Graph::Remote(StageName::new(stage)))
    }
}

impl<In: Data, Out: Data> StreamPipeline<In, Out> {
    /// A streaming stage of this name that runs on other nodes only, as [`Pipeline::remote`]. A reader that pauses lets its worker
    /// wait, wherever that is.
    ///
    /// ```
    /// use callboard_core::{Pipeline, Stage, StreamPipeline};
    ///
    /// let tokens = Stage::each("tokens", |text: &String| Ok(text.len()));
    /// let generate = StreamPipeline::<usize, u32>::remote("generate");
    /// let pipeline = Pipeline::from(tokens).then_stream(generate);
    /// assert_eq!(pipeline.to_string(), "tokens → ↗generate");
    /// ```
    #[must_use]
    pub fn remote(stage: &str) -> Self {
        Self::of_one(Graph::Remote(StageName::new(stage)))
    }
}

/// Runs the first of these steps, a stage, here or elsewhere, whichever is better, and where it has no room, the other. Says how many
/// of the steps ran.
pub(super) async fn run_stages(
    steps: &[Graph<Arc<Pool>>],
    payload: Payload,
    flight: &Arc<Flight>,
    now: Instant,
) -> Result<(Reply, usize), CallError> {
    let pool = match steps {
        [Graph::Stage(pool), ..] => pool,
        [Graph::Remote(name), ..] => {
            check_time(flight, now, name.as_str())?;
            let Some(cluster) = reachable_by(flight) else { return Err(nowhere(name)) };
            return leave_patiently(cluster, call_of(steps, payload, flight, None), flight).await;
        }
        _ => return Err(CallError::new(ErrorKind::Internal, "the step is not a stage")),
    };
    let Some(cluster) = reachable_by(flight) else { return here(pool, payload, flight, now).await };
    let name = pool.name();
    let choice = cluster.choose(name.as_str(), flight.session, &load_of(pool));
    let leave = |call| leave(cluster, call, flight);
    if choice.is_remote {
        let call = call_of(steps, payload.clone(), flight, choice.revision);
        // Of all that went, not of the first alone.
        let again = call.may_run_again == Some(true);
        // What a stage has said itself names that stage, and is an outcome.
        let was_lost = |error: &CallError| error.kind() == ErrorKind::Unavailable && error.stage().is_none();
        return match leave(call).await {
            Err(error) if error.is_refusal() || (again && was_lost(&error)) => {
                here(pool, payload, flight, clock::now()).await
            }
            outcome => outcome,
        };
    }
    if !cluster.offers(name.as_str()) {
        return here(pool, payload, flight, now).await;
    }
    match here(pool, payload.clone(), flight, now).await {
        Err(refusal) if refusal.is_refusal() => match leave(call_of(steps, payload, flight, choice.revision)).await {
            // What this node said of itself is what its caller can do something about.
            Err(error) if error.is_refusal() => Err(refusal),
            outcome => outcome,
        },
        outcome => outcome,
    }
}

/// Runs stages on another node, and notes in the call's record that they were there.
async fn leave(cluster: &dyn RemoteStages, call: StageCall, flight: &Flight) -> Result<(Reply, usize), CallError> {
    let record = Away::begin(&call, flight);
    let outcome = cluster.run(call).await;
    let there = outcome.as_ref().ok().and_then(|ran| Some((ran.node.clone()?, ran.reply.timing)));
    record.end(outcome.as_ref().map_or(1, |ran| ran.stages), there);
    outcome.map(|ran| (ran.reply, ran.stages))
}

/// Leaves, and where no node has room for a call that can wait, asks again in a moment: until somebody has, or its time is up.
async fn leave_patiently(
    cluster: &dyn RemoteStages,
    mut call: StageCall,
    flight: &Flight,
) -> Result<(Reply, usize), CallError> {
    if !flight.patient {
        return leave(cluster, call, flight).await;
    }
    let mut attempt = 0_u32;
    loop {
        attempt = attempt.saturating_add(1);
        match leave(cluster, call.clone(), flight).await {
            Err(full) if full.kind() == ErrorKind::Overloaded && full.is_refusal() => {
                call.is_retry = true;
                let said = full.retry_after().unwrap_or_default().min(LONGEST_RETRY_AFTER);
                tokio::time::sleep(said + ASK_AGAIN.delay(attempt, fastrand::f64())).await;
            }
            outcome => return outcome,
        }
    }
}

/// Where a call's time goes while it is on another node. What it does there is told with its outcome; until then it looks like work.
struct Away<'a> {
    flight: &'a Flight,
    began: Instant,
    /// Only where somebody wants a record.
    stages: Vec<StageName>,
    /// The visit of the first of them in that record, if there was room for it.
    visit: Option<usize>,
}

impl<'a> Away<'a> {
    fn begin(call: &StageCall, flight: &'a Flight) -> Self {
        let began = clock::now();
        flight.enter(Phase::Compute, began);
        let stages = flight.recorder().map(|_| call.stages.clone()).unwrap_or_default();
        let visit = flight.recorder().zip(stages.first()).and_then(|(recorder, stage)| recorder.sent(stage, began));
        Self { flight, began, stages, visit }
    }

    /// It is back; so many stages have run, or were tried, on that node and in that time.
    fn end(self, stages: usize, there: Option<(String, Timing)>) {
        let now = clock::now();
        self.flight.enter(Phase::Outside, now);
        let Some(recorder) = self.flight.recorder() else { return };
        for (position, stage) in self.stages.iter().take(stages.max(1)).enumerate() {
            let visit = if position > 0 { recorder.sent(stage, self.began) } else { self.visit };
            if let Some(visit) = visit {
                let there = there
                    .as_ref()
                    .map(|(node, timing)| NodeFacts { node: node.clone(), timing: (position == 0).then_some(*timing) });
                recorder.came_back(visit, now, there);
            }
        }
    }
}

async fn here(
    pool: &Arc<Pool>,
    payload: Payload,
    flight: &Arc<Flight>,
    now: Instant,
) -> Result<(Reply, usize), CallError> {
    let (payload, timing) = pool.submit(payload, flight, now).await?.into_parts();
    Ok((Reply::new(payload, timing), 1))
}

/// Where the stream of this step, a streaming stage, is to begin.
pub(crate) enum StreamPlace {
    /// On this node, and if it has no room, elsewhere where there is somebody, who runs this revision if one was chosen.
    Here { may_leave: bool, revision: Option<u64> },
    /// On another one, and if that does not start it, here where it runs here as well.
    Remote(Option<u64>),
}

/// Where a streaming stage's call goes; see [`run_stages`].
pub(crate) fn place_stream(step: &Graph<Arc<Pool>>, flight: &Flight) -> StreamPlace {
    match (step, reachable_by(flight)) {
        (Graph::Remote(_), _) => StreamPlace::Remote(None),
        (Graph::Stage(pool), Some(cluster)) => {
            let name = pool.name().as_str();
            let choice = cluster.choose(name, flight.session, &load_of(pool));
            match choice.is_remote {
                true => StreamPlace::Remote(choice.revision),
                false => StreamPlace::Here { may_leave: cluster.offers(name), revision: choice.revision },
            }
        }
        _ => StreamPlace::Here { may_leave: false, revision: None },
    }
}

/// Begins the stream of the first of these steps on another node.
pub(crate) async fn stream_remote(
    steps: &[Graph<Arc<Pool>>],
    payload: Payload,
    flight: &Arc<Flight>,
    revision: Option<u64>,
) -> Result<StageOutputs, CallError> {
    match (steps.first(), reachable_by(flight)) {
        (Some(Graph::Remote(name)), None) => Err(nowhere(name)),
        (_, Some(cluster)) => {
            let call = call_of(steps, payload, flight, revision);
            let record = Away::begin(&call, flight);
            let begun = cluster.stream(call).await;
            record.end(begun.as_ref().map_or(1, |begun| begun.stages), None);
            begun
        }
        _ => Err(CallError::new(ErrorKind::Internal, "the step is not a stage")),
    }
}

fn load_of(pool: &Pool) -> StageLoad {
    let capacity = pool.replicas().saturating_mul(pool.policy().max_batch_size.get());
    let (open, revision) = (pool.stage_state().accepts_entries(), pool.settings().revision());
    StageLoad { open, queued: pool.queued(), capacity, revision }
}

/// A call of the first of these steps, and of those right behind it that run elsewhere only.
fn call_of(steps: &[Graph<Arc<Pool>>], payload: Payload, flight: &Flight, revision: Option<u64>) -> StageCall {
    let mut options = CallOptions::new().with_deadline(flight.deadline).with_priority(flight.priority);
    if let Some(session) = flight.session {
        options = options.with_session_key(session);
    }
    if let Some(recorder) = flight.recorder() {
        options = options.with_recorder(recorder.clone());
    }
    options = options.with_origin(flight.origin.clone());
    let (mut stages, mut may_run_again, mut credit) = (Vec::with_capacity(1), None, DEFAULT_CREDIT);
    let can_run_here = matches!(steps.first(), Some(Graph::Stage(_)));
    for (position, step) in steps.iter().enumerate() {
        match step {
            Graph::Stage(pool) if position == 0 => {
                stages.push(pool.name().clone());
                may_run_again = Some(pool.contract().may_run_again());
                credit = pool.settings().credit().get();
            }
            Graph::Remote(name) if position == 0 => stages.push(name.clone()),
            Graph::Remote(name) if reachable_by(flight).is_some_and(|cluster| cluster.can_chain(name.as_str())) => {
                stages.push(name.clone());
                // What this node says of the first says nothing of those behind it.
                may_run_again = may_run_again.filter(|again| !again);
            }
            _ => break,
        }
    }
    let payer = flight.account().map(Payer);
    StageCall { stages, payload, options, may_run_again, can_run_here, is_retry: false, revision, credit, payer }
}

fn nowhere(stage: &StageName) -> CallError {
    let message = format!("no node is known that runs the stage `{stage}`");
    CallError::new(ErrorKind::Unavailable, message).at_stage(stage)
}
