//! A view of the nodes that are named, and of the members that gossip knows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::handle::MemberAddresses;
use crate::view::{ClusterView, StaticView, View};

/// Named nodes stay in the view. A member is in it while it is up, and a dead one while its connection is open, for a
/// while after its death, and again every now and then, so that it is found when it is back.
#[derive(Debug)]
pub(crate) struct GossipView {
    named: StaticView,
    view: watch::Receiver<Arc<View>>,
    following: AbortHandle,
}

impl GossipView {
    pub(crate) fn new(named: StaticView, members: watch::Receiver<Arc<MemberAddresses>>, runtime: &Handle) -> Self {
        let (published, view) = watch::channel(Arc::default());
        let following = runtime.spawn(follow(named.watch(), members, published)).abort_handle();
        Self { named, view, following }
    }
}

impl Drop for GossipView {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// Keeps the union of both.
async fn follow(
    mut named: watch::Receiver<Arc<View>>,
    mut members: watch::Receiver<Arc<MemberAddresses>>,
    published: watch::Sender<Arc<View>>,
) {
    loop {
        let peers = union(&named.borrow_and_update().peers, &members.borrow_and_update());
        published.send_if_modified(|view| {
            let has_changed = view.peers != peers;
            if has_changed {
                *view = Arc::new(View { peers });
            }
            has_changed
        });
        // Either ends with the node.
        let changed = tokio::select! {
            changed = named.changed() => changed,
            changed = members.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

fn union(named: &[SocketAddr], members: &MemberAddresses) -> Vec<SocketAddr> {
    let mut peers = named.to_vec();
    let mut known: std::collections::HashSet<_> = named.iter().copied().collect();
    peers.extend(members.up.iter().chain(&members.wanted).filter(|peer| known.insert(**peer)));
    peers
}

impl ClusterView for GossipView {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    fn names_others(&self) -> bool {
        self.named.names_others()
    }

    fn introduce(&self, member: &str, peer: SocketAddr) -> bool {
        self.named.introduce(member, peer)
    }

    fn missing(&self, peer: SocketAddr, lasting: Duration) {
        self.named.missing(peer, lasting);
    }
}
