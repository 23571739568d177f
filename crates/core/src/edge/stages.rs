//! Calls of stages by other nodes: another node owns the call, this node gives the permits and does the work.
//!
//! A call may name several stages in a row. If a later stage has no capacity, the output so far goes back, and the
//! owner calls another node; no stage runs twice. Only the owner sends calls on and counts outcomes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Account, EnvelopeDecoder, Payload};

use super::calls::EdgeHandle;
use crate::call::{CallOptions, Flight, PayloadReplies, Reply};
use crate::client::{AdmittedCall, CallSteps, LocalClient, OpenCall};
use crate::clock;
use crate::contract::Contract;
use crate::error::{CallError, ErrorKind};
use crate::id::StageName;
use crate::pipeline::Graph;
use crate::pool::Pool;
use crate::remote::{MemberDescription, NodeReport, PeerDescription, StageLoadReport, StageReply};
use crate::router::{Admission, HeldRoute};
use crate::stage::ReadFn;
use crate::timeline::Micros;

/// The right of another node to one call of stages. Dropping it frees the permits.
#[derive(Debug)]
pub struct StageAdmission {
    /// Holds the route that keeps the first stage.
    admission: Admission,
    pools: Vec<Arc<Pool>>,
    /// The routes that keep the next stages.
    _held: Vec<HeldRoute>,
}

impl StageAdmission {
    /// Whether the first stage answers one input with many outputs.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.pools.first().is_some_and(|pool| pool.spec.is_streaming())
    }

    /// Charges `bytes` more: more of the input has arrived.
    ///
    /// # Errors
    ///
    /// `Overloaded` if the node's bytes are all taken, `InvalidInput` if the call alone exceeds the node's limit. The
    /// admission stays valid.
    pub fn grow(&self, bytes: u64) -> Result<(), CallError> {
        self.admission.grow(bytes)
    }

    /// The account of the call, for what is decoded and encoded for it.
    #[must_use]
    pub fn account(&self) -> Arc<dyn Account> {
        self.admission.account()
    }

    /// Reads an input of the first stage: straight into its type, or no further than its workers want it.
    #[must_use]
    pub fn reader(&self) -> StageReader {
        let pool = &self.pools[0];
        StageReader { read: pool.spec.types().read, stage: pool.name().clone() }
    }

    /// The queues of the stages.
    #[must_use]
    pub fn queue(&self) -> StageQueue {
        StageQueue(self.pools.clone())
    }
}

/// Reads received inputs of one stage.
#[derive(Clone, Debug)]
pub struct StageReader {
    read: ReadFn,
    stage: StageName,
}

impl StageReader {
    /// The input of a call.
    ///
    /// # Errors
    ///
    /// Those of [`DataType::finish`](callboard_codec::DataType::finish), with the stage.
    pub fn read(&self, decoder: EnvelopeDecoder) -> Result<Payload, CallError> {
        (self.read)(decoder).map_err(|error| CallError::from(error).at_stage(&self.stage))
    }
}

/// The queues of some stages, for measurements.
#[derive(Clone, Debug)]
pub struct StageQueue(Vec<Arc<Pool>>);

impl StageQueue {
    /// The number of waiting entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|pool| pool.queued_by_all()).sum()
    }

    /// Whether no entry waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A stage that other nodes may call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OfferedStage {
    /// Its name.
    pub name: String,
    /// Whether it may run a second time.
    pub contract: Contract,
    /// Whether it answers one input with many outputs.
    pub streams: bool,
    /// Its revision.
    pub revision: u64,
}

impl EdgeHandle<'_> {
    /// The stages that other nodes may call: the stages of the routes.
    #[must_use]
    pub fn offered_stages(self) -> Vec<OfferedStage> {
        let (mut offered, mut names) = (Vec::new(), HashSet::new());
        for route in self.0.routes() {
            for pool in route.graph().stages() {
                let name = pool.name().as_str();
                let open = pool.health.state().accepts_entries();
                if open && names.insert(name.to_owned()) {
                    offered.push(OfferedStage {
                        name: name.to_owned(),
                        // For a stream, this holds until its first output; see `StageSpec::contract`.
                        contract: pool.settings().contract(),
                        streams: pool.spec.is_streaming(),
                        revision: pool.settings().revision(),
                    });
                }
            }
        }
        offered
    }

    /// What the node tells other nodes of itself. The version, and when its phase began, are the edge's to add.
    #[must_use]
    pub fn report(self) -> NodeReport {
        self.0.shared.report()
    }

    /// The nodes to which it has or seeks a connection; none if it has not joined others.
    #[must_use]
    pub fn peers(self) -> Vec<PeerDescription> {
        self.0.shared.router.cluster.stages().map(|cluster| cluster.peers()).unwrap_or_default()
    }

    /// The members of its cluster, this node first; none if it is in no cluster.
    #[must_use]
    pub fn members(self) -> Vec<MemberDescription> {
        self.0.shared.router.cluster.stages().map(|cluster| cluster.members()).unwrap_or_default()
    }

    /// The load of the stages in its report.
    #[must_use]
    pub fn stage_loads(self) -> Vec<StageLoadReport> {
        self.0.shared.stage_loads()
    }

    /// Adds the load of their stages to these members: the other nodes are asked now, for about a second at most.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the questions.
    pub async fn add_loads(self, members: &mut [MemberDescription]) {
        let others = match self.0.shared.router.cluster.stages() {
            Some(cluster) => cluster.stage_loads().await,
            None => Vec::new(),
        };
        let mut others: HashMap<_, _> = others.into_iter().collect();
        for member in members {
            let own = || self.stage_loads();
            member.load = if member.is_this_node { Some(own()) } else { others.remove(member.name.as_str()) };
        }
    }

    /// The time for a call without a timeout of its caller or its route.
    #[must_use]
    pub fn default_timeout(self) -> Duration {
        self.0.shared.gateway.default_timeout()
    }

    /// Takes the permits for a call of stages that follow each other before its `bytes` are read.
    ///
    /// # Errors
    ///
    /// `Unavailable` when no route uses such a stage, or the node drains; `Overloaded` when the node's permits are out;
    /// `InvalidInput` when a stage streams that is not the first. Nothing was started.
    pub fn admit_stages<S: AsRef<str>>(self, stages: &[S], bytes: u64) -> Result<StageAdmission, CallError> {
        let mut pools = Vec::with_capacity(stages.len());
        let mut held = Vec::with_capacity(stages.len());
        for stage in stages {
            let stage = stage.as_ref();
            let Some((route, pool)) = self.0.shared.router.hold_stage(stage) else {
                let message = format!("this node does not run the stage `{stage}`");
                return Err(CallError::new(ErrorKind::Unavailable, message));
            };
            if pool.spec.is_streaming() && !pools.is_empty() {
                let message = format!("the stage `{stage}` streams: it has to be the first of the call");
                return Err(CallError::new(ErrorKind::InvalidInput, message));
            }
            pools.push(pool);
            held.push(route);
        }
        if held.is_empty() {
            return Err(CallError::new(ErrorKind::InvalidInput, "the call names no stage"));
        }
        let admission = self.0.shared.gateway.admit(held.swap_remove(0), bytes)?;
        Ok(StageAdmission { admission, pools, _held: held })
    }

    /// Runs an admitted call of stages on this node. If a later stage refuses, the reply has the count of stages that
    /// ran.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call.
    pub async fn submit_stages(
        self,
        admission: StageAdmission,
        payload: Payload,
        options: CallOptions,
    ) -> Result<StageReply, CallError> {
        if admission.streams() {
            let message = format!("the stage `{}` streams: it needs credit", admission.pools[0].name());
            return Err(CallError::new(ErrorKind::InvalidInput, message));
        }
        let flight = here_only(&admission, &options);
        let deadline = flight.deadline.instant();
        tokio::select! {
            biased;
            outcome = run(&admission.pools, payload, &flight) => {
                // The call has ended, and no work for it is left.
                admission.admission.settle();
                // Only what code chose: the owner adds what its route declares.
                let outcome = outcome.map(|ran| ran.with_response(flight.response()));
                outcome.map_err(|error| flight.with_timing(error, clock::now()))
            }
            () = tokio::time::sleep_until(deadline) => {
                let error = CallError::deadline_exceeded("before the outcome was there");
                Err(flight.with_timing(error.at_stage(admission.pools[0].name()), clock::now()))
            }
        }
    }

    /// Runs an admitted call whose first stage streams on this node, as its outputs are read. The next stages run for
    /// each output.
    #[must_use = "a call runs as its replies are read"]
    pub fn submit_stages_streaming(
        self,
        admission: StageAdmission,
        payload: Payload,
        options: CallOptions,
    ) -> PayloadReplies {
        let flight = here_only(&admission, &options);
        let first_by = options.first_item_timeout().map(|timeout| admission.admission.admitted_at() + timeout);
        let StageAdmission { admission, pools, _held } = admission;
        let steps = CallSteps::Stages(pools.into_iter().map(Graph::Stage).collect());
        self.0.read_steps(
            OpenCall { call: AdmittedCall::uncounted(admission, flight), _held },
            steps,
            first_by,
            payload,
        )
    }
}

/// A call that stays on this node: its owner has chosen the node.
fn here_only(admission: &StageAdmission, options: &CallOptions) -> Arc<Flight> {
    let mut flight = LocalClient::new_flight(&admission.admission, options, Admission::latest_deadline_of_node);
    flight.stays_here = true;
    Arc::new(flight)
}

async fn run(pools: &[Arc<Pool>], mut payload: Payload, flight: &Arc<Flight>) -> Result<StageReply, CallError> {
    let mut total = Micros::default();
    for (ran, pool) in pools.iter().enumerate() {
        // The input of the next stage on another node.
        let so_far = (ran > 0).then(|| payload.clone());
        let timing;
        let again = || pools[..ran].iter().all(|pool| pool.spec.contract().may_run_again());
        (payload, timing) = match (pool.submit(payload, flight, clock::now()).await, so_far) {
            (Ok(reply), _) => reply.into_parts(),
            (Err(refusal), Some(so_far)) if refusal.is_refusal() => {
                let refusal = refusal.after_runs(true, again());
                return Ok(StageReply::new(Reply::new(so_far, total.into()), ran).with_refusal(refusal));
            }
            (Err(error), _) => return Err(error.after_runs(ran > 0, again())),
        };
        total.add(timing);
    }
    Ok(StageReply::new(Reply::new(payload, total.into()), pools.len()))
}
