//! A cache of the peers of each stage that this node calls, and of each actor that it asks. A change of a connection or
//! of offers clears it; the next choice fills it again.
//!
//! The first choice after a change walks over all peers, later ones read without a lock. So changes that come together,
//! as when a node connects to hundreds of others, cost one walk. A peer that drains, or whose connection has just
//! ended, may still be in it: each reader asks [`StagePeer::is_usable`].

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use callboard_core::remote::splitmix64;
use callboard_core::{Instant, SessionKey};
use parking_lot::{Mutex, RwLock};

use super::load_balance::{PeerLoad, two_of};
use super::member::{KnownMember, Members};
use super::peer::Peer;
use super::stage_stats::StageStats;
use crate::client::NodeConnection;

#[derive(Debug, Default)]
pub(super) struct StageIndex {
    peers: ArcSwap<Vec<Arc<Peer>>>,
    /// Bounded by the stages that this node calls.
    stages: ArcSwap<HashMap<String, Arc<StagePeers>>>,
    /// Bounded by the actors that the peers publish.
    actors: RwLock<HashMap<String, Arc<NodeConnection>>>,
    /// The peers that publish each kind of keyed actors, and each actor that was asked as a group. Bounded as the
    /// actors.
    publishers: RwLock<HashMap<String, Arc<[Publisher]>>>,
    /// Held while the index is made.
    making: Mutex<()>,
    members: Members,
}

/// A peer that publishes a kind of keyed actors, or an actor.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    pub(super) member: Arc<KnownMember>,
    pub(super) connection: Arc<NodeConnection>,
}

impl Publisher {
    /// Whether it may have keys. The keys of a silent peer go to others: it may be dead, and if it is not, the store
    /// refuses what it saves.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable() && !self.connection.link().is_silent()
    }
}

/// The peers that offer one stage, by their form of answer.
#[derive(Debug, Default)]
pub(super) struct StagePeers {
    with_one_outcome: Vec<Arc<StagePeer>>,
    streaming: Vec<Arc<StagePeer>>,
}

/// A peer that offers a stage.
#[derive(Debug)]
pub(super) struct StagePeer {
    pub(super) member: Arc<KnownMember>,
    pub(super) connection: Arc<NodeConnection>,
    pub(super) stats: Arc<StageStats>,
    /// Whether the stage may run again, according to the peer.
    pub(super) is_idempotent: bool,
    pub(super) revision: u64,
}

/// The number of an actor, by which all nodes prefer the same publisher of it.
pub(super) fn actor_place(actor: &str) -> u64 {
    SessionKey::from(actor).number()
}

impl StageIndex {
    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    pub(super) fn peers(&self) -> arc_swap::Guard<Arc<Vec<Arc<Peer>>>> {
        self.peers.load()
    }

    pub(super) fn set_peers(&self, peers: Vec<Arc<Peer>>) {
        self.peers.store(Arc::new(peers));
        self.invalidate();
    }

    /// Clears the cache, after a change of a connection or of offers.
    pub(super) fn invalidate(&self) {
        // What was begun before the change is forgotten, too.
        let _making = self.making.lock();
        self.stages.store(Arc::default());
        self.actors.write().clear();
        self.publishers.write().clear();
    }

    /// The peer that publishes this actor. Of several the same for all nodes that reach them.
    pub(super) fn actor(&self, actor: &str) -> Option<Arc<NodeConnection>> {
        let known = self.actors.read().get(actor).filter(|node| node.is_usable()).cloned();
        known.or_else(|| {
            // Held meanwhile, so that what was found before a change is forgotten with it.
            let mut actors = self.actors.write();
            let peers = self.peers.load();
            let publishing = peers.iter().filter_map(|peer| peer.connected());
            let publishing = publishing.filter(|(node, _)| node.is_usable() && node.offers_actor(actor));
            let place = actor_place(actor);
            let (node, _) = publishing.max_by_key(|(_, member)| splitmix64(member.key ^ place))?;
            actors.insert(actor.to_owned(), Arc::clone(&node));
            Some(node)
        })
    }

    /// The peers that publish the kind of keyed actors, or the actor, of this name. Some may not be usable.
    pub(super) fn publishers(&self, name: &str) -> Arc<[Publisher]> {
        if let Some(known) = self.publishers.read().get(name) {
            return Arc::clone(known);
        }
        // Held meanwhile, as for actors.
        let mut publishers = self.publishers.write();
        let peers = self.peers.load();
        let publishing = peers.iter().filter_map(|peer| peer.connected()).filter(|(node, _)| node.offers_actor(name));
        let found: Arc<[_]> = publishing.map(|(connection, member)| Publisher { member, connection }).collect();
        if !found.is_empty() {
            publishers.insert(name.to_owned(), Arc::clone(&found));
        }
        found
    }

    /// The peers of a stage.
    pub(super) fn stage(&self, stage: &str) -> Arc<StagePeers> {
        let known = |index: &Self| index.stages.load().get(stage).cloned();
        if let Some(peers) = known(self) {
            return peers;
        }
        let _making = self.making.lock();
        known(self).unwrap_or_else(|| {
            let peers = Arc::new(self.make(stage));
            let mut stages = HashMap::clone(&self.stages.load());
            stages.insert(stage.to_owned(), Arc::clone(&peers));
            self.stages.store(Arc::new(stages));
            peers
        })
    }

    fn make(&self, stage: &str) -> StagePeers {
        let mut peers = StagePeers::default();
        for peer in self.peers.load().iter() {
            let Some((connection, member)) = peer.connected() else { continue };
            let Some(offer) = connection.stage_offer(stage) else { continue };
            let stats = member.stage(stage);
            let (is_idempotent, revision) = (offer.is_idempotent, offer.revision);
            let peer = StagePeer { member, connection, stats, is_idempotent, revision };
            let form = if offer.is_streaming { &mut peers.streaming } else { &mut peers.with_one_outcome };
            form.push(Arc::new(peer));
        }
        peers
    }
}

impl StagePeers {
    /// Those with this form of answer.
    pub(super) fn of_form(&self, is_streaming: bool) -> &[Arc<StagePeer>] {
        if is_streaming { &self.streaming } else { &self.with_one_outcome }
    }

    /// Those that take calls.
    pub(super) fn usable(&self) -> impl Iterator<Item = &Arc<StagePeer>> {
        self.with_one_outcome.iter().chain(&self.streaming).filter(|peer| peer.is_usable())
    }
}

impl StagePeer {
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    /// Whether it does not answer the calls that it has.
    pub(super) fn is_silent(&self) -> bool {
        self.connection.link().is_silent()
    }

    pub(super) fn load(&self, now: Instant) -> PeerLoad {
        self.stats.load(self.member.key, now)
    }

    /// The peer's name, or its address.
    pub(super) fn name(&self) -> String {
        match self.connection.welcome().node.as_str() {
            "" => self.connection.connection().remote_address().to_string(),
            name => name.to_owned(),
        }
    }
}

/// The better of two peers, each drawn by one of `chances`, where no breaker is open. `None`: one of them takes no call
/// now, so all have to be looked at.
pub(super) fn quick_pick(peers: &[Arc<StagePeer>], chances: (usize, usize), now: Instant) -> Option<&Arc<StagePeer>> {
    let (first, second) = two_of(peers.len(), chances)?;
    let (first, second) = (&peers[first], &peers[second]);
    let takes_calls = |peer: &StagePeer| peer.is_usable() && !peer.is_silent();
    if !(takes_calls(first) && takes_calls(second)) {
        return None;
    }
    Some(if second.load(now).cost() < first.load(now).cost() { second } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_come_together_cost_one_walk_over_the_peers() {
        let index = StageIndex::default();
        let before = index.stage("work");
        (0..300).for_each(|_| index.invalidate());
        assert!(index.stages.load().is_empty(), "no call has asked");
        let after = index.stage("work");
        assert!(!Arc::ptr_eq(&before, &after));
        assert!(Arc::ptr_eq(&after, &index.stage("work")), "kept until the next change");
    }
}
