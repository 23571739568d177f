//! Questions to actors on other nodes: each goes once, to the peer that publishes its actor, as a call on the connection.

use std::cmp::Reverse;
use std::sync::Arc;

use callboard_codec::Payload;
use callboard_codec::wire::{Ask, Call};
use callboard_core::remote::{JoinState, KeyOwner, Reach, RemoteActors, RemoteFuture, RemoteQuestion, splitmix64};
use callboard_core::{CallError, ErrorKind, Instant};
use tokio::sync::watch;

use super::dispatch::peer_outcome;
use super::index::actor_place;
use super::{Cluster, Inner};
use crate::client::{CallFault, NodeConnection, RoomPolicy, not_started, read_output};
use crate::metrics::PeerOutcome;
use crate::{offload, wire};

impl RemoteActors for Cluster {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.ask(question).await })
    }

    fn publishers(&self, actor: &str) -> Vec<Arc<str>> {
        let peers = self.inner.index.publishers(actor);
        let mut usable: Vec<_> = peers.iter().filter(|peer| peer.connection.is_usable()).collect();
        let place = actor_place(actor);
        usable.sort_by_key(|peer| Reverse(splitmix64(peer.member.key ^ place)));
        let mut names: Vec<_> = usable.into_iter().map(|peer| Arc::clone(&peer.member.name)).collect();
        // A node may have two connections for a moment.
        names.dedup();
        names
    }

    fn owner(&self, kind: &str, place: u64, is_here: bool) -> Option<KeyOwner> {
        let inner = &self.inner;
        let score = |key: u64| splitmix64(key ^ place);
        let peers = inner.index.publishers(kind);
        let best = peers.iter().filter(|peer| peer.is_usable()).max_by_key(|peer| score(peer.member.key));
        match best {
            Some(peer) if !is_here || score(peer.member.key) > score(inner.key) => {
                Some(KeyOwner::Other(Arc::clone(&peer.member.name)))
            }
            _ => is_here.then_some(KeyOwner::This),
        }
    }

    fn view_of(&self, kind: &str) -> u64 {
        let peers = self.inner.index.publishers(kind);
        let usable = peers.iter().filter(|peer| peer.is_usable());
        usable.fold(0, |view, peer| view ^ splitmix64(peer.member.key))
    }

    fn this_node(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.inner.name))
    }

    fn join_state(&self) -> watch::Receiver<JoinState> {
        self.inner.joined.subscribe()
    }

    fn reach(&self, kind: &str, node: &str) -> Reach {
        match self.inner.connection_of(node) {
            Some(connection) if connection.link().is_silent() || !connection.offers_actor(kind) => Reach::Gone,
            Some(connection) if !connection.is_usable() => Reach::Draining,
            Some(_) => Reach::Connected,
            None if self.inner.gossip.as_ref().is_some_and(|gossip| gossip.is_alive(node)) => Reach::Expected,
            None => Reach::Gone,
        }
    }
}

impl Inner {
    async fn ask(&self, question: RemoteQuestion) -> Result<Payload, CallError> {
        let node = match &question.node {
            None => self.index.actor(&question.actor).ok_or_else(|| self.no_actor(&question.actor))?,
            // Also to a node that drains, which takes nothing else.
            Some(name) if question.is_handover => {
                self.connection_of(name).ok_or_else(|| not_started(format_args!("the node `{name}` is away")))?
            }
            Some(name) if question.key.is_none() => self.publisher(&question.actor, name)?,
            Some(name) => self.node_of_kind(&question.actor, name)?,
        };
        let envelope = offload::encode(&question.payload, None).await?.map_err(|error| {
            let message = format!("the question `{}` cannot be sent: {error}", question.question);
            CallError::new(ErrorKind::InvalidInput, message)
        })?;
        let (actor, name) = ((*question.actor).to_owned(), question.question.to_owned());
        let key = question.key.as_deref().map(str::to_owned);
        let ask = Ask { actor, question: name, tell: question.is_tell, key };
        let mut header = Call { ask: Some(Box::new(ask)), ..Call::default() };
        wire::put_options(&mut header, &question.options, Instant::now());
        let answered = node.call(&header, &envelope, self.reply_limits(), RoomPolicy::Wait).await;
        self.metrics.called(answered.as_ref().err().map_or(PeerOutcome::Answered, peer_outcome));
        let answer = answered.map_err(CallFault::into_error)?;
        read_output(answer.body, None, question.read).await
    }

    /// The open connection to the node of this name.
    fn connection_of(&self, name: &str) -> Option<Arc<NodeConnection>> {
        let peers = self.index.peers();
        let open = peers.iter().filter_map(|peer| peer.connected()).filter(|(node, _)| !node.is_closed());
        open.into_iter().find(|(_, member)| *member.name == *name).map(|(node, _)| node)
    }

    /// The peer of this name, which publishes the actor. It may be silent: its connection says when it is lost.
    fn publisher(&self, actor: &str, name: &str) -> Result<Arc<NodeConnection>, CallError> {
        let peers = self.index.publishers(actor);
        let found = peers.iter().find(|peer| *peer.member.name == *name && peer.connection.is_usable());
        found.map(|peer| Arc::clone(&peer.connection)).ok_or_else(|| {
            not_started(format_args!("the node `{name}` cannot be reached, or publishes no actor `{actor}`"))
        })
    }

    /// The peer of this name, which has the kind of keyed actors.
    fn node_of_kind(&self, kind: &str, name: &str) -> Result<Arc<NodeConnection>, CallError> {
        let peers = self.index.publishers(kind);
        let found = peers.iter().find(|peer| *peer.member.name == *name && peer.is_usable());
        let known = found.map(|peer| Arc::clone(&peer.connection));
        // The index may be older than what `reach` has just seen.
        let has_kind = |node: &Arc<NodeConnection>| node.is_usable() && node.offers_actor(kind);
        known.or_else(|| self.connection_of(name).filter(has_kind)).ok_or_else(|| {
            not_started(format_args!("the node `{name}` cannot be reached, or has no keyed actors `{kind}`"))
        })
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
