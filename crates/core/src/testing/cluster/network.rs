//! The network between the nodes of a test: who runs, who reaches whom, and what becomes of a question on its way.

use std::cmp::Reverse;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use callboard_codec::Payload;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::call::SessionKey;
use crate::clock;
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::node::NodeHandle;
use crate::remote::{KeyOwner, Reach, RemoteActors, RemoteFuture, RemoteQuestion};
use crate::splitmix64::splitmix64;
use crate::testing::Chance;
use crate::testing::peer::{connection_lost, not_started, options_on_peer, transferred};

/// All nodes, and the lines between them. Clones are the same network.
#[derive(Clone, Debug)]
pub(super) struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: Mutex<Vec<Place>>,
    /// Notified of each change. Those that wait learn of it in their order, and not as chance has it.
    changed: Notify,
    /// How long a message takes, in milliseconds; none without it.
    delays: Mutex<Option<(Chance, Range<u64>)>>,
}

/// One node of the network.
#[derive(Clone, Debug, Default)]
struct Place {
    /// `None` while it does not run.
    node: Option<NodeHandle>,
    /// How often it has started.
    life: u64,
    /// Nodes of one side reach each other.
    side: usize,
}

/// The name of a node.
pub(super) fn name(number: usize) -> String {
    format!("node-{number}")
}

fn number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// How much a node wants a key: the node with the highest number has it, as on a real network.
fn score(node: usize, place: u64) -> u64 {
    splitmix64(SessionKey::new(&name(node)).number() ^ place)
}

impl Network {
    /// Of this number of nodes, none of which runs.
    pub(super) fn new(nodes: usize) -> Self {
        let places = Mutex::new(vec![Place::default(); nodes]);
        Self(Arc::new(Inner { places, changed: Notify::new(), delays: Mutex::default() }))
    }

    /// From now on each message takes a drawn number of milliseconds.
    pub(super) fn set_delays(&self, chance: Chance, millis: Range<u64>) {
        *self.0.delays.lock() = Some((chance, millis));
    }

    pub(super) fn started(&self, number: usize, node: NodeHandle) {
        self.change(|places| {
            places[number].life += 1;
            places[number].node = Some(node);
        });
    }

    pub(super) fn ended(&self, number: usize) {
        self.change(|places| places[number].node = None);
    }

    /// From now on these nodes reach each other, and the rest reach each other.
    pub(super) fn part(&self, apart: &[usize]) {
        self.change(|places| {
            for (number, place) in places.iter_mut().enumerate() {
                place.side = usize::from(apart.contains(&number));
            }
        });
    }

    /// The nodes that run, by their numbers.
    pub(super) fn running(&self) -> Vec<(usize, NodeHandle)> {
        let places = self.0.places.lock();
        places.iter().enumerate().filter_map(|(number, place)| Some((number, place.node.clone()?))).collect()
    }

    /// The other node, if both run and reach each other.
    fn reached(&self, from: usize, to: usize) -> Option<NodeHandle> {
        reached(&self.0.places.lock(), from, to)
    }

    /// Completes when the line between these nodes is lost after this moment.
    fn until_parted(&self, from: usize, to: usize) -> impl Future<Output = ()> + Send + use<> {
        let inner = Arc::clone(&self.0);
        let lives = move |places: &[Place]| [from, to].map(|node| places[node].life);
        let before = lives(&inner.places.lock());
        async move {
            loop {
                let mut changed = pin!(inner.changed.notified());
                // Registered before the look, so that no change is missed.
                changed.as_mut().enable();
                {
                    let places = inner.places.lock();
                    if lives(&places) != before || reached(&places, from, to).is_none() {
                        return;
                    }
                }
                changed.await;
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Place>)) {
        change(&mut self.0.places.lock());
        self.0.changed.notify_waiters();
    }

    async fn delay(&self) {
        let delay = self.0.delays.lock().as_mut().map(|(chance, millis)| chance.millis(millis.clone()));
        if let Some(delay) = delay {
            sleep(delay).await;
        }
    }
}

fn reached(places: &[Place], from: usize, to: usize) -> Option<NodeHandle> {
    let (one, other) = (places.get(from)?, places.get(to)?);
    let is_reached = from != to && one.node.is_some() && one.side == other.side;
    other.node.clone().filter(|_| is_reached)
}

/// The network as one node sees it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) network: Network,
    pub(super) number: usize,
}

impl Seat {
    /// The other nodes that publish this and can be reached, by their numbers.
    fn with_actor(&self, actor: &str) -> Vec<usize> {
        let running = self.network.running().into_iter();
        let others = running.filter_map(|(number, _)| Some((number, self.network.reached(self.number, number)?)));
        let publishes = |node: &NodeHandle| node.client().edge().published_actors().iter().any(|name| name == actor);
        others.filter(|(_, node)| publishes(node)).map(|(number, _)| number).collect()
    }

    async fn ask_now(self, question: RemoteQuestion) -> Result<Payload, CallError> {
        let RemoteQuestion { actor, question, is_tell, payload, options, key, node, .. } = question;
        let to = match &node {
            Some(name) => number(name),
            None => self.publishers(&actor).first().and_then(|name| number(name)),
        };
        let reached = to.and_then(|to| Some((to, self.network.reached(self.number, to)?)));
        let Some((to, reached)) = reached else {
            return Err(not_started(format!("no node can be reached that publishes the actor `{actor}`")));
        };
        let sent = transferred(&payload)?;
        let asking = async {
            self.network.delay().await;
            let client = reached.client();
            let bytes = sent.size_hint() as u64;
            let admission = client.edge().admit_question(&actor, key.as_deref(), question, is_tell, bytes)?;
            let admission = admission.asked_by(self.this_node());
            let (now, options) = (clock::now(), options_on_peer(&options));
            let deadline = options.deadline_from(now).unwrap_or_else(|| Deadline::never(now));
            let answer = admission.deliver(sent, deadline, options).await;
            self.network.delay().await;
            transferred(&answer?)
        };
        tokio::select! {
            biased;
            // A question whose line is lost may have arrived.
            () = self.network.until_parted(self.number, to) => Err(connection_lost(false)),
            answer = asking => answer,
        }
    }
}

impl RemoteActors for Seat {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        Box::pin(self.clone().ask_now(question))
    }

    fn publishers(&self, actor: &str) -> Vec<Arc<str>> {
        let (mut numbers, place) = (self.with_actor(actor), SessionKey::new(actor).number());
        numbers.sort_by_key(|number| Reverse(score(*number, place)));
        numbers.into_iter().map(|number| name(number).into()).collect()
    }

    fn owner(&self, actor: &str, place: u64, is_here: bool) -> Option<KeyOwner> {
        let others = self.with_actor(actor).into_iter();
        let owner = others.chain(is_here.then_some(self.number)).max_by_key(|number| score(*number, place))?;
        Some(if owner == self.number { KeyOwner::This } else { KeyOwner::Other(name(owner).into()) })
    }

    fn view_of(&self, actor: &str) -> u64 {
        self.with_actor(actor).into_iter().fold(0, |view, number| view ^ score(number, 0))
    }

    fn this_node(&self) -> Option<Arc<str>> {
        Some(name(self.number).into())
    }

    fn reach(&self, actor: &str, node: &str) -> Reach {
        let is_reached = number(node).is_some_and(|number| self.with_actor(actor).contains(&number));
        if is_reached { Reach::Connected } else { Reach::Gone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_its_number() {
        assert_eq!([0, 12].map(|at| number(&name(at))), [Some(0), Some(12)]);
        assert_eq!(["node-", "peer", "node-x"].map(number), [None; 3]);
    }

    #[test]
    fn keys_are_spread_over_the_nodes() {
        let mut counts = [0; 3];
        for key in 0..300_u64 {
            let owner = (0..3).max_by_key(|node| score(*node, splitmix64(key))).unwrap();
            counts[owner] += 1;
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    }
}
