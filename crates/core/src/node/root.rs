//! The root of the tree: keeps gateway and router alive, and notes a stage whose supervisor died.
//!
//! Gateway and router keep what is precious in values that their handles share, so a new actor takes over where the dead
//! one was. They run no user code; if one of them dies again and again, that is a defect, and the node says so and ends.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use super::Shared;
use crate::clock;
use crate::gateway::{GatewayActor, GatewayMessage};
use crate::router::{Route, RouterActor, RouterMessage};
use crate::supervisor::{Intensity, RestartWindow, StageState, Verdict};

/// The actor at the root.
pub(crate) struct RootActor;

/// Messages to the root.
#[derive(Debug)]
pub(crate) enum RootMessage {
    /// Serve these routes. From the node's handle.
    Publish {
        /// The whole table.
        routes: Vec<Arc<Route>>,
        /// Told when callers see it.
        published: oneshot::Sender<()>,
    },
    /// Admit nothing more. From the node's handle.
    Drain {
        /// Told when nothing is in flight.
        emptied: oneshot::Sender<()>,
    },
}

pub(crate) struct RootState {
    shared: Arc<Shared>,
    gateway: ActorRef<GatewayMessage>,
    router: ActorRef<RouterMessage>,
    window: RestartWindow,
}

impl Actor for RootActor {
    type Msg = RootMessage;
    type State = RootState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        myself: ActorRef<RootMessage>,
        shared: Arc<Shared>,
    ) -> Result<RootState, ActorProcessingErr> {
        let (gateway, _) =
            Actor::spawn_linked(None, GatewayActor, Arc::clone(&shared.gateway), myself.get_cell()).await?;
        let (router, _) = Actor::spawn_linked(None, RouterActor, Arc::clone(&shared.router), myself.get_cell()).await?;
        Ok(RootState { shared, gateway, router, window: RestartWindow::new(Intensity::default()) })
    }

    async fn handle(
        &self,
        _myself: ActorRef<RootMessage>,
        message: RootMessage,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMessage::Publish { routes, published } => {
                state.router.cast(RouterMessage::Publish { routes, published })?;
            }
            RootMessage::Drain { emptied } => {
                state.gateway.cast(GatewayMessage::Drain(emptied))?;
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<RootMessage>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        let SupervisionEvent::ActorFailed(who, error) = event else { return Ok(()) };
        tracing::error!(%error, "a part of the node died: this is a defect");
        if who.get_id() == state.gateway.get_id() || who.get_id() == state.router.get_id() {
            if state.window.record(clock::now()) == Verdict::GiveUp {
                return Err("gateway or router died too often".into());
            }
            let shared = &state.shared;
            let cell = myself.get_cell();
            if who.get_id() == state.gateway.get_id() {
                (state.gateway, _) = Actor::spawn_linked(None, GatewayActor, Arc::clone(&shared.gateway), cell).await?;
            } else {
                (state.router, _) = Actor::spawn_linked(None, RouterActor, Arc::clone(&shared.router), cell).await?;
            }
        } else {
            state.fail_orphans(&error.to_string());
        }
        Ok(())
    }
}

impl RootState {
    /// A stage's supervisor died and its children with it: its pool will not serve again.
    fn fail_orphans(&self, why: &str) {
        for pool in &self.shared.pools {
            if pool.state().0.is_ready() && pool.workers().is_empty() {
                pool.enter(StageState::Failed, Some(format!("its supervisor died: {why}")));
            }
        }
    }
}
