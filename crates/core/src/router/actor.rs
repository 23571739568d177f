//! The owner of the table: puts a new version in place.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::message::RouterMessage;
use super::snapshot::{Router, Snapshot};

/// The actor of the router.
pub(crate) struct RouterActor;

impl Actor for RouterActor {
    type Msg = RouterMessage;
    type State = Arc<Router>;
    type Arguments = Arc<Router>;

    async fn pre_start(
        &self,
        _myself: ActorRef<RouterMessage>,
        router: Arc<Router>,
    ) -> Result<Arc<Router>, ActorProcessingErr> {
        Ok(router)
    }

    async fn handle(
        &self,
        _myself: ActorRef<RouterMessage>,
        message: RouterMessage,
        router: &mut Arc<Router>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RouterMessage::Publish { routes, published } => {
                router.publish(Snapshot::new(routes));
                let _ = published.send(());
            }
        }
        Ok(())
    }
}
