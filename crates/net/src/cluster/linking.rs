//! Keeping a connection to one other node, for as long as it is in the view.
//!
//! A node that is away is tried again, with pauses of up to half a second. One that answers and is not wanted (it is
//! this node itself, it is linked at another address, a younger one of its name is) is left alone until that is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_codec::wire::ResetCode;
use callboard_core::Instant;
use quinn::Connection;

use super::incarnations::{Incarnation, Incarnations, Seat, Unwanted};
use super::metrics::Asking;
use super::peer::Peer;
use super::view::ClusterView;
use crate::client::{Greeting, Link, LinkFault, Screening};
use crate::endpoint::{Transport, code};
use crate::identity::Member;
use crate::refusal::{advice, quoted};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// A node that is back takes calls within this. A try costs a packet or two where nobody is there.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long one that does not want this node is left alone.
const UNWANTED_PAUSE: Duration = Duration::from_secs(5);

/// A handshake on a machine that does other things takes this long at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the view hears of a peer that is not wanted, so that it can forget one that was only introduced.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What all links of a node are made with.
#[derive(Clone, Debug)]
pub(super) struct Linking {
    pub(super) transport: Arc<Transport>,
    pub(super) greeting: Greeting,
    pub(super) screening: Screening,
    pub(super) asking: Asking,
    /// Hears for how long there is no link.
    pub(super) known: Arc<dyn ClusterView>,
    pub(super) incarnations: Arc<Incarnations>,
}

impl Peer {
    /// Keeps a connection to it, for as long as it is polled.
    pub(super) async fn keep_linked(self: Arc<Self>, with: Linking) {
        let address = self.address();
        let (mut pause, mut missing_since) = (FIRST_PAUSE, Instant::now());
        // The link's place in the count of links, and under its node's name.
        let (mut linked, mut seat) = (None, None);
        let mut was_told = false;
        loop {
            match Link::open(&with.transport, address, (&with.greeting, &with.screening), CONNECT_TIMEOUT).await {
                Ok(link) => match with.seat(&self, &link) {
                    Ok(taken) => {
                        (pause, was_told) = (FIRST_PAUSE, false);
                        tracing::info!(peer = %address, node = %quoted(&link.welcome().node), "linked");
                        let connection = link.connection().clone();
                        self.set_link(Some(Arc::clone(&link)), Instant::now());
                        linked.get_or_insert_with(|| with.asking.linked());
                        let taken = seat.insert(taken);
                        let ended = tokio::select! {
                            ended = connection.closed() => crate::stream::told(&ended),
                            // Its calls are finished on it.
                            () = taken.outlived() => "a younger node of its name is there".to_owned(),
                            // It is used until the next one is there, and ends when its last call does.
                            () = link.retired() => continue,
                        };
                        self.set_link(None, Instant::now());
                        (linked, seat, missing_since) = (None, None, Instant::now());
                        tracing::info!(peer = %address, "link lost: {ended}");
                    }
                    Err(unwanted) => {
                        self.set_link(None, Instant::now());
                        if linked.take().is_some() {
                            (seat, missing_since) = (None, Instant::now());
                        }
                        if matches!(unwanted, Unwanted::Ourselves) {
                            self.is_ourselves.store(true, Ordering::Release);
                        }
                        with.refuse(&self, &link, &unwanted, std::mem::replace(&mut was_told, true));
                        drop(link);
                        with.wait_over(&self, unwanted, missing_since).await;
                    }
                },
                Err(fault) => {
                    tracing::debug!("no link: {fault}");
                    if let LinkFault::Stale { .. } = fault {
                        with.asking.met_namesake();
                        pause = UNWANTED_PAUSE;
                        if !std::mem::replace(&mut was_told, true) {
                            tracing::warn!(peer = %address, "this node is not let in: {}", advice("stale_generation"));
                        }
                    }
                    // The one that was to be replaced may have ended in the meantime.
                    if linked.is_some() && !self.is_linked() {
                        self.set_link(None, Instant::now());
                        (linked, seat, missing_since) = (None, None, Instant::now());
                    }
                    if linked.is_none() {
                        with.known.missing(address, missing_since.elapsed());
                    }
                }
            }
            // All peers of a node that comes back would be there at once.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Linking {
    /// A place for the node that has answered, under its name.
    fn seat(&self, peer: &Peer, link: &Link) -> Result<Seat, Unwanted> {
        let connection = link.connection();
        let member = Member::of_peer(connection).map(|member| member.name).unwrap_or_default();
        let (node, generation) = (link.welcome().node.clone(), link.welcome().generation);
        self.incarnations.meet(Incarnation { member, node, generation }, peer.address(), connection)
    }

    /// Tells both sides why there is to be no link: the log once, until there is one.
    fn refuse(&self, peer: &Peer, link: &Link, unwanted: &Unwanted, was_told: bool) {
        let (peer, node) = (peer.address(), quoted(&link.welcome().node));
        if matches!(unwanted, Unwanted::Stale(..) | Unwanted::OurName) {
            self.asking.met_namesake();
            link.connection().close(code(ResetCode::StaleGeneration), b"stale_generation");
        }
        match unwanted {
            _ if was_told => {}
            Unwanted::Ourselves => tracing::info!(%peer, "that is this node itself: left out"),
            Unwanted::Twice(at, _) => tracing::info!(%peer, %node, "that node is linked at {at} already"),
            Unwanted::Stale(at, _) => {
                let remedy = "one identity per node";
                tracing::warn!(%peer, %node, "left alone: a node of its name that began later is at {at}; {remedy}");
            }
            Unwanted::OurName => {
                tracing::warn!(%peer, %node, "left alone: it has this node's own name; one identity per node");
            }
        }
    }

    /// Waits until it may be wanted.
    async fn wait_over(&self, peer: &Peer, unwanted: Unwanted, missing_since: Instant) {
        match unwanted {
            Unwanted::Ourselves => std::future::pending().await,
            Unwanted::Twice(_, other) | Unwanted::Stale(_, other) => self.wait_closed(peer, other, missing_since).await,
            Unwanted::OurName => tokio::time::sleep(UNWANTED_PAUSE).await,
        }
    }

    async fn wait_closed(&self, peer: &Peer, other: Connection, missing_since: Instant) {
        while tokio::time::timeout(TELL_EVERY, other.closed()).await.is_err() {
            self.known.missing(peer.address(), missing_since.elapsed());
        }
    }
}
