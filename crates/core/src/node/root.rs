//! The root of the tree: keeps the gateway and the router alive, and forwards events of the stages.
//!
//! The gateway and the router keep their state in values that their handles share, so a new actor continues after a
//! crash. They run no user code. If one of them dies repeatedly, that is a defect: the node reports it and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::actor::{GroupActor, GroupArgs, GroupMessage, SpawnActors};
use crate::client::NodeState;
use crate::clock;
use crate::executor::Watchdog;
use crate::gateway::{GatewayActor, GatewayMessage};
use crate::pool::StageState;
use crate::restart::{RestartDecision, RestartIntensity, RestartWindow};
use crate::router::{RouterActor, RouterArgs, RouterMessage};

pub(crate) struct RootActor;

pub(crate) struct RootArgs {
    pub(crate) shared: Arc<NodeState>,
    /// Ends with the tree, not with the handles.
    pub(crate) watchdog: Arc<Watchdog>,
}

#[derive(Debug)]
pub(crate) enum RootMessage {
    /// Start a group of actors. From the node's handles.
    SpawnActors(SpawnActors),
    /// Stop all actors in good order. From the node's handle, after the stages.
    StopActors {
        /// Notified when all actors are stopped.
        stopped: oneshot::Sender<()>,
    },
    /// Refuse new calls. From the node's handle.
    Drain {
        /// Notified when no call is in flight.
        emptied: oneshot::Sender<()>,
    },
}

pub(crate) struct RootState {
    shared: Arc<NodeState>,
    watchdog: Arc<Watchdog>,
    gateway: ActorRef<GatewayMessage>,
    router: ActorRef<RouterMessage>,
    window: RestartWindow,
    groups: Vec<ActorRef<GroupMessage>>,
}

impl Actor for RootActor {
    type Msg = RootMessage;
    type State = RootState;
    type Arguments = RootArgs;

    async fn pre_start(&self, myself: ActorRef<RootMessage>, args: RootArgs) -> Result<RootState, ActorProcessingErr> {
        let RootArgs { shared, watchdog } = args;
        let gateway = start_gateway(&shared, myself.get_cell()).await?;
        let router = start_router(&shared, &watchdog, myself.get_cell()).await?;
        shared.alive.store(true, Ordering::Release);
        shared.directory.set_root(Box::new(move |group| myself.cast(RootMessage::SpawnActors(group)).is_ok()));
        let window = RestartWindow::new(RestartIntensity::default());
        Ok(RootState { shared, watchdog, gateway, router, window, groups: Vec::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<RootMessage>,
        message: RootMessage,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMessage::SpawnActors(SpawnActors { group, started, turn: _turn }) => {
                let node = Arc::clone(&state.shared) as Arc<_>;
                let directory = Arc::clone(&state.shared.directory);
                let args = GroupArgs { group, node, directory, started };
                let (group, _) = Actor::spawn_linked(None, GroupActor, args, myself.get_cell()).await?;
                state.groups.push(group);
            }
            RootMessage::StopActors { stopped } => state.stop_actors(stopped),
            RootMessage::Drain { emptied } => state.gateway.cast(GatewayMessage::Drain(emptied))?,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RootMessage>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(who, error) => state.child_died(&myself, &who, error.to_string()).await,
            SupervisionEvent::ActorTerminated(who, _, reason) => {
                state.child_died(&myself, &who, reason.unwrap_or_else(|| "it was stopped".to_owned())).await
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }
}

impl RootState {
    async fn child_died(
        &mut self,
        myself: &ActorRef<RootMessage>,
        who: &ActorCell,
        why: String,
    ) -> Result<(), ActorProcessingErr> {
        let is_gateway = who.get_id() == self.gateway.get_id();
        let is_router = who.get_id() == self.router.get_id();
        if let Some(group) = self.groups.iter().position(|group| group.get_id() == who.get_id()) {
            // The group has closed its references and freed its names.
            self.groups.remove(group);
            return Ok(());
        }
        if !is_gateway && !is_router {
            // The router knows whether this end was intended.
            let _ = self.router.cast(RouterMessage::SupervisorDied { who: who.get_id(), why });
            return Ok(());
        }
        tracing::error!(parent: None, why, "a part of the node died: this is a defect");
        if self.window.record(clock::now()) == RestartDecision::GiveUp {
            return Err("gateway or router died too often".into());
        }
        if is_gateway {
            self.gateway = start_gateway(&self.shared, myself.get_cell()).await?;
        } else {
            self.router = start_router(&self.shared, &self.watchdog, myself.get_cell()).await?;
        }
        Ok(())
    }
}

impl RootState {
    /// Stops the groups in reverse order of their start: later groups may depend on earlier ones.
    fn stop_actors(&self, stopped: oneshot::Sender<()>) {
        let groups: Vec<_> = self.groups.iter().rev().cloned().collect();
        tokio::spawn(async move {
            for group in groups {
                let (done, over) = oneshot::channel();
                if group.cast(GroupMessage::Stop(done)).is_ok() {
                    // An error means that the group was already over.
                    let _ = over.await;
                }
            }
            let _ = stopped.send(());
        });
    }
}

impl Drop for RootState {
    /// The root has ended, for any reason: nothing under it serves any more.
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl NodeState {
    /// Marks the node as ended: its killed parts then answer for their batches.
    pub(super) fn end(&self) {
        self.alive.store(false, Ordering::Release);
        self.keyed.abort();
        for stage in self.router.table().stages() {
            stage.pool.enter(StageState::Stopped, None);
        }
    }
}

async fn start_gateway(
    shared: &Arc<NodeState>,
    root: ActorCell,
) -> Result<ActorRef<GatewayMessage>, ActorProcessingErr> {
    let (gateway, _) = Actor::spawn_linked(None, GatewayActor, Arc::clone(&shared.gateway), root).await?;
    Ok(gateway)
}

async fn start_router(
    shared: &Arc<NodeState>,
    watchdog: &Arc<Watchdog>,
    root: ActorCell,
) -> Result<ActorRef<RouterMessage>, ActorProcessingErr> {
    let args = RouterArgs {
        router: Arc::clone(&shared.router),
        metrics: Arc::clone(&shared.metrics),
        watchdog: Arc::clone(watchdog),
        node: Arc::clone(shared) as Arc<_>,
        places: Arc::clone(&shared.places),
        root: root.clone(),
    };
    let (router, _) = Actor::spawn_linked(None, RouterActor, args, root).await?;
    Ok(router)
}
