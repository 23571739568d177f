//! The interface to stages on other nodes: core defines its needs and knows no network.
//!
//! A call stays with the node that admitted it. That node decides at each stage where the stage runs, and where it runs
//! if that fails. A *refusal* was not started: no peer, a full or draining one. A *loss* may have run, on a connection
//! that was lost; it counts here only if the stage may run again.
//!
//! | the stage runs | the cluster prefers | first | after a refusal | after a loss |
//! |---|---|---|---|---|
//! | on this node only | – | here | the refusal | – |
//! | on other nodes only | – | there | the refusal; a call that waits for capacity asks again | the error |
//! | on both | another node | there | here | here |
//! | on both | this node | here | there; if it refuses too, the refusal of this node | the error |
//!
//! [`run_stages`] and [`place_stream`] are this table. "There" means one peer after the other, as the cluster chooses.
//!
//! Remote stages that follow each other run as one call where the cluster can chain them. A call that came from another
//! node is never sent on.

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

/// How long a call that waits for capacity pauses before it asks again, in addition to the retry time of the refusal.
/// The pause grows, because each attempt sends the whole input, and has jitter, so that calls do not return in step.
const ASK_AGAIN: BackoffPolicy =
    BackoffPolicy { initial: Duration::from_millis(5), max: Duration::from_secs(2), jitter: 0.2 };

/// The longest retry time of another node that is respected.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The outcome of a call to another node.
pub type RemoteFuture<T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>;

/// The stages on other nodes, as a pipeline sees them. A node gets its cluster with
/// [`NodeHandle::join`](crate::NodeHandle::join).
pub trait RemoteStages: fmt::Debug + Send + Sync + 'static {
    /// The target of the next call of a stage that also runs on this node, given its load here. Called once per call
    /// and stage: it must not block.
    fn choose(&self, stage: &str, session: Option<SessionKey>, here: &StageLoad) -> StageTarget;

    /// Whether a stage may run in one call with the stage before it, on the same node. False if its node must be chosen
    /// for this stage alone.
    fn can_chain(&self, stage: &str) -> bool;

    /// Whether a node that runs this stage can be reached.
    fn offers(&self, stage: &str) -> bool;

    /// Whether a call of this stage may run a second time wherever it runs: every node that runs it says so. False if
    /// no such node can be reached.
    fn may_run_again(&self, stage: &str) -> bool {
        let _ = stage;
        false
    }

    /// The other nodes, for descriptions. A cluster that knows none returns an empty list.
    fn peers(&self) -> Vec<PeerDescription> {
        Vec::new()
    }

    /// Runs the first of the call's stages on another node, and as many of the next stages as that node also runs.
    ///
    /// Its error [is a refusal](CallError::is_refusal) exactly when no node has started the call: then it may still be
    /// run here. Dropping the future cancels the call where it runs.
    fn run(&self, call: StageCall) -> RemoteFuture<StageReply>;

    /// As [`run`](Self::run), if the first stage answers with a stream: ready with its first output, or with its end.
    /// Until then the error is as for `run`; later an error is the last item. Dropping the outputs cancels the call.
    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs>;
}

/// Another node, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerDescription {
    /// Its address.
    pub address: String,
    /// Its name; empty for a node without a name, and without a connection.
    pub node: String,
    /// The age of the connection; `None` without one.
    pub connected_for: Option<Duration>,
    /// The stages that it runs for other nodes.
    pub stages: Vec<String>,
}

impl PeerDescription {
    /// A node at this address without a connection.
    #[must_use]
    pub fn disconnected(address: impl Into<String>) -> Self {
        Self { address: address.into(), node: String::new(), connected_for: None, stages: Vec::new() }
    }

    /// The same node with a connection: its name, the age of the connection, and its stages.
    #[must_use]
    pub fn connected(mut self, node: impl Into<String>, connected_for: Duration, stages: Vec<String>) -> Self {
        (self.node, self.connected_for, self.stages) = (node.into(), Some(connected_for), stages);
        self
    }
}

/// The target of a stage's call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTarget {
    /// Whether the call goes to another node first.
    pub is_remote: bool,
    /// The revision for the call, while any node runs that revision.
    pub revision: Option<u64>,
}

/// The load of a stage on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageLoad {
    /// Whether the stage takes calls.
    pub open: bool,
    /// Waiting entries.
    pub queued: usize,
    /// The number of entries that its replicas run at once.
    pub capacity: usize,
    /// Its revision; see [`StageSettings::revision`](crate::StageSettings::revision).
    pub revision: u64,
}

/// One call of a stage and of the stages after it, for another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageCall {
    /// The stages in their order, at least one.
    pub stages: Vec<StageName>,
    /// The input of the first.
    pub payload: Payload,
    /// Deadline, priority, session and record of the call. The other node does not write that record: its part comes
    /// with the reply.
    pub options: CallOptions,
    /// False if the first stage also runs on this node, with a contract that forbids a second run: then no other node
    /// may run it again.
    pub may_run_again: bool,
    /// The calling node also runs the first stage, and will if no other node has capacity: do not wait for capacity.
    pub can_run_here: bool,
    /// The call was refused everywhere before, and this is a retry.
    pub is_retry: bool,
    /// The revision of the first stage that was chosen for this call.
    pub revision: Option<u64>,
    /// The maximum count of outputs in flight, if the first stage streams.
    pub credit: usize,
    flight: Arc<Flight>,
}

impl StageCall {
    /// The account of the call on this node: decoding of the outcome is charged to it.
    #[must_use]
    pub fn account(&self) -> Option<Arc<dyn Account>> {
        self.flight.account()
    }

    /// Notes that a node may have run stages that it must not run twice: errors of the call then say that it may not be
    /// repeated.
    pub fn set_ran_once(&self) {
        self.flight.set_ran_once();
    }

    /// The first stage.
    #[must_use]
    pub fn stage(&self) -> &str {
        self.stages.first().map_or("", StageName::as_str)
    }
}

/// The outcome of stages that ran on another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageReply {
    /// The output of the last stage that ran.
    pub reply: Reply,
    /// The number of the call's stages that ran.
    pub stages: usize,
    /// The node that ran them, if the call's options have a record.
    pub node: Option<String>,
    /// Why the next stage did not run there: the caller's error if the output cannot go back.
    pub refused: Option<CallError>,
}

impl StageReply {
    /// The outcome of this number of stages.
    #[must_use]
    pub fn new(reply: Reply, stages: usize) -> Self {
        Self { reply, stages, node: None, refused: None }
    }

    /// Adds the error of the next stage, which refused.
    #[must_use]
    pub fn refused_with(mut self, refusal: CallError) -> Self {
        self.refused = Some(refusal);
        self
    }

    /// Adds the name of the node that ran the stages.
    #[must_use]
    pub fn with_node(mut self, node: Option<String>) -> Self {
        self.node = node;
        self
    }
}

/// The outputs of a streaming stage on another node.
#[derive(Debug)]
#[non_exhaustive]
pub struct StageOutputs {
    /// Its outputs, sent as fast as the reader reads them.
    pub outputs: PayloadReplies,
    /// The number of the call's stages that each output has passed.
    pub stages: usize,
}

impl StageOutputs {
    /// The outputs of this number of stages.
    #[must_use]
    pub fn new(outputs: PayloadReplies, stages: usize) -> Self {
        Self { outputs, stages }
    }
}

/// The cluster, without its type, in the gateway of this node.
#[derive(Debug)]
pub(crate) struct ClusterHandle(Box<dyn RemoteStages>);

impl ClusterHandle {
    pub(crate) fn new(stages: impl RemoteStages) -> Self {
        Self(Box::new(stages))
    }
}

/// The cluster, if this node has joined one.
pub(crate) fn remote_stages(gateway: &Gateway) -> Option<&dyn RemoteStages> {
    stages_of(gateway.cluster()?)
}

/// The cluster, if the call may leave this node.
fn reachable_by(flight: &Flight) -> Option<&dyn RemoteStages> {
    stages_of(flight.cluster()?)
}

fn stages_of(cluster: &OpaqueHandle) -> Option<&dyn RemoteStages> {
    cluster.downcast_ref::<ClusterHandle>().map(|ClusterHandle(stages)| &**stages)
}

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// A stage of this name that runs on other nodes only. While no known node runs it, its calls are `Unavailable`.
    /// Consecutive remote stages on one node are one call to it.
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
        Self::from_graph(Graph::Remote(StageName::new(stage)))
    }
}

impl<In: Data, Out: Data> StreamPipeline<In, Out> {
    /// A streaming stage of this name that runs on other nodes only, as [`Pipeline::remote`]. While the reader pauses,
    /// the worker waits.
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
        Self::from_step(Graph::Remote(StageName::new(stage)))
    }
}

/// A step that is a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StageStep<'a> {
    /// It runs on this node, and perhaps on others.
    Local(&'a Arc<Pool>),
    /// It runs on other nodes only.
    Remote(&'a StageName),
}

impl Graph<Arc<Pool>> {
    /// The stage of this step, if it is one.
    pub(crate) fn stage_step(&self) -> Option<StageStep<'_>> {
        match self {
            Self::Stage(pool) => Some(StageStep::Local(pool)),
            Self::Remote(name) => Some(StageStep::Remote(name)),
            _ => None,
        }
    }
}

/// Runs a stage by the table in the module's documentation. `steps` begin with it; those after it may run in the same
/// call. Also returns the count of steps that ran.
pub(super) async fn run_stages(
    first: StageStep<'_>,
    steps: &[Graph<Arc<Pool>>],
    payload: Payload,
    flight: &Arc<Flight>,
    now: Instant,
) -> Result<(Reply, usize), CallError> {
    let pool = match first {
        StageStep::Local(pool) => pool,
        StageStep::Remote(name) => {
            check_time(flight, now, name.as_str())?;
            let Some(cluster) = reachable_by(flight) else { return Err(nowhere(name)) };
            return leave_patiently(cluster, call_of(steps, payload, flight, None), flight).await;
        }
    };
    let Some(cluster) = reachable_by(flight) else { return here(pool, payload, flight, now).await };
    let name = pool.name();
    let choice = cluster.choose(name.as_str(), flight.session, &load_of(pool));
    let leave = |call| leave(cluster, call, flight);
    if choice.is_remote {
        let call = call_of(steps, payload.clone(), flight, choice.revision);
        return match leave(call).await {
            Err(error) if error.is_refusal() || was_lost(&error) => here(pool, payload, flight, clock::now()).await,
            outcome => outcome,
        };
    }
    if !cluster.offers(name.as_str()) {
        return here(pool, payload, flight, now).await;
    }
    match here(pool, payload.clone(), flight, now).await {
        Err(refusal) if refusal.is_refusal() => match leave(call_of(steps, payload, flight, choice.revision)).await {
            // The caller gets the refusal of this node, which it can act on.
            Err(error) if error.is_refusal() => Err(refusal),
            outcome => outcome,
        },
        outcome => outcome,
    }
}

/// Whether the call was lost with its connection, and may run again. An error that names a stage is an outcome of that
/// stage.
pub(crate) fn was_lost(error: &CallError) -> bool {
    error.is_retryable() && error.kind() == ErrorKind::Unavailable && error.stage().is_none()
}

/// Runs stages on another node, and notes the visit in the call's record.
async fn leave(cluster: &dyn RemoteStages, call: StageCall, flight: &Flight) -> Result<(Reply, usize), CallError> {
    let record = RemoteVisit::begin(&call, flight);
    let outcome = cluster.run(call).await;
    let there = outcome.as_ref().ok().and_then(|ran| Some((ran.node.clone()?, ran.reply.timing)));
    record.end(outcome.as_ref().map_or(1, |ran| ran.stages), there);
    outcome.map(|ran| (ran.reply, ran.stages))
}

/// Runs stages on another node. A call that waits for capacity asks again until a node has some, or its time is up.
async fn leave_patiently(
    cluster: &dyn RemoteStages,
    mut call: StageCall,
    flight: &Flight,
) -> Result<(Reply, usize), CallError> {
    if !flight.is_patient {
        return leave(cluster, call, flight).await;
    }
    let mut attempt = 0_u32;
    loop {
        attempt = attempt.saturating_add(1);
        match leave(cluster, call.clone(), flight).await {
            Err(full) if full.kind() == ErrorKind::Overloaded && full.is_refusal() => {
                call.is_retry = true;
                let retry_after = full.retry_after().unwrap_or_default().min(LONGEST_RETRY_AFTER);
                tokio::time::sleep(retry_after + ASK_AGAIN.delay(attempt, fastrand::f64())).await;
            }
            outcome => return outcome,
        }
    }
}

/// Tracks a call's time while it is on another node. Until the outcome tells more, all of it counts as compute.
struct RemoteVisit<'a> {
    flight: &'a Flight,
    began: Instant,
    /// Only for a call with a record.
    stages: Vec<StageName>,
    /// The visit of the first stage in that record, if there was room for it.
    visit: Option<usize>,
}

impl<'a> RemoteVisit<'a> {
    fn begin(call: &StageCall, flight: &'a Flight) -> Self {
        let began = clock::now();
        flight.enter(Phase::Compute, began);
        let stages = flight.recorder().map(|_| call.stages.clone()).unwrap_or_default();
        let visit = flight.recorder().zip(stages.first()).and_then(|(recorder, stage)| recorder.sent(stage, began));
        Self { flight, began, stages, visit }
    }

    /// The call is back: this number of stages ran, or was tried, on that node.
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

/// Where a streaming stage begins its stream.
pub(crate) enum StreamPlace<'a> {
    /// On this node; after a refusal on another node, if one runs the stage (in this revision, if one was chosen).
    Here { pool: &'a Arc<Pool>, may_leave: bool, revision: Option<u64> },
    /// On another node; after a refusal on this node, if it runs the stage.
    Remote { revision: Option<u64>, pool: Option<&'a Arc<Pool>> },
}

/// Where a streaming stage's call runs, by the table in the module's documentation. No stream is made again after
/// its first output.
pub(crate) fn place_stream<'a>(stage: StageStep<'a>, flight: &Flight) -> StreamPlace<'a> {
    let pool = match stage {
        StageStep::Local(pool) => pool,
        StageStep::Remote(_) => return StreamPlace::Remote { revision: None, pool: None },
    };
    let Some(cluster) = reachable_by(flight) else {
        return StreamPlace::Here { pool, may_leave: false, revision: None };
    };
    let name = pool.name().as_str();
    let StageTarget { is_remote, revision } = cluster.choose(name, flight.session, &load_of(pool));
    if is_remote {
        StreamPlace::Remote { revision, pool: Some(pool) }
    } else {
        StreamPlace::Here { pool, may_leave: cluster.offers(name), revision }
    }
}

/// Begins the stream of a stage on another node. `steps` begin with the stage.
pub(crate) async fn stream_remote(
    steps: &[Graph<Arc<Pool>>],
    payload: Payload,
    flight: &Arc<Flight>,
    revision: Option<u64>,
) -> Result<StageOutputs, CallError> {
    let call = call_of(steps, payload, flight, revision);
    let Some(cluster) = reachable_by(flight) else { return Err(nowhere(&call.stage().into())) };
    let record = RemoteVisit::begin(&call, flight);
    let started = cluster.stream(call).await;
    record.end(started.as_ref().map_or(1, |started| started.stages), None);
    started
}

fn load_of(pool: &Pool) -> StageLoad {
    let (open, revision) = (pool.health.state().accepts_entries(), pool.settings().revision());
    StageLoad { open, queued: pool.queued(), capacity: pool.capacity(), revision }
}

/// A call of the first of these steps, and of the remote stages that follow at once.
fn call_of(steps: &[Graph<Arc<Pool>>], payload: Payload, flight: &Arc<Flight>, revision: Option<u64>) -> StageCall {
    let mut options = CallOptions::new().with_deadline(flight.deadline).with_priority(flight.priority);
    if let Some(session) = flight.session {
        options = options.with_session_key(session);
    }
    if let Some(recorder) = flight.recorder() {
        options = options.with_recorder(recorder.clone());
    }
    options = options.with_origin(flight.origin.clone());
    let (mut stages, mut may_run_again, mut credit) = (Vec::with_capacity(1), true, DEFAULT_CREDIT);
    let can_run_here = matches!(steps.first(), Some(Graph::Stage(_)));
    for (position, step) in steps.iter().enumerate() {
        match step {
            Graph::Stage(pool) if position == 0 => {
                stages.push(pool.name().clone());
                may_run_again = pool.settings().contract().may_run_again();
                credit = pool.settings().credit().get();
            }
            Graph::Remote(name) if position == 0 => stages.push(name.clone()),
            Graph::Remote(name) if reachable_by(flight).is_some_and(|cluster| cluster.can_chain(name.as_str())) => {
                stages.push(name.clone());
            }
            _ => break,
        }
    }
    let flight = Arc::clone(flight);
    StageCall { stages, payload, options, may_run_again, can_run_here, is_retry: false, revision, credit, flight }
}

fn nowhere(stage: &StageName) -> CallError {
    let message = format!("no node is known that runs the stage `{stage}`");
    CallError::new(ErrorKind::Unavailable, message).at_stage(stage)
}
