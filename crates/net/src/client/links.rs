//! The links of a client to its nodes: one is used, and another one when it is of no use any more.
//!
//! Connecting goes on when the call leaves that began it, and whoever comes meanwhile waits for the same outcome. An address that says
//! nothing is joined after a while by the next one in the list, so that the time of a call need not be longer than that of a handshake
//! with a dead node. Nobody waits for an address while there is a link to another one: a node that refuses calls is used on until there
//! is a link to the next, which is made beside its calls. A link to a node that refused is kept: going back to it costs nothing. When all
//! addresses have failed, the names are looked up again, once: nodes move.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use callboard_codec::wire::ResetCode;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::error::ConnectError;
use super::link::{Greeting, Link, LinkFault};
use super::offers::Screening;
use crate::endpoint::{LAST_PACKETS, Transport, code};

/// After this part of the time for a handshake the next address is tried as well.
const STAGGER: u32 = 4;

/// When no other address has answered, this is how long none is tried because of a refusal.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

type Outcome = Result<Arc<Link>, LinkFault>;

/// Tells where the nodes are now.
pub(super) type LookUp = Box<dyn Fn() -> BoxFuture<'static, Result<Vec<SocketAddr>, ConnectError>> + Send + Sync>;

/// The links to any of several addresses.
#[derive(Debug)]
pub(crate) struct Links {
    shared: Arc<Shared>,
    under_way: Mutex<Option<Dialling>>,
    /// Somebody connects to another address than that of a node which refuses calls.
    turning_away: Mutex<Option<AbortHandle>>,
}

/// Somebody connects.
#[derive(Debug)]
struct Dialling {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

/// What whoever connects has in hand.
struct Shared {
    reach: Reach,
    nodes: ArcSwap<Nodes>,
    look_up: OnceLock<LookUp>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// How a node is reached.
#[derive(Debug)]
struct Reach {
    transport: Arc<Transport>,
    greeting: Greeting,
    connect_timeout: Duration,
}

/// Where nodes are. There is at least one.
#[derive(Debug)]
struct Nodes {
    nodes: Vec<Node>,
    /// The one that is asked first.
    preferred: AtomicUsize,
}

#[derive(Debug)]
struct Node {
    address: SocketAddr,
    link: ArcSwapOption<Link>,
}

impl Links {
    pub(crate) fn new(
        transport: Arc<Transport>,
        addresses: Vec<SocketAddr>,
        greeting: Greeting,
        connect_timeout: Duration,
    ) -> Self {
        let nodes = addresses.into_iter().map(|address| Node { address, link: ArcSwapOption::empty() }).collect();
        let nodes = ArcSwap::from_pointee(Nodes { nodes, preferred: AtomicUsize::new(0) });
        let reach = Reach { transport, greeting, connect_timeout };
        let shared = Arc::new(Shared { reach, nodes, look_up: OnceLock::new() });
        Self { shared, under_way: Mutex::default(), turning_away: Mutex::default() }
    }

    /// Has the nodes looked up again from now on, when none of them answers. Once only.
    pub(super) fn find_again_by(&self, look_up: LookUp) {
        let _ = self.shared.look_up.set(look_up);
    }

    /// A link that may be used: the one there is, or a new one to the first address that answers.
    ///
    /// # Cancellation
    ///
    /// Connecting goes on for whoever comes next.
    pub(crate) async fn link(&self) -> Outcome {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let mut outcome = self.dial();
        let outcome = outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| Option::clone(&outcome)).unwrap_or_else(|| Err(LinkFault::Closed))
    }

    /// The link that the next call would use, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        self.shared.nodes.load().current()
    }

    /// Ends all of them, and waits until those who are left know.
    pub(crate) async fn close(&self) {
        let endpoint = self.shared.reach.transport.endpoint();
        endpoint.close(code(ResetCode::Done), b"");
        let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
    }

    /// What all links have in hand: calls that wait to be sent, and streams.
    #[cfg(feature = "testing")]
    pub(crate) fn in_hand(&self) -> (usize, usize) {
        let nodes = self.shared.nodes.load();
        let links = nodes.nodes.iter().filter_map(|node| node.link.load_full());
        links.map(|link| link.in_hand()).fold((0, 0), |(waiting, streams), (w, s)| (waiting + w, streams + s))
    }

    /// Prefers another address, if it is still this link's that is preferred: at once where there is a link to one, else as soon as
    /// there is. One address after the other is tried for that, for all who were refused.
    pub(crate) fn turn_away_from(&self, link: &Arc<Link>) {
        let nodes = self.shared.nodes.load_full();
        let at = nodes.preferred.load(Ordering::Relaxed);
        let is_preferred = nodes.nodes[at].link.load().as_ref().is_some_and(|preferred| Arc::ptr_eq(preferred, link));
        if !is_preferred || nodes.nodes.len() == 1 {
            return;
        }
        if let Some(next) = nodes.others(at).find(|next| nodes.nodes[*next].usable_link().is_some()) {
            // Whoever else was refused on it has done the same.
            let _ = nodes.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            return;
        }
        let mut turning_away = self.turning_away.lock();
        if turning_away.as_ref().is_none_or(AbortHandle::is_finished) {
            let shared = Arc::clone(&self.shared);
            let task = self.shared.reach.transport.runtime().spawn(async move {
                if nodes.first_link(&shared.reach, nodes.others(at)).await.is_err() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            });
            *turning_away = Some(task.abort_handle());
        }
    }

    /// The outcome of connecting, which goes on already or begins now.
    fn dial(&self) -> watch::Receiver<Option<Outcome>> {
        let mut under_way = self.under_way.lock();
        if let Some(dialling) = under_way.as_ref()
            && dialling.outcome.borrow().is_none()
            && dialling.outcome.has_changed().is_ok()
        {
            return dialling.outcome.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let shared = Arc::clone(&self.shared);
        let task = self.shared.reach.transport.runtime().spawn(async move {
            let outcome = shared.any_link().await;
            sender.send_replace(Some(outcome));
        });
        *under_way = Some(Dialling { outcome: outcome.clone(), task: task.abort_handle() });
        outcome
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(dialling) = self.under_way.get_mut() {
            dialling.task.abort();
        }
        if let Some(task) = self.turning_away.get_mut() {
            task.abort();
        }
    }
}

impl Shared {
    /// Tries all addresses, the preferred one first, and if that is of no use those at which the nodes are by now.
    async fn any_link(&self) -> Outcome {
        let nodes = self.nodes.load_full();
        let fault = match nodes.any_link(&self.reach).await {
            Ok(link) => return Ok(link),
            Err(fault) => fault,
        };
        match self.find_again(&nodes).await {
            Some(nodes) => nodes.any_link(&self.reach).await,
            None => Err(fault),
        }
    }

    /// Looks the nodes up again, in the time of a handshake. `None`: they are not known to be elsewhere.
    async fn find_again(&self, before: &Nodes) -> Option<Arc<Nodes>> {
        let looking = tokio::time::timeout(self.reach.connect_timeout, self.look_up.get()?());
        let found = looking.await.ok()?.ok()?;
        let known = |address: &SocketAddr| before.nodes.iter().find(|node| node.address == *address);
        let is_same = found.iter().all(|address| known(address).is_some())
            && before.nodes.iter().all(|node| found.contains(&node.address));
        if is_same || found.is_empty() {
            return None;
        }
        // Who goes away is still who goes away.
        let nodes = found.iter().map(|address| {
            let link = known(address).and_then(|node| node.link.load_full());
            Node { address: *address, link: ArcSwapOption::new(link) }
        });
        let nodes = Arc::new(Nodes { nodes: nodes.collect(), preferred: AtomicUsize::new(0) });
        self.nodes.store(Arc::clone(&nodes));
        Some(nodes)
    }
}

impl Nodes {
    /// A link that may be used, of the preferred node if it has one.
    fn current(&self) -> Option<Arc<Link>> {
        let at = self.preferred.load(Ordering::Relaxed);
        let preferred = self.nodes[at].usable_link();
        preferred.or_else(|| {
            let (next, link) = self.others(at).find_map(|next| Some((next, self.nodes[next].usable_link()?)))?;
            self.preferred.store(next, Ordering::Relaxed);
            Some(link)
        })
    }

    /// All but one, from the next one on.
    fn others(&self, at: usize) -> impl Iterator<Item = usize> + Send + use<> {
        let count = self.nodes.len();
        (1..count).map(move |k| (at + k) % count)
    }

    async fn any_link(&self, reach: &Reach) -> Outcome {
        let first = self.preferred.load(Ordering::Relaxed);
        self.first_link(reach, std::iter::once(first).chain(self.others(first))).await
    }

    /// Tries these addresses until there is a link, which is preferred from then on; each has some time to itself before the next joins
    /// it.
    async fn first_link(&self, reach: &Reach, mut untried: impl Iterator<Item = usize>) -> Outcome {
        let mut trying = FuturesUnordered::new();
        let mut fault = LinkFault::Closed;
        loop {
            let next = untried.next();
            if let Some(at) = next {
                trying.push(async move { (at, self.connect(reach, at).await) });
            }
            let headstart = async {
                match next {
                    Some(_) => tokio::time::sleep(reach.connect_timeout / STAGGER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                tried = trying.next() => match tried {
                    Some((at, Ok(link))) => {
                        self.preferred.store(at, Ordering::Relaxed);
                        return Ok(link);
                    }
                    Some((_, Err(error))) => fault = error,
                    None => return Err(fault),
                },
                () = headstart => {}
            }
        }
    }

    /// The link that there is to a node, or a new one.
    async fn connect(&self, reach: &Reach, at: usize) -> Outcome {
        let node = &self.nodes[at];
        let address = node.address;
        let draining = || LinkFault::Absent { address, reason: "the node is draining".to_owned() };
        if let Some(link) = node.usable_link() {
            return Ok(link);
        }
        // As long as it is there it takes nothing new, and whoever comes back in its place makes a new connection.
        let takes_nothing = |link: &Arc<Link>| !link.is_outlived() && link.connection().close_reason().is_none();
        if node.link.load().as_ref().is_some_and(takes_nothing) {
            return Err(draining());
        }
        let link =
            Link::open(&reach.transport, address, (&reach.greeting, &Screening::default()), reach.connect_timeout)
                .await?;
        node.link.store(Some(Arc::clone(&link)));
        if link.is_usable() { Ok(link) } else { Err(draining()) }
    }
}

impl Node {
    fn usable_link(&self) -> Option<Arc<Link>> {
        self.link.load_full().filter(|link| link.is_usable())
    }
}
