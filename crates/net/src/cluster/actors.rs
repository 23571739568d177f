//! Questions to actors on other nodes: each goes once, to the peer that publishes its actor, as a call on the connection.

use std::sync::Arc;

use callboard_codec::Payload;
use callboard_codec::wire::{Ask, Call};
use callboard_core::remote::{RemoteActors, RemoteFuture, RemoteQuestion};
use callboard_core::{CallError, ErrorKind, Instant};

use super::dispatch::peer_outcome;
use super::{Cluster, Inner};
use crate::client::{CallFault, RoomPolicy, not_started, read_output};
use crate::metrics::PeerOutcome;
use crate::{offload, wire};

impl RemoteActors for Cluster {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.ask(question).await })
    }
}

impl Inner {
    async fn ask(&self, question: RemoteQuestion) -> Result<Payload, CallError> {
        let node = self.index.actor(&question.actor).ok_or_else(|| self.no_actor(&question.actor))?;
        let envelope = offload::encode(&question.payload, None).await?.map_err(|error| {
            let message = format!("the question `{}` cannot be sent: {error}", question.question);
            CallError::new(ErrorKind::InvalidInput, message)
        })?;
        let (actor, name) = ((*question.actor).to_owned(), question.question.to_owned());
        let ask = Ask { actor, question: name, tell: question.is_tell };
        let mut header = Call { ask: Some(Box::new(ask)), ..Call::default() };
        wire::put_options(&mut header, &question.options, Instant::now());
        let answered = node.call(&header, &envelope, self.reply_limits(), RoomPolicy::Wait).await;
        self.metrics.called(answered.as_ref().err().map_or(PeerOutcome::Answered, peer_outcome));
        let answer = answered.map_err(CallFault::into_error)?;
        read_output(answer.body, None, question.read).await
    }

    /// The error of a question without a node. It tells whether nodes are missing, or too old.
    fn no_actor(&self, actor: &str) -> CallError {
        let peers = self.index.peers();
        let connected = || peers.iter().filter_map(|peer| peer.connected()).filter(|(node, _)| node.is_usable());
        let (all, old) = (connected().count(), connected().filter(|(node, _)| !node.has_actors()).count());
        let of_them = match (all, old) {
            (0, _) => "no node is connected".to_owned(),
            (_, 0) => format!("none of {all} connected nodes does"),
            _ => format!("none of {all} connected nodes does; {old} of them are too old for actors"),
        };
        not_started(format_args!("no node can be reached that publishes the actor `{actor}`: {of_them}"))
    }
}
