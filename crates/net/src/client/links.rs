//! The links of a client to its nodes: one is used, and another one when it is of no use any more.
//!
//! Connecting goes on when the call leaves that began it, and whoever comes meanwhile waits for the same outcome. An address that says
//! nothing is joined after a while by the next one in the list, so that the time of a call need not be longer than that of a handshake
//! with a dead node. A link to a node that refused is kept: going back to it costs nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use callboard_codec::wire::ResetCode;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::link::{Greeting, Link, LinkFault};
use crate::endpoint::{LAST_PACKETS, Transport, code};

/// After this part of the time for a handshake the next address is tried as well.
const STAGGER: u32 = 4;

type Outcome = Result<Arc<Link>, LinkFault>;

/// The links to any of several addresses.
#[derive(Debug)]
pub(crate) struct Links {
    nodes: Arc<Nodes>,
    under_way: Mutex<Option<Dialling>>,
}

/// Somebody connects.
#[derive(Debug)]
struct Dialling {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Nodes {
    transport: Arc<Transport>,
    greeting: Greeting,
    connect_timeout: Duration,
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
        let nodes = Nodes { transport, greeting, connect_timeout, nodes, preferred: AtomicUsize::new(0) };
        Self { nodes: Arc::new(nodes), under_way: Mutex::default() }
    }

    /// A link that may be used: the one there is, or a new one to the first address that answers.
    ///
    /// # Cancellation
    ///
    /// Connecting goes on for whoever comes next.
    pub(crate) async fn link(&self) -> Outcome {
        if let Some(link) = self.nodes.preferred_link() {
            return Ok(link);
        }
        let mut outcome = self.dial();
        let outcome = outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| Option::clone(&outcome)).unwrap_or_else(|| Err(LinkFault::Closed))
    }

    /// The link that the next call would use, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        self.nodes.preferred_link()
    }

    /// Ends all of them, and waits until those who are left know.
    pub(crate) async fn close(&self) {
        let endpoint = self.nodes.transport.endpoint();
        endpoint.close(code(ResetCode::Done), b"");
        let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
    }

    /// What all links have in hand: calls that wait to be sent, and streams.
    #[cfg(feature = "testing")]
    pub(crate) fn in_hand(&self) -> (usize, usize) {
        let links = self.nodes.nodes.iter().filter_map(|node| node.link.load_full());
        links.map(|link| link.in_hand()).fold((0, 0), |(waiting, streams), (w, s)| (waiting + w, streams + s))
    }

    /// Prefers another address from now on, if it is still this link's that is preferred.
    pub(crate) fn turn_away_from(&self, link: &Arc<Link>) {
        let at = self.nodes.preferred.load(Ordering::Relaxed);
        if self.nodes.nodes[at].link.load().as_ref().is_some_and(|preferred| Arc::ptr_eq(preferred, link)) {
            let next = (at + 1) % self.nodes.nodes.len();
            // Whoever else was refused on it has done the same.
            let _ = self.nodes.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
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
        let nodes = Arc::clone(&self.nodes);
        let task = self.nodes.transport.runtime().spawn(async move {
            let outcome = nodes.any_link().await;
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
    }
}

impl Nodes {
    fn preferred_link(&self) -> Option<Arc<Link>> {
        self.nodes[self.preferred.load(Ordering::Relaxed)].usable_link()
    }

    /// Tries all addresses, the preferred one first, until there is a link; each has some time to itself before the next joins it.
    async fn any_link(&self) -> Outcome {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut untried = (0..self.nodes.len()).map(|k| (first + k) % self.nodes.len());
        let mut trying = FuturesUnordered::new();
        let mut fault = LinkFault::Closed;
        loop {
            let next = untried.next();
            if let Some(at) = next {
                trying.push(async move { (at, self.connect(at).await) });
            }
            let headstart = async {
                match next {
                    Some(_) => tokio::time::sleep(self.connect_timeout / STAGGER).await,
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
    async fn connect(&self, at: usize) -> Outcome {
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
        let link = Link::open(&self.transport, address, &self.greeting, self.connect_timeout).await?;
        node.link.store(Some(Arc::clone(&link)));
        if link.is_usable() { Ok(link) } else { Err(draining()) }
    }
}

impl Node {
    fn usable_link(&self) -> Option<Arc<Link>> {
        self.link.load_full().filter(|link| link.is_usable())
    }
}
