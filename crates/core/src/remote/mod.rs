//! The seam for stages and actors on other nodes: what a node asks of a network, which this crate does not know, and
//! the hash by which nodes agree. `pipeline/remote.rs` decides when a call crosses it, `actor/remote_ref.rs` when a
//! question does.

mod actors;
mod member;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use callboard_codec::Payload;
use serde::{Deserialize, Serialize};

pub use self::actors::{GIVE_AWAY_EVERY, JoinState, KINDS_PREFIX, KeyOwner, Reach, RemoteActors, RemoteQuestion};
pub use self::member::{
    MAX_REPORTED, MAX_REPORTED_NAME_BYTES, MemberDescription, MemberState, NodePhase, NodeReport, RouteReport,
    StageLoadReport, StageReport,
};
use crate::call::{CallOptions, Flight, PayloadReplies, Reply, ResponseFields, SessionKey};
use crate::error::CallError;
use crate::id::StageName;
use crate::offload::CodecBudget;
pub use crate::splitmix64::splitmix64;

/// The outcome of a call to another node.
pub type RemoteFuture<T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>;

/// The loads of the stages of other nodes, by the nodes' names.
pub type LoadsFuture = Pin<Box<dyn Future<Output = Vec<(Arc<str>, Vec<StageLoadReport>)>> + Send>>;

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

    /// The members of the cluster, this node first. A node that is in none returns an empty list.
    fn members(&self) -> Vec<MemberDescription> {
        Vec::new()
    }

    /// Asks each connected node for the load of its stages now. A node that does not answer within about a second is
    /// not in the list. A cluster that cannot ask returns an empty list.
    fn stage_loads(&self) -> LoadsFuture {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// The actors on other nodes. `None` for a cluster without actors.
    fn actors(&self) -> Option<&dyn RemoteActors> {
        None
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerDescription {
    /// Its address.
    pub address: String,
    /// Its name; empty for a node without a name, and without a connection.
    pub node: String,
    /// The age of the connection; `None` without one.
    pub connected_for: Option<Duration>,
    /// Whether the peer is silent: new calls go to other nodes.
    pub silent: bool,
    /// The stages that it runs for other nodes.
    pub stages: Vec<String>,
    /// What its version can do beyond the first one, by names, such as `actors`; empty without a connection.
    #[serde(default)]
    pub features: Vec<String>,
}

impl PeerDescription {
    /// A node at this address without a connection.
    #[must_use]
    pub fn disconnected(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            node: String::new(),
            connected_for: None,
            silent: false,
            stages: Vec::new(),
            features: Vec::new(),
        }
    }

    /// The same node with a connection: its name, the age of the connection, and its stages.
    #[must_use]
    pub fn connected(mut self, node: impl Into<String>, connected_for: Duration, stages: Vec<String>) -> Self {
        (self.node, self.connected_for, self.stages) = (node.into(), Some(connected_for), stages);
        self
    }

    /// The same node with the features that it has told.
    #[must_use]
    pub fn features(mut self, features: impl IntoIterator<Item: Into<String>>) -> Self {
        self.features = features.into_iter().map(Into::into).collect();
        self
    }

    /// The same node, silent or not.
    #[must_use]
    pub fn silent(mut self, is_silent: bool) -> Self {
        self.silent = is_silent;
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
    /// If the peer is lost, the calling node runs the first stage itself. So if the peer is silent and no other peer is
    /// left, this call fails with the error of a lost peer.
    pub is_repeated_here: bool,
    /// The call was refused everywhere before, and this is a retry.
    pub is_retry: bool,
    /// The revision of the first stage that was chosen for this call.
    pub revision: Option<u64>,
    /// The maximum count of outputs in flight, if the first stage streams.
    pub credit: usize,
    pub(crate) flight: Arc<Flight>,
}

impl StageCall {
    /// Encodes the input and decodes the outcome for this node, which pays for both; `None` if no node has admitted the
    /// call.
    #[must_use]
    pub fn budget(&self) -> Option<CodecBudget<'_>> {
        self.flight.budget()
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
    /// What the code of these stages has chosen for the answer.
    pub response: Option<ResponseFields>,
}

impl StageReply {
    /// The outcome of this number of stages.
    #[must_use]
    pub fn new(reply: Reply, stages: usize) -> Self {
        Self { reply, stages, node: None, refused: None, response: None }
    }

    /// Adds the error of the next stage, which refused.
    #[must_use]
    pub fn with_refusal(mut self, refusal: CallError) -> Self {
        self.refused = Some(refusal);
        self
    }

    /// Adds what the code of the stages has chosen for the answer.
    #[must_use]
    pub fn with_response(mut self, response: Option<ResponseFields>) -> Self {
        self.response = response;
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

/// The other nodes, once this one has joined them. All stages of a node share it, and reach them by it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster(Arc<OnceLock<Box<dyn RemoteStages>>>);

impl Cluster {
    /// Lets stages run on these nodes from now on. False: the node has joined others before.
    pub(crate) fn join(&self, stages: impl RemoteStages) -> bool {
        self.0.set(Box::new(stages)).is_ok()
    }

    /// The other nodes, if the node has joined them.
    pub(crate) fn stages(&self) -> Option<&dyn RemoteStages> {
        self.0.get().map(Box::as_ref)
    }

    /// The actors on the other nodes, if the node has joined them.
    pub(crate) fn actors(&self) -> Option<&dyn RemoteActors> {
        self.stages()?.actors()
    }

    /// The other nodes, if the stages of this call may run there.
    pub(crate) fn open_to(&self, flight: &Flight) -> Option<&dyn RemoteStages> {
        self.stages().filter(|_| !flight.must_stay())
    }
}
