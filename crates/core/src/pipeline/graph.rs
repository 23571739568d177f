//! The steps of a pipeline with their code: over stage recipes in an app, over pools in a running node.

use std::fmt;
use std::sync::Arc;

use callboard_codec::Payload;

use super::ensemble::Join;
use super::remote::RemoteStage;
use super::run::Combinator;
use crate::actor::AskFn;
use crate::error::Failure;
use crate::id::StageName;
use crate::remote::Cluster;
use crate::stage::StageSpec;

/// A function between stages, without its types.
pub(crate) type MapFn = Arc<dyn Fn(Payload) -> Result<Payload, Failure> + Send + Sync>;

/// A choice between branches, without its types.
pub(crate) type ChooseFn = Arc<dyn Fn(&Payload) -> Result<usize, Failure> + Send + Sync>;

/// The names of an ensemble's members or a switch's branches in pictures; empty without names.
pub(crate) type Labels = Arc<[String]>;

/// The steps of a pipeline.
#[derive(Clone)]
pub(crate) enum Graph<S> {
    /// One stage.
    Stage(S),
    /// A stage that runs on other nodes only.
    Remote(RemoteStage),
    /// Steps one after the other. Without steps, the output is the input.
    Sequence(Vec<Self>),
    /// A function that runs in the caller's own future: no queue, no worker.
    Map { name: Arc<str>, function: MapFn },
    /// A question to an actor: the actor's mailbox is its queue.
    Ask { name: Arc<str>, ask: AskFn },
    /// Members or branches, which the combinator runs.
    Nested { combinator: Combinator, parts: Vec<Self>, labels: Labels },
}

impl Graph<Arc<StageSpec>> {
    /// Whether its input goes to another process before anything here reads it.
    pub(crate) fn reads_encoded(&self) -> bool {
        match self {
            Self::Stage(stage) => stage.reads_encoded(),
            Self::Remote(_) => true,
            Self::Sequence(steps) => steps.first().is_some_and(Self::reads_encoded),
            Self::Nested { combinator, parts, .. } => !combinator.reads() && parts.iter().all(Self::reads_encoded),
            Self::Map { .. } | Self::Ask { .. } => false,
        }
    }
}

impl<S> Graph<S> {
    pub(crate) fn then(self, next: Self) -> Self {
        let mut steps = self.into_steps();
        steps.extend(next.into_steps());
        match <[Self; 1]>::try_from(steps) {
            Ok([only]) => only,
            Err(steps) => Self::Sequence(steps),
        }
    }

    pub(crate) fn of_members(members: Vec<Self>, join: Join, labels: Labels) -> Self {
        Self::Nested { combinator: Combinator::Ensemble(join), parts: members, labels }
    }

    /// Names the members or branches, if there are any.
    pub(crate) fn labelled(mut self, names: Labels) -> Self {
        if let Self::Nested { labels, .. } = &mut self {
            *labels = names;
        }
        self
    }

    /// The steps that run one after the other.
    pub(crate) fn steps(&self) -> &[Self] {
        match self {
            Self::Sequence(steps) => steps,
            step => std::slice::from_ref(step),
        }
    }

    fn into_steps(self) -> Vec<Self> {
        match self {
            Self::Sequence(steps) => steps,
            step => vec![step],
        }
    }

    /// The stages in the order of their declaration; a stage that is used twice is listed twice.
    pub(crate) fn stages(&self) -> Vec<&S> {
        let steps = self.single_steps().into_iter();
        steps.filter_map(|step| if let Self::Stage(stage) = step { Some(stage) } else { None }).collect()
    }

    /// The stages that run on other nodes only, in the same order.
    pub(crate) fn remote_stages(&self) -> Vec<&StageName> {
        let steps = self.single_steps().into_iter();
        steps.filter_map(|step| if let Self::Remote(stage) = step { Some(&stage.name) } else { None }).collect()
    }

    /// Whether the item is in one step at a time.
    pub(crate) fn is_row(&self) -> bool {
        self.steps().iter().all(|step| matches!(step, Self::Stage(_) | Self::Map { .. }))
    }

    /// Whether a step asks an actor.
    pub(crate) fn asks_actors(&self) -> bool {
        self.single_steps().into_iter().any(|step| matches!(step, Self::Ask { .. }))
    }

    /// The names of all stages, wherever they run, in the same order.
    pub(crate) fn stage_names<'a>(&'a self, name: impl Fn(&'a S) -> &'a StageName) -> Vec<StageName> {
        let named = |step: &'a Self| match step {
            Self::Stage(stage) => Some(name(stage).clone()),
            Self::Remote(stage) => Some(stage.name.clone()),
            _ => None,
        };
        self.single_steps().into_iter().filter_map(named).collect()
    }

    /// The steps without inner steps.
    fn single_steps(&self) -> Vec<&Self> {
        let mut steps = Vec::new();
        self.collect_single_steps(&mut steps);
        steps
    }

    fn collect_single_steps<'a>(&'a self, steps: &mut Vec<&'a Self>) {
        match self {
            Self::Stage(_) | Self::Remote(_) | Self::Map { .. } | Self::Ask { .. } => steps.push(self),
            Self::Sequence(parts) | Self::Nested { parts, .. } => {
                for part in parts {
                    part.collect_single_steps(steps);
                }
            }
        }
    }

    /// The same steps in a node that reaches the stages of others by this cluster.
    pub(crate) fn reached_by(mut self, cluster: &Cluster) -> Self {
        self.reach_by(cluster);
        self
    }

    fn reach_by(&mut self, cluster: &Cluster) {
        match self {
            Self::Remote(stage) => stage.cluster = cluster.clone(),
            Self::Sequence(parts) | Self::Nested { parts, .. } => {
                parts.iter_mut().for_each(|part| part.reach_by(cluster));
            }
            Self::Stage(_) | Self::Map { .. } | Self::Ask { .. } => {}
        }
    }

    /// The same steps over another type.
    pub(crate) fn map<T>(&self, map: &mut impl FnMut(&S) -> T) -> Graph<T> {
        let mut all = |parts: &[Self]| parts.iter().map(|part| part.map(map)).collect();
        match self {
            Self::Sequence(steps) => Graph::Sequence(all(steps)),
            Self::Nested { combinator, parts, labels } => {
                Graph::Nested { combinator: combinator.clone(), parts: all(parts), labels: Arc::clone(labels) }
            }
            Self::Map { name, function } => Graph::Map { name: Arc::clone(name), function: Arc::clone(function) },
            Self::Ask { name, ask } => Graph::Ask { name: Arc::clone(name), ask: Arc::clone(ask) },
            Self::Remote(stage) => Graph::Remote(stage.clone()),
            Self::Stage(stage) => Graph::Stage(map(stage)),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Graph<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(stage) => f.debug_tuple("Stage").field(stage).finish(),
            Self::Remote(stage) => f.debug_tuple("Remote").field(&stage.name).finish(),
            Self::Sequence(steps) => f.debug_tuple("Sequence").field(steps).finish(),
            Self::Map { name, function: _ } => f.debug_struct("Map").field("name", name).finish_non_exhaustive(),
            Self::Ask { name, ask: _ } => f.debug_struct("Ask").field("name", name).finish_non_exhaustive(),
            Self::Nested { combinator, parts, labels: _ } => {
                f.debug_struct("Nested").field("combinator", combinator).field("parts", parts).finish_non_exhaustive()
            }
        }
    }
}
