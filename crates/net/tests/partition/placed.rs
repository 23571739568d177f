//! A node whose threads are in the namespace of its number: how it starts there and finds the others, and how it ends.

use callboard_core::{App, Node};
use callboard_net::{Cluster, MembershipProfile, NetConfig, QuicEdge, StaticView};
use tokio::runtime::Runtime;

use crate::members::{Members, name_of};
use crate::network::Network;
use crate::{address, wait_until};

pub(crate) struct Placed {
    pub(crate) number: usize,
    pub(crate) runtime: Runtime,
    parts: Option<(Node, QuicEdge, Cluster)>,
}

impl Placed {
    /// It names those of lower numbers.
    pub(crate) fn start(network: &Network, number: usize, app: App, members: &Members) -> Self {
        network.inside(number, || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let parts = runtime.block_on(joined(number, app, members));
            Self { number, runtime, parts: Some(parts) }
        })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.parts.as_ref().unwrap().0
    }

    pub(crate) fn edge(&self) -> &QuicEdge {
        &self.parts.as_ref().unwrap().1
    }

    /// Waits until it knows this number of the others as up, and is connected to each.
    pub(crate) fn wait_for_members(&self, up: usize) {
        wait_until(|| {
            let described = self.node().describe();
            let of_members = described.members.iter().filter(|member| !member.is_this_node && !member.state.is_gone());
            let connected = described.peers.iter().filter(|peer| peer.connected_for.is_some() && !peer.silent);
            match (of_members.count(), connected.count()) {
                known if known == (up, up) => Ok(()),
                known => Err(format!("node {} knows {known:?}, not {up}", self.number)),
            }
        });
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some((node, edge, cluster)) = self.parts.take() {
            let _inside = self.runtime.enter();
            node.abort();
            drop((cluster, edge));
        }
    }
}

async fn joined(number: usize, app: App, members: &Members) -> (Node, QuicEdge, Cluster) {
    let node = app.start().await.unwrap();
    let config = NetConfig { node: name_of(number), membership: Some(MembershipProfile::Near), ..NetConfig::default() };
    let edge = QuicEdge::bind(address(number), members.identity(number), config).unwrap();
    let named: Vec<_> = (1..number).map(address).collect();
    let cluster = Cluster::start(&edge, edge.view(StaticView::try_new(named).unwrap()));
    node.join(cluster.clone()).unwrap();
    edge.open(node.client());
    (node, edge, cluster)
}
