//! Tells the members of the cluster what this node does and runs, whenever that has changed.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use callboard_core::remote::{NodePhase, NodeReport};

use super::ServerState;

/// How often the report is compared with the last one. The membership sends one a second at most.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs as long as the server. A node that does not gossip tells nobody.
pub(super) async fn tell_members(server: Weak<ServerState>) {
    let mut last = NodeReport::default();
    while let Some(server) = server.upgrade() {
        let Some(gossip) = server.gossip.as_ref() else { return };
        let (report, drains) = (server.report(), Arc::clone(&server.drains));
        if report != last {
            gossip.report(report.clone()).await;
            last = report;
        }
        drop(server);
        let _ = tokio::time::timeout(LOOK_EVERY, drains.notified()).await;
    }
}

impl ServerState {
    /// What this node says of itself now.
    pub(super) fn report(&self) -> NodeReport {
        let mut report = match self.node() {
            Some(node) => node.edge().report(),
            None => NodeReport::starting(),
        };
        if self.is_draining() {
            report.phase = NodePhase::Draining;
        }
        let mut phase = self.phase.lock();
        if *phase == (NodePhase::default(), 0) || phase.0 != report.phase {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            *phase = (report.phase, since);
        }
        report.since = phase.1;
        report.version = env!("CARGO_PKG_VERSION").to_owned();
        report
    }
}
