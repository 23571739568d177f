//! One revision of a stage on this node, with the address of its supervisor.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ractor::{ActorId, ActorRef};
use tokio::sync::oneshot;

use crate::id::StageName;
use crate::pool::{Pool, StageState};
use crate::stage::StageSpec;
use crate::supervisor::DeploymentMessage;

/// One revision of a stage on this node.
#[derive(Debug)]
pub(crate) struct DeployedStage {
    pub(crate) pool: Arc<Pool>,
    /// The number of the change that started it.
    pub(crate) revision: u64,
    /// Set once the supervisor is spawned. A stage that another one hosts has none.
    supervisor: OnceLock<ActorRef<DeploymentMessage>>,
}

impl DeployedStage {
    pub(super) fn new(pool: Arc<Pool>, revision: u64) -> Arc<Self> {
        Arc::new(Self { pool, revision, supervisor: OnceLock::new() })
    }

    pub(crate) fn name(&self) -> &StageName {
        self.pool.name()
    }

    pub(super) fn spec(&self) -> &Arc<StageSpec> {
        &self.pool.spec
    }

    /// Whether its replicas are those of this stage, and not its own.
    pub(super) fn is_hosted_by(&self, other: &Self) -> bool {
        self.pool.host.as_ref().is_some_and(|host| Arc::ptr_eq(host, &other.pool))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.pool.health.state() == StageState::Failed
    }

    pub(super) fn set_supervisor(&self, supervisor: ActorRef<DeploymentMessage>) {
        let _ = self.supervisor.set(supervisor);
    }

    pub(super) fn supervisor(&self) -> Option<&ActorRef<DeploymentMessage>> {
        self.supervisor.get()
    }

    pub(super) fn is_supervised_by(&self, actor: ActorId) -> bool {
        self.supervisor().is_some_and(|supervisor| supervisor.get_id() == actor)
    }

    /// Asks the supervisor to end the stage. `None` without a supervisor.
    pub(super) fn stop(&self, within: Duration) -> Option<oneshot::Receiver<()>> {
        let (stopped, done) = oneshot::channel();
        let sent = self.supervisor()?.cast(DeploymentMessage::Stop { within, stopped });
        sent.is_ok().then_some(done)
    }
}
