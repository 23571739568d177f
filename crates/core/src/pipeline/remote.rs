//! Where the stages of a call run: on this node or on others, which [`RemoteStages`] reaches.
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
//! node is never sent on. A call with extensions leaves this node only for stages that run on other nodes only.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Payload};

use super::run::check_time;
use super::{Graph, Pipeline, StreamPipeline};
use crate::call::{CallOptions, Flight, Reply};
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::id::StageName;
use crate::pool::Pool;
use crate::remote::{Cluster, RemoteStages, StageCall, StageLoad, StageOutputs, StageTarget};
use crate::retry::RetryPolicy;
use crate::stage::StageSettings;
use crate::timeline::{NodeFacts, Phase, Timing};

/// The longest retry time of another node that is respected.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(2);

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
        Self::from_graph(Graph::Remote(RemoteStage::new(stage)))
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
        Self::from_step(Graph::Remote(RemoteStage::new(stage)))
    }
}

/// A stage that runs on other nodes only.
#[derive(Clone, Debug)]
pub(crate) struct RemoteStage {
    pub(crate) name: StageName,
    /// The other nodes of the node that serves the pipeline. A plan reaches none.
    pub(crate) cluster: Cluster,
}

impl RemoteStage {
    fn new(name: &str) -> Self {
        Self { name: StageName::new(name), cluster: Cluster::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StageStep<'a> {
    /// It runs on this node, and perhaps on others.
    Local(&'a Arc<Pool>),
    /// It runs on other nodes only.
    Remote(&'a RemoteStage),
}

impl Graph<Arc<Pool>> {
    /// The stage of this step, if it is one.
    pub(crate) fn stage_step(&self) -> Option<StageStep<'_>> {
        match self {
            Self::Stage(pool) => Some(StageStep::Local(pool)),
            Self::Remote(stage) => Some(StageStep::Remote(stage)),
            _ => None,
        }
    }
}

impl Pool {
    /// The other nodes, if this call of the stage may run there instead of here.
    pub(super) fn cluster_for(&self, flight: &Flight) -> Option<&dyn RemoteStages> {
        self.cluster.open_to(flight).filter(|_| !flight.has_extensions())
    }
}

impl<'a> StageStep<'a> {
    /// The other nodes, if this call of the stage may run there.
    fn cluster_for(self, flight: &Flight) -> Option<&'a dyn RemoteStages> {
        match self {
            Self::Local(pool) => pool.cluster_for(flight),
            Self::Remote(stage) => stage.cluster.open_to(flight),
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
    let cluster = first.cluster_for(flight);
    let pool = match first {
        StageStep::Local(pool) => pool,
        StageStep::Remote(RemoteStage { name, .. }) => {
            check_time(flight, now, name.as_str())?;
            let Some(cluster) = cluster else { return Err(nowhere(name)) };
            return leave_patiently(cluster, call_of(steps, payload, flight, None)?, flight).await;
        }
    };
    let Some(cluster) = cluster else { return here(pool, payload, flight, now).await };
    let name = pool.name();
    let choice = cluster.choose(name.as_str(), flight.session, &load_of(pool));
    let leave = |call| leave(cluster, call, flight);
    if choice.is_remote {
        let mut call = call_of(steps, payload.clone(), flight, choice.revision)?;
        call.is_repeated_here = true;
        return match leave(call).await {
            Err(error) if error.is_refusal() || was_lost(&error) => here(pool, payload, flight, clock::now()).await,
            outcome => outcome,
        };
    }
    if !cluster.offers(name.as_str()) {
        return here(pool, payload, flight, now).await;
    }
    match here(pool, payload.clone(), flight, now).await {
        Err(refusal) if refusal.is_refusal() => match leave(call_of(steps, payload, flight, choice.revision)?).await {
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
    outcome.map(|ran| {
        if let Some(fields) = ran.response {
            flight.set_response(fields);
        }
        (ran.reply, ran.stages)
    })
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
                // The pause grows, because each attempt sends the whole input.
                let pause = RetryPolicy::default().pause(attempt, fastrand::f64());
                tokio::time::sleep(retry_after + pause).await;
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
    let Some(cluster) = pool.cluster_for(flight) else {
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
    let cluster = steps.first().and_then(Graph::stage_step).and_then(|stage| stage.cluster_for(flight));
    let call = call_of(steps, payload, flight, revision)?;
    let Some(cluster) = cluster else { return Err(nowhere(&call.stage().into())) };
    let record = RemoteVisit::begin(&call, flight);
    let started = cluster.stream(call).await;
    record.end(started.as_ref().map_or(1, |started| started.stages), None);
    started
}

fn load_of(pool: &Pool) -> StageLoad {
    let (open, revision) = (pool.health.state().accepts_entries(), pool.settings().revision());
    StageLoad { open, queued: pool.queued_by_all(), capacity: pool.capacity(), revision }
}

/// A call of the first of these steps, and of the remote stages that follow at once.
fn call_of(
    steps: &[Graph<Arc<Pool>>],
    payload: Payload,
    flight: &Arc<Flight>,
    revision: Option<u64>,
) -> Result<StageCall, CallError> {
    let mut options = CallOptions::new().with_deadline(flight.deadline).with_priority(flight.priority);
    if let Some(session) = flight.session {
        options = options.with_session_key(session);
    }
    if let Some(recorder) = flight.recorder() {
        options = options.with_recorder(recorder.clone());
    }
    if let Some(origin) = &flight.origin {
        origin.check()?;
        options = options.with_origin(Some(Arc::clone(origin)));
    }
    let (mut stages, mut may_run_again, mut credit) = (Vec::with_capacity(1), true, StageSettings::DEFAULT_CREDIT);
    let can_run_here = matches!(steps.first(), Some(Graph::Stage(_)));
    for (position, step) in steps.iter().enumerate() {
        match step {
            Graph::Stage(pool) if position == 0 => {
                stages.push(pool.name().clone());
                may_run_again = pool.settings().contract().may_run_again();
                credit = pool.settings().credit().get();
            }
            Graph::Remote(stage) if position == 0 => stages.push(stage.name.clone()),
            Graph::Remote(RemoteStage { name, cluster })
                if cluster.open_to(flight).is_some_and(|cluster| cluster.can_chain(name.as_str())) =>
            {
                stages.push(name.clone());
            }
            _ => break,
        }
    }
    let flight = Arc::clone(flight);
    let (is_repeated_here, is_retry) = (false, false);
    Ok(StageCall {
        stages,
        payload,
        options,
        may_run_again,
        can_run_here,
        is_repeated_here,
        is_retry,
        revision,
        credit,
        flight,
    })
}

fn nowhere(stage: &StageName) -> CallError {
    let message = format!("no node is known that runs the stage `{stage}`");
    CallError::new(ErrorKind::Unavailable, message).at_stage(stage)
}
