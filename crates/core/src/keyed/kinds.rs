//! The kinds of a node: which node has a key by its view, and the supervisor that moves keys when that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::kind::{AnyKind, KindNode};
use super::placement;
use super::spec::KindStart;
use crate::actor::{ActorError, PublishedActor};
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::remote::{Cluster, GIVE_AWAY_EVERY, JoinState, KINDS_PREFIX, KeyOwner, RemoteActors};

/// The longest name of a kind.
pub(super) const MAX_NAME_BYTES: usize = 96;

/// The most keys that are moved each time: 1,000 in a second.
const MOVES_AT_ONCE: usize = 250;

/// The kinds of a node.
#[derive(Default)]
pub(crate) struct KeyedKinds {
    kinds: OnceLock<BTreeMap<Arc<str>, RunningKind>>,
    /// Other nodes take the keys of this one from now on.
    is_leaving: AtomicBool,
    /// Notified then.
    leaves: Notify,
    /// Set once the network has said so: every question asks.
    has_joined: AtomicBool,
}

/// A kind, and what other nodes can find of it.
#[derive(Clone)]
pub(crate) struct RunningKind {
    pub(crate) kind: Arc<dyn AnyKind>,
    pub(crate) published: Arc<PublishedActor>,
}

impl KeyedKinds {
    /// Starts the kinds of an app, and the supervisor that moves their keys. Once for each node.
    pub(crate) fn start(self: &Arc<Self>, specs: Vec<KindStart>, node: &KindNode) -> Result<(), ActorError> {
        let mut kinds = BTreeMap::new();
        for spec in specs {
            let name = Arc::clone(&spec.name);
            if name.len() > MAX_NAME_BYTES {
                return Err(ActorError::LongName { name: name.to_string(), limit: MAX_NAME_BYTES });
            }
            let (kind, published) = spec.start(node.clone());
            if kinds.insert(Arc::clone(&name), RunningKind { kind, published }).is_some() {
                return Err(ActorError::NameTaken { name: name.to_string() });
            }
        }
        if kinds.is_empty() {
            return Ok(());
        }
        let _ = self.kinds.set(kinds);
        tokio::spawn(supervise(Arc::downgrade(self), node.cluster.clone()));
        Ok(())
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&RunningKind> {
        self.kinds.get()?.get(kind)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &RunningKind)> {
        self.kinds.get().into_iter().flatten()
    }

    /// The names under which other nodes find the kinds, sorted. None while the node does not know the others.
    pub(crate) fn published_names(&self, cluster: &Cluster) -> Vec<String> {
        if matches!(self.joining(cluster), Some(JoinState::Joining { .. })) {
            return Vec::new();
        }
        self.all().map(|(name, _)| placement::published_name(name)).collect()
    }

    /// Why a node with kinds has no keys yet.
    pub(crate) fn join_reason(&self, cluster: &Cluster) -> Option<String> {
        self.all().next()?;
        match self.joining(cluster)? {
            JoinState::Joining { reason } => Some(reason.to_string()),
            JoinState::Announced => Some("the other nodes are told of its keyed actors".to_owned()),
            JoinState::Joined { .. } => None,
        }
    }

    /// The state of a node that has not joined the others yet; `None` once it has, and without others.
    pub(crate) fn joining(&self, cluster: &Cluster) -> Option<JoinState> {
        if self.has_joined.load(Ordering::Acquire) {
            return None;
        }
        let state = cluster.actors()?.join_state().borrow().clone();
        if !state.is_joined() {
            return Some(state);
        }
        if !self.has_joined.swap(true, Ordering::AcqRel) {
            self.warn_alone(&state);
        }
        None
    }

    /// Waits until the node has seen the nodes that it joins.
    pub(crate) async fn until_joined(&self, cluster: &Cluster, deadline: Deadline) -> Result<(), AskError> {
        if self.joining(cluster).is_none() {
            return Ok(());
        }
        let Some(mut state) = cluster.actors().map(RemoteActors::join_state) else { return Ok(()) };
        let joined = state.wait_for(JoinState::is_joined);
        // An error of the inner one means that the node ends.
        let joined = tokio::time::timeout_at(deadline.instant(), joined).await.map(drop);
        joined.map_err(|_| AskError::DeadlineExceeded { taken: false })
    }

    /// The kind that other nodes find under this name.
    pub(crate) fn published(&self, name: &str) -> Option<&RunningKind> {
        self.get(name.strip_prefix(KINDS_PREFIX)?)
    }

    /// The node that has the key of a kind, which is published under this name, by the view of this node. One that
    /// leaves gives its keys away, if another node takes them.
    pub(crate) fn owner(&self, cluster: &Cluster, published: &str, key: &str) -> Result<KeyOwner, AskError> {
        let kind = published.strip_prefix(KINDS_PREFIX).unwrap_or(published);
        let has_kind = self.get(kind).is_some();
        let others = cluster.actors();
        let place = || placement::place_of(kind, key);
        let owner = others.and_then(|others| others.owner(published, place(), has_kind && !self.is_leaving()));
        owner.or_else(|| has_kind.then_some(KeyOwner::This)).ok_or_else(|| AskError::Unreachable {
            reason: format!("no node can be reached that has the keyed actors `{kind}`"),
        })
    }

    /// The node is withdrawn or drains: its keys are saved and ended at once, where another node has their kind.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.leaves.notify_one();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Saves and ends all keys of all kinds, within this time and each kind's own.
    pub(crate) async fn stop(&self, within: Duration) {
        join_all(self.all().map(|(_, running)| running.kind.stop(within))).await;
    }

    /// Says that the node has keys without having seen all nodes that it joins.
    fn warn_alone(&self, state: &JoinState) {
        let kinds: Vec<_> = self.all().map(|(name, _)| &**name).collect();
        if let (JoinState::Joined { without: Some(missing) }, false) = (state, kinds.is_empty()) {
            tracing::warn!(
                parent: None,
                kinds = kinds.join(", "),
                "this node takes keys without having seen all nodes that it joins: {missing}"
            );
        }
    }

    /// Ends all keys at once.
    pub(crate) fn abort(&self) {
        self.all().for_each(|(_, running)| running.kind.abort());
    }
}

/// Moves the keys that another node should have, whenever the nodes have changed.
async fn supervise(kinds: Weak<KeyedKinds>, cluster: Cluster) {
    let mut views: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    let mut known: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut warned = BTreeSet::new();
    loop {
        let Some(leaves) = kinds.upgrade() else { return };
        let _ = tokio::time::timeout(GIVE_AWAY_EVERY, leaves.leaves.notified()).await;
        drop(leaves);
        let Some(kinds) = kinds.upgrade() else { return };
        let is_leaving = kinds.is_leaving();
        let Some(actors) = cluster.actors() else { continue };
        // The first look after the join warns, also while no question comes.
        let _ = kinds.joining(&cluster);
        for (name, running) in kinds.all() {
            let published = placement::published_name(name);
            let view = actors.view_of(&published);
            if view != 0 && running.kind.store().is_local() && warned.insert(Arc::clone(name)) {
                tracing::warn!(
                    parent: None,
                    kind = &**name,
                    "other nodes have these keyed actors, and their store is on this machine: a key that moves does \
                     not find its state there (use a shared store)"
                );
            }
            // A node that was away may have claimed keys meanwhile. Its instances end, and those here are not fenced
            // off before they save: until then they would answer with what they know.
            let publishers = actors.publishers(&published).into_iter().collect();
            let before = known.insert(Arc::clone(name), publishers).unwrap_or_default();
            if known.get(name).is_some_and(|now| !now.is_subset(&before)) {
                running.kind.check_fences();
            }
            // A question that another node sends back makes a key active once more.
            if views.get(name) == Some(&view) && !is_leaving {
                continue;
            }
            let is_here = |key: &str| {
                let owner = actors.owner(&published, placement::place_of(name, key), !is_leaving);
                !matches!(owner, Some(KeyOwner::Other(_)))
            };
            let at_most = if is_leaving { usize::MAX } else { MOVES_AT_ONCE };
            if running.kind.move_away(&is_here, at_most) {
                views.insert(Arc::clone(name), view);
            }
        }
    }
}

impl fmt::Debug for KeyedKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let active = self.all().map(|(name, running)| (name, running.kind.active()));
        f.debug_map().entries(active).finish()
    }
}
