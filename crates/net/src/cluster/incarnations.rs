//! Which node of a name is linked: one at a time, of several the one that began last.
//!
//! A peer is known by the name in its certificate and by the generation in its welcome. One that is found at two addresses is linked at the
//! first of them. Of two that live under one identity the younger is linked; the older is left alone until the link to the younger is
//! gone, so that they do not take turns, and what it has in hand it may finish. Whoever answers at the address of a link is the one
//! that lives there now, whatever its generation: its clock may have been set back. Without a name nobody is compared.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use quinn::Connection;
use tokio::sync::Notify;

/// The nodes that are linked, by their names. There are as many as there are links.
#[derive(Debug)]
pub(super) struct Incarnations {
    /// This node itself.
    own: Incarnation,
    linked: Mutex<HashMap<String, Linked>>,
}

/// One life of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    /// In its certificate; empty under the development identity.
    pub(super) member: String,
    /// As it says, which may be another one.
    pub(super) node: String,
    pub(super) generation: u64,
}

#[derive(Debug)]
struct Linked {
    generation: u64,
    address: SocketAddr,
    connection: Connection,
    /// Told when a younger one is linked in its place.
    outlived: Arc<Notify>,
}

/// Why there is to be no link to a node that has answered.
#[derive(Debug)]
pub(super) enum Unwanted {
    /// It is this node.
    Ourselves,
    /// It is linked at another address already, until this connection is gone.
    Twice(SocketAddr, Connection),
    /// A younger one of its name is linked, until this connection is gone.
    Stale(SocketAddr, Connection),
    /// It has this node's own name and is another one.
    OurName,
}

/// How one that answers stands to the one of its name that is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It is there instead.
    InItsPlace,
    /// It is younger, and somewhere else.
    Before,
    /// It is the same.
    Beside,
    /// It is older, and somewhere else.
    Behind,
}

fn stands(generation: u64, address: SocketAddr, linked: (u64, SocketAddr)) -> Stands {
    let (theirs, there) = linked;
    if there == address {
        return Stands::InItsPlace;
    }
    match generation.cmp(&theirs) {
        Ordering::Less => Stands::Behind,
        Ordering::Equal => Stands::Beside,
        Ordering::Greater => Stands::Before,
    }
}

impl Incarnations {
    pub(super) fn new(own: Incarnation) -> Self {
        Self { own, linked: Mutex::default() }
    }

    /// A node has answered at this address: whether it is to be linked, and under its name from then on.
    pub(super) fn meet(
        self: &Arc<Self>,
        peer: Incarnation,
        address: SocketAddr,
        connection: &Connection,
    ) -> Result<Seat, Unwanted> {
        if peer == self.own {
            return Err(Unwanted::Ourselves);
        }
        let Incarnation { member, generation, .. } = peer;
        let (outlived, connection) = (Arc::new(Notify::new()), connection.clone());
        let id = connection.stable_id();
        if !member.is_empty() && generation > 0 {
            if member == self.own.member {
                return Err(Unwanted::OurName);
            }
            let mut all = self.linked.lock();
            if let Some(there) = all.get(&member).filter(|there| there.connection.close_reason().is_none()) {
                match stands(generation, address, (there.generation, there.address)) {
                    Stands::Behind => return Err(Unwanted::Stale(there.address, there.connection.clone())),
                    Stands::Beside => return Err(Unwanted::Twice(there.address, there.connection.clone())),
                    Stands::Before => there.outlived.notify_one(),
                    Stands::InItsPlace => {}
                }
            }
            all.insert(member.clone(), Linked { generation, address, connection, outlived: Arc::clone(&outlived) });
        }
        Ok(Seat { incarnations: Arc::clone(self), member, id, outlived })
    }
}

/// The one under its name, until it is dropped or another one is.
#[derive(Debug)]
pub(super) struct Seat {
    incarnations: Arc<Incarnations>,
    member: String,
    id: usize,
    outlived: Arc<Notify>,
}

impl Seat {
    /// Resolves when a younger one is linked in its place.
    pub(super) async fn outlived(&self) {
        self.outlived.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.incarnations.linked.lock();
        if all.get(&self.member).is_some_and(|linked| linked.connection.stable_id() == self.id) {
            all.remove(&self.member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_is_linked_and_whoever_answers_at_an_address_lives_there() {
        let [here, there] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let linked = (5, there);
        assert_eq!(stands(4, here, linked), Stands::Behind);
        assert_eq!(stands(5, here, linked), Stands::Beside);
        assert_eq!(stands(6, here, linked), Stands::Before);
        // Started again with the clock set back, before the end of the process before is noticed.
        for generation in [4, 5, 6] {
            assert_eq!(stands(generation, there, linked), Stands::InItsPlace);
        }
    }
}
