//! The reasons why a stage keeps the node or a route from being ready.

use callboard_core::description::{ActorHealth, RemoteStageHealth, StageHealth};

/// The reason of a stage that is not ready.
#[must_use]
pub fn not_ready_reason(stage: &StageHealth) -> Option<String> {
    let StageHealth { name, state, reason, .. } = stage;
    let state = state.as_str();
    let because = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    (!stage.ready).then(|| format!("stage `{name}` is {state}{because}"))
}

/// The reason of an unreachable remote stage.
#[must_use]
pub fn unreachable_reason(stage: &RemoteStageHealth) -> Option<String> {
    let RemoteStageHealth { name, reason, .. } = stage;
    reason.as_ref().map(|reason| format!("stage `{name}` is remote: {reason}"))
}

/// The reason of an actor that keeps the node from being ready.
#[must_use]
pub(crate) fn down_reason(actor: &ActorHealth) -> String {
    let ActorHealth { name, state, reason, .. } = actor;
    let because = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("`{name}` is {}{because}", state.as_str())
}

/// The reason of a node that has no keyed actors yet.
#[must_use]
pub(crate) fn joining_reason(reason: &str) -> String {
    format!("the node joins its cluster: {reason}")
}
