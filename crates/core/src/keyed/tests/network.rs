//! What both played networks need: nodes that have actors and no stages, and the question that they are asked.

use serde::{Deserialize, Serialize};

use crate::Node;
use crate::actor::Question;
use crate::remote::RemoteActors;
use crate::testing::without_stages::WithoutStages;

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
