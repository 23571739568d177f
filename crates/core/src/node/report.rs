//! What a node tells other nodes of itself. It is compared several times a second: cheaper than a description.

use std::sync::Arc;

use crate::client::NodeState;
use crate::remote::{
    MAX_REPORTED, MAX_REPORTED_NAME_BYTES, NodePhase, NodeReport, RouteReport, StageLoadReport, StageReport,
};
use crate::router::{DeployedStage, Route};

impl NodeState {
    /// What the node tells other nodes of itself, but for its version and the time.
    pub(crate) fn report(&self) -> NodeReport {
        let (health, table) = (self.health(), self.router.table());
        let phase = match (health.draining, health.ready) {
            (true, _) => NodePhase::Draining,
            (false, true) => NodePhase::Ready,
            (false, false) => NodePhase::NotReady,
        };
        let public = table.routes().iter().filter(|route| !route.is_private());
        let route = |route: &Arc<Route>| RouteReport { name: route.name().to_owned(), revision: route.revision() };
        let stages = table.serving().iter().filter(|stage| table.is_routed(stage));
        NodeReport {
            phase,
            routes: public.map(route).collect(),
            stages: stages.map(report_stage).collect(),
            ..NodeReport::default()
        }
    }

    /// The load of the stages in the report, as many as one may have.
    pub(crate) fn stage_loads(&self) -> Vec<StageLoadReport> {
        let table = self.router.table();
        let stages = table.serving().iter().filter(|stage| table.is_routed(stage));
        let named = stages.filter(|stage| stage.name().as_str().len() <= MAX_REPORTED_NAME_BYTES);
        named.take(MAX_REPORTED).map(load_of_stage).collect()
    }
}

fn report_stage(stage: &Arc<DeployedStage>) -> StageReport {
    let (pool, count) = (&stage.pool, |count: usize| u32::try_from(count).unwrap_or(u32::MAX));
    // Replicas are counted once, with the stage that has them.
    let (ready, wanted) = match pool.host {
        Some(_) => (0, 0),
        None => (pool.replicas.all().iter().filter(|replica| !replica.is_leaving()).count(), pool.replicas.target()),
    };
    let (name, revision) = (stage.name().as_str().to_owned(), pool.settings().revision());
    StageReport { name, revision, ready: count(ready), wanted: count(wanted) }
}

fn load_of_stage(stage: &Arc<DeployedStage>) -> StageLoadReport {
    let pool = &stage.pool;
    let replicas = if pool.host.is_some() { Vec::new() } else { pool.replicas.all() };
    let busy = replicas.iter().filter(|replica| replica.running() > 0).count();
    StageLoadReport {
        name: stage.name().as_str().to_owned(),
        queued: pool.queued() as u64,
        queue_limit: pool.settings().queue().get() as u64,
        busy: u32::try_from(busy).unwrap_or(u32::MAX),
        capacity: pool.capacity() as u64,
    }
}
