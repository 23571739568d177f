//! A network on which nodes have actors for each other, and no stages.

use super::peer::not_started;
use crate::call::SessionKey;
use crate::error::CallError;
use crate::remote::{
    RemoteActors, RemoteFuture, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply, StageTarget,
};

/// What a node joins that finds its actors by these, and runs all stages itself.
#[derive(Debug)]
pub(crate) struct WithoutStages<A>(pub(crate) A);

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

    fn run(&self, call: StageCall) -> RemoteFuture<StageReply> {
        Box::pin(std::future::ready(Err(not_run(&call))))
    }

    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs> {
        Box::pin(std::future::ready(Err(not_run(&call))))
    }
}

fn not_run(call: &StageCall) -> CallError {
    not_started(format!("these nodes run no stage for each other, also not `{}`", call.stage()))
}
