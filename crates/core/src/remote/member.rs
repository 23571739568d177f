//! The members of a cluster, as a node knows them, and what each of them tells the others of itself.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The most routes, and the most stages, of a report, and the most stages with a load.
pub const MAX_REPORTED: usize = 1_024;

/// The longest name in a report or a load, in bytes.
pub const MAX_REPORTED_NAME_BYTES: usize = 256;

/// A member of the cluster, as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberDescription {
    /// Its name.
    pub name: String,
    /// The address at which others reach it.
    pub address: String,
    /// Whether it answers.
    pub state: MemberState,
    /// When it entered this state, in seconds since 1970. A suspected member keeps the time at which it came up.
    pub since: u64,
    /// The number of its process, which rises with each start: errors name a node of the development identity as
    /// `NAME@generation`. A text, because many readers of JSON round such numbers; empty if the describing node is of
    /// an earlier version.
    #[serde(default)]
    pub generation: String,
    /// Whether it is the node that describes it.
    pub is_this_node: bool,
    /// What it has told of itself last; `None` while it is not known, and of nodes of earlier versions.
    pub report: Option<Arc<NodeReport>>,
    /// The load of its stages, asked for with this description, at most [`MAX_REPORTED`]; `None` if it was not asked,
    /// or did not answer in time.
    #[serde(default)]
    pub load: Option<Vec<StageLoadReport>>,
}

impl MemberDescription {
    /// A member of this name, at this address, in this state since then.
    #[must_use]
    pub fn new(name: impl Into<String>, address: impl Into<String>, state: MemberState, since: u64) -> Self {
        let (name, address) = (name.into(), address.into());
        Self { name, address, state, since, generation: String::new(), is_this_node: false, report: None, load: None }
    }

    /// The same of this generation.
    #[must_use]
    pub fn with_generation(mut self, generation: u64) -> Self {
        self.generation = generation.to_string();
        self
    }

    /// The same with its report.
    #[must_use]
    pub fn with_report(mut self, report: Option<Arc<NodeReport>>) -> Self {
        self.report = report;
        self
    }

    /// The same with the load of its stages.
    #[must_use]
    pub fn with_load(mut self, load: Option<Vec<StageLoadReport>>) -> Self {
        self.load = load;
        self
    }

    /// The same as the node that describes it.
    #[must_use]
    pub fn as_this_node(mut self) -> Self {
        self.is_this_node = true;
        self
    }
}

/// Whether a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It answers.
    Up,
    /// A member has had no answer from it; it is called down unless it refutes this in time.
    Suspected,
    /// It does not answer.
    Down,
    /// It was drained, and does not answer any more.
    Left,
}

impl MemberState {
    /// Whether it does not answer, for whichever reason.
    #[must_use]
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Down | Self::Left)
    }
}

/// What a node tells the others of itself. It has what changes seldom: the load comes with each reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeReport {
    /// Its software.
    pub version: String,
    /// What it does.
    pub phase: NodePhase,
    /// When that phase began, in seconds since 1970 by its own clock.
    pub since: u64,
    /// Its routes.
    pub routes: Vec<RouteReport>,
    /// The stages that it runs.
    pub stages: Vec<StageReport>,
    /// The number of routes and stages that are not in the lists, because there was no room.
    pub left_out: u64,
}

impl NodeReport {
    /// That of a node that has not started yet.
    #[must_use]
    pub fn starting() -> Self {
        Self { phase: NodePhase::Starting, ..Self::default() }
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodePhase {
    /// It loads its stages.
    Starting,
    /// It takes calls.
    Ready,
    /// It has started, and not all of it takes calls.
    NotReady,
    /// It finishes its calls, and ends.
    Draining,
    /// A phase of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A route of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RouteReport {
    /// Its public name.
    pub name: String,
    /// The number of the change that opened it.
    pub revision: u64,
}

/// A stage of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Its revision; see [`StageSettings::revision`](crate::StageSettings::revision).
    pub revision: u64,
    /// The replicas that are up.
    pub ready: u32,
    /// The replicas that it should have.
    pub wanted: u32,
}

/// The load of a stage of a node, at the time of the question: it changes with each call, so it is in no
/// [report](NodeReport).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StageLoadReport {
    /// Its name.
    pub name: String,
    /// Entries waiting.
    pub queued: u64,
    /// The bound of the queue.
    pub queue_limit: u64,
    /// The replicas that run a batch.
    pub busy: u32,
    /// The entries that its replicas run at once.
    pub capacity: u64,
}
