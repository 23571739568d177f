//! Stages on other nodes: who there is, who gets the next call, and what becomes of a call whose peer is lost.
//!
//! The node that admitted a call owns it and asks one peer at a time. A peer that did not start the call (it refused, it drains, the
//! connection went before all was sent) leaves it to the next; one that is lost with it leaves it to the next only where the stage may
//! be run twice, within the retry budget; one that answered has answered. No peer is asked twice for one call. The deadline goes along
//! as the time that is left, and a call that is dropped here is reset there.

mod breaker;
mod peer;
mod view;
mod weigh;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use callboard_codec::wire::{Call, FrameLimits};
use callboard_codec::{DecodeLimits, Envelope, Payload};
use callboard_core::{CallError, Elsewhere, ErrorKind, Instant, Reply, RetryBudget, StageCall, StageLoad};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::peer::Peer;
pub use self::view::{ClusterView, SingleNode, Static, View};
use self::weigh::{better_of_two, of_session};
use crate::client::{Answer, CONNECTION_LOST, Greeting, Link, Room, not_started, unreadable};
use crate::convert;
use crate::edge::Edge;
use crate::endpoint::Transport;

/// The other nodes of a cluster, for the stages of this one's calls. Cloning shares them; the links end with the last one.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Arc<Transport>,
    own: SocketAddr,
    greeting: Greeting,
    frames: FrameLimits,
    decode: DecodeLimits,
    peers: ArcSwap<Vec<Arc<Peer>>>,
    retries: Mutex<RetryBudget>,
    following: Mutex<Option<AbortHandle>>,
}

impl Cluster {
    /// Links to the nodes of `view`, now and as it changes, and tells them where this node listens.
    #[must_use]
    pub fn start(edge: &Edge, view: Arc<dyn ClusterView>) -> Self {
        let inner = Arc::new(Inner {
            transport: Arc::clone(edge.transport()),
            own: edge.address(),
            greeting: edge.greeting(),
            frames: edge.config().frames.clone(),
            decode: edge.config().decode.clone(),
            peers: ArcSwap::default(),
            retries: Mutex::default(),
            following: Mutex::default(),
        });
        let views = view.watch();
        edge.introduce_to(view);
        let following = edge.transport().runtime().spawn(follow(Arc::downgrade(&inner), views));
        *inner.following.lock() = Some(following.abort_handle());
        Self { inner }
    }

    /// How many other nodes are linked now.
    #[must_use]
    pub fn linked(&self) -> usize {
        self.inner.peers.load().iter().filter(|peer| peer.is_linked()).count()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(following) = self.following.lock().take() {
            following.abort();
        }
    }
}

/// Keeps a link to each node of the view. A node that leaves it is let go of when its calls are done.
async fn follow(inner: std::sync::Weak<Inner>, mut views: watch::Receiver<Arc<View>>) {
    let mut links: HashMap<SocketAddr, (Arc<Peer>, LinkTask)> = HashMap::new();
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        {
            let Some(inner) = inner.upgrade() else { return };
            links.retain(|address, _| view.peers.contains(address));
            for address in view.peers.iter().filter(|address| **address != inner.own) {
                links.entry(*address).or_insert_with(|| {
                    let peer = Arc::new(Peer::new(*address));
                    let keeping = Arc::clone(&peer).keep_linked(Arc::clone(&inner.transport), inner.greeting.clone());
                    (peer, LinkTask(tokio::spawn(keeping).abort_handle()))
                });
            }
            let mut peers: Vec<_> = links.values().map(|(peer, _)| Arc::clone(peer)).collect();
            // The order of a hash map is another one in each process.
            peers.sort_by_key(|peer| peer.address());
            inner.peers.store(Arc::new(peers));
        }
        if views.changed().await.is_err() {
            // The view is final.
            std::future::pending::<()>().await;
        }
    }
}

/// Ends with its handle.
struct LinkTask(AbortHandle);

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Elsewhere for Cluster {
    fn is_better(&self, stage: &str, here: &StageLoad) -> bool {
        if here.open && here.queued < here.capacity {
            return false;
        }
        let now = Instant::now();
        let peers = self.inner.peers.load();
        let in_hand =
            peers.iter().filter(|peer| peer.link_for(stage, now).is_some()).map(|peer| peer.weight().in_hand());
        // Clearly better: with half of what waits here, all told.
        in_hand.min().is_some_and(|least| !here.open || least * 2 < here.queued)
    }

    fn offers(&self, stage: &str) -> bool {
        self.inner.peers.load().iter().any(|peer| peer.offers(stage))
    }

    fn run(&self, call: StageCall) -> Pin<Box<dyn Future<Output = Result<Reply, CallError>> + Send>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.run(call).await })
    }
}

impl Inner {
    async fn run(&self, call: StageCall) -> Result<Reply, CallError> {
        let stage = call.stage.as_str();
        let envelope = call.payload.to_envelope().map_err(|error| {
            CallError::new(ErrorKind::Internal, format!("the input of stage `{stage}` cannot be sent: {error}"))
        })?;
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut last = None;
        while let Some((peer, link, idempotent)) = self.pick(&call, &tried) {
            tried.push(peer.address());
            let began = Instant::now();
            let in_hand = peer.begin(stage, began);
            let outcome = self.attempt(&link, &call, &envelope).await;
            drop(in_hand);
            let error = match outcome {
                Ok(answer) => {
                    peer.answered(stage, began.elapsed(), Some(answer.done.load));
                    self.retries.lock().completed(1);
                    return read(answer);
                }
                Err(error) => error,
            };
            let was_lost = error.error_type() == Some(CONNECTION_LOST);
            if was_lost || error.kind() == ErrorKind::Unavailable {
                peer.lost(stage, Instant::now());
            } else {
                peer.answered(stage, began.elapsed(), None);
            }
            let again = call.may_run_again.unwrap_or(idempotent);
            // Asked in this order: what was not started costs nothing of the budget.
            let goes_on = error.is_retryable() || (was_lost && again && self.retries.lock().take(1) == 1);
            if !goes_on {
                return Err(error);
            }
            // That it may have run stays said, whoever refuses after that.
            if last.as_ref().is_none_or(CallError::is_retryable) {
                last = Some(error);
            }
        }
        Err(last.unwrap_or_else(|| not_started(format!("no node can be reached that runs the stage `{stage}`"))))
    }

    /// The next peer for a call, of those that were not tried.
    fn pick(&self, call: &StageCall, tried: &[SocketAddr]) -> Option<(Arc<Peer>, Arc<Link>, bool)> {
        let (now, peers) = (Instant::now(), self.peers.load());
        let untried = peers.iter().filter(|peer| !tried.contains(&peer.address()));
        let mut candidates: Vec<_> = untried
            .filter_map(|peer| peer.link_for(call.stage.as_str(), now).map(|(link, again)| (peer, link, again)))
            .collect();
        let weights: Vec<_> = candidates.iter().map(|(peer, ..)| peer.weight()).collect();
        let place = match call.options.session() {
            Some(session) => of_session(&weights, session.number()),
            None => better_of_two(&weights, (fastrand::usize(..), fastrand::usize(..))),
        };
        let (peer, link, again) = candidates.swap_remove(place?);
        Some((Arc::clone(peer), link, again))
    }

    async fn attempt(&self, link: &Arc<Link>, call: &StageCall, envelope: &Envelope) -> Result<Answer, CallError> {
        let mut header = Call { stages: vec![call.stage.as_str().to_owned()], ..Call::default() };
        convert::put_options(&mut header, &call.options, Instant::now());
        link.call(&header, envelope, (&self.frames, &self.decode), Room::OrElsewhere).await
    }
}

fn read(answer: Answer) -> Result<Reply, CallError> {
    let Answer { done, body } = answer;
    let value = body.finish().map_err(unreadable)?;
    Ok(Reply::new(Payload::new(value), convert::timing(done.times)))
}
