//! The connected peers by name: one process of each name, the newest.
//!
//! A peer is identified by the name in its certificate and the generation in its welcome. A peer that is reached at two
//! addresses is connected at the first. Of two processes with one identity, the newer is connected. The older is not
//! tried again until the connection to the newer is gone, so that they do not take turns; its calls may finish. The
//! process that answers at a connected address replaces the earlier one, whatever its generation: its clock may have
//! been set back. Under the development identity each process is a node of its own.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use quinn::Connection;
use tokio::sync::Notify;

use crate::wire::known_name;

/// The connected peers by name. There are at most as many as connections.
#[derive(Debug)]
pub(super) struct ConnectedNodes {
    /// This process.
    own: NodeInstance,
    connected: Mutex<HashMap<String, ConnectedNode>>,
}

/// One process of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeInstance {
    /// The name in its certificate; empty under the development identity.
    pub(super) member: String,
    /// The name that it announces, which may differ.
    pub(super) node: String,
    pub(super) generation: u64,
}

impl NodeInstance {
    /// The name by which it is known here. `None` for a nameless node without a generation.
    pub(super) fn known_name(&self) -> Option<String> {
        known_name(&self.member, &self.node, self.generation)
    }
}

#[derive(Debug)]
struct ConnectedNode {
    generation: u64,
    address: SocketAddr,
    connection: Connection,
    /// Notified when a newer process is connected.
    replaced: Arc<Notify>,
}

/// The reason why a peer that has answered is not to be connected.
#[derive(Debug)]
pub(super) enum UnwantedPeer {
    /// It is this process.
    Ourselves,
    /// It is connected at another address, until this connection is gone.
    Duplicate(SocketAddr, Connection),
    /// A newer process of its name is connected, until this connection is gone.
    Stale(SocketAddr, Connection),
    /// It is another process with this node's name.
    OurName,
}

/// The relation of an answering peer to the connected peer of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameConflict {
    /// It answers at the same address.
    SameAddress,
    /// It is newer, at another address.
    Newer,
    /// It is the same process, at another address.
    SameProcess,
    /// It is older, at another address.
    Older,
}

impl NameConflict {
    fn new(generation: u64, address: SocketAddr, connected: (u64, SocketAddr)) -> Self {
        let (theirs, there) = connected;
        if there == address {
            return Self::SameAddress;
        }
        match generation.cmp(&theirs) {
            Ordering::Less => Self::Older,
            Ordering::Equal => Self::SameProcess,
            Ordering::Greater => Self::Newer,
        }
    }
}

impl ConnectedNodes {
    pub(super) fn new(own: NodeInstance) -> Self {
        Self { own, connected: Mutex::default() }
    }

    /// Registers a peer that has answered at this address, if it is to be connected.
    pub(super) fn register(
        self: &Arc<Self>,
        peer: NodeInstance,
        address: SocketAddr,
        connection: &Connection,
    ) -> Result<Registration, UnwantedPeer> {
        if peer == self.own {
            return Err(UnwantedPeer::Ourselves);
        }
        let generation = peer.generation;
        let (replaced, connection) = (Arc::new(Notify::new()), connection.clone());
        let id = connection.stable_id();
        let name = peer.known_name().filter(|_| generation > 0);
        if let Some(name) = &name {
            if !peer.member.is_empty() && peer.member == self.own.member {
                return Err(UnwantedPeer::OurName);
            }
            let mut all = self.connected.lock();
            if let Some(there) = all.get(name).filter(|there| there.connection.close_reason().is_none()) {
                match NameConflict::new(generation, address, (there.generation, there.address)) {
                    NameConflict::Older => {
                        return Err(UnwantedPeer::Stale(there.address, there.connection.clone()));
                    }
                    NameConflict::SameProcess => {
                        return Err(UnwantedPeer::Duplicate(there.address, there.connection.clone()));
                    }
                    NameConflict::Newer => there.replaced.notify_one(),
                    NameConflict::SameAddress => {}
                }
            }
            let node = ConnectedNode { generation, address, connection, replaced: Arc::clone(&replaced) };
            all.insert(name.clone(), node);
        }
        Ok(Registration { nodes: Arc::clone(self), name: name.unwrap_or_default(), id, replaced })
    }
}

/// Keeps a peer registered under its name until it is dropped or replaced.
#[derive(Debug)]
pub(super) struct Registration {
    nodes: Arc<ConnectedNodes>,
    name: String,
    id: usize,
    replaced: Arc<Notify>,
}

impl Registration {
    /// Completes when a newer process is connected.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut all = self.nodes.connected.lock();
        if all.get(&self.name).is_some_and(|connected| connected.connection.stable_id() == self.id) {
            all.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_process_wins_unless_another_answers_at_its_address() {
        let [here, there] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let connected = (5, there);
        assert_eq!(NameConflict::new(4, here, connected), NameConflict::Older);
        assert_eq!(NameConflict::new(5, here, connected), NameConflict::SameProcess);
        assert_eq!(NameConflict::new(6, here, connected), NameConflict::Newer);
        // Restarted with the clock set back, before the end of the earlier process is noticed.
        for generation in [4, 5, 6] {
            assert_eq!(NameConflict::new(generation, there, connected), NameConflict::SameAddress);
        }
    }
}
