//! What both played networks need: nodes that have actors and no stages, and the question that they are asked.

use serde::{Deserialize, Serialize};

use crate::Node;
use crate::actor::Question;
use crate::call::SessionKey;
use crate::remote::{
    RemoteActors, RemoteFuture, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply, StageTarget,
};

#[derive(Serialize, Deserialize)]
pub(super) struct Add(pub(super) u64);

impl Question for Add {
    const NAME: &str = "add";
    type Answer = u64;
}

/// Joins a node to others, of which a test plays the actors.
pub(super) fn join(node: &Node, actors: impl RemoteActors) {
    node.join(WithoutStages(actors)).unwrap();
}

#[derive(Debug)]
struct WithoutStages<A>(A);

impl<A: RemoteActors> RemoteStages for WithoutStages<A> {
    fn choose(&self, _: &str, _: Option<SessionKey>, _: &StageLoad) -> StageTarget {
        StageTarget::default()
    }

    fn can_chain(&self, _: &str) -> bool {
        false
    }

    fn offers(&self, _: &str) -> bool {
        false
    }

    fn actors(&self) -> Option<&dyn RemoteActors> {
        Some(&self.0)
    }

    fn run(&self, _: StageCall) -> RemoteFuture<StageReply> {
        unreachable!("no stage is remote")
    }

    fn stream(&self, _: StageCall) -> RemoteFuture<StageOutputs> {
        unreachable!("no stage is remote")
    }
}
