//! The work of the gateway outside of calls: draining, and the sweep of the ledger.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::handle::Gateway;
use super::message::GatewayMessage;
use crate::clock;

/// How often the ledger is checked for calls that are older than possible.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct GatewayActor;

pub(crate) struct GatewayState {
    gateway: Arc<Gateway>,
    waiting_for_empty: Vec<oneshot::Sender<()>>,
}

impl Actor for GatewayActor {
    type Msg = GatewayMessage;
    type State = GatewayState;
    type Arguments = Arc<Gateway>;

    async fn pre_start(
        &self,
        myself: ActorRef<GatewayMessage>,
        gateway: Arc<Gateway>,
    ) -> Result<GatewayState, ActorProcessingErr> {
        gateway.set_actor(myself.clone());
        myself.send_interval(SWEEP_EVERY, || GatewayMessage::Sweep);
        Ok(GatewayState { gateway, waiting_for_empty: Vec::new() })
    }

    async fn handle(
        &self,
        _myself: ActorRef<GatewayMessage>,
        message: GatewayMessage,
        state: &mut GatewayState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GatewayMessage::Drain(emptied) => {
                state.gateway.drain();
                state.waiting_for_empty.push(emptied);
                state.tell_if_empty();
            }
            GatewayMessage::Emptied => state.tell_if_empty(),
            GatewayMessage::Sweep => {
                for (flight, route) in state.gateway.overdue(clock::now()) {
                    tracing::error!(parent: None, %flight, route = route.0, "a call is older than any deadline allows");
                }
            }
        }
        Ok(())
    }
}

impl GatewayState {
    fn tell_if_empty(&mut self) {
        if self.gateway.in_flight() == 0 {
            for waiting in self.waiting_for_empty.drain(..) {
                let _ = waiting.send(());
            }
        }
    }
}
