//! The address at which other nodes reach this one, as it tells them.
//!
//! Without `advertise` it is the one on which this node listens; if that is every address of its machine, the others go
//! by the one that they see. An advertised name is resolved until it has an address, and again whenever another node
//! reports that it cannot connect there. Such a report is a warning in the log, one at a time.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_codec::wire::Unreachable;
use callboard_core::Instant;
use callboard_identity::{Identity, NodeAddress, quoted};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::membership::GossipHandle;

/// The least time between two warnings. Every other node reports the same address.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// The longest time for resolving the name, and the pauses between tries.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const RESOLVE_EVERY: Duration = Duration::from_secs(1);

/// The address of this node for others. It changes when an advertised name has another address.
#[derive(Debug)]
pub(crate) struct OwnAddress {
    listens: SocketAddr,
    current: Mutex<SocketAddr>,
    is_advertised: bool,
    gossip: Option<GossipHandle>,
    /// Notified when another node could not connect.
    failed: Arc<Notify>,
    warned_at: Mutex<Option<Instant>>,
}

impl OwnAddress {
    /// The address of a node that listens here. A name is resolved on `runtime`, until the address is dropped.
    pub(crate) fn new(
        listens: SocketAddr,
        advertised: Option<&NodeAddress>,
        gossip: Option<GossipHandle>,
        identity: &Identity,
        runtime: &Handle,
    ) -> Arc<Self> {
        let current = advertised.and_then(NodeAddress::address).unwrap_or(listens);
        let own = Arc::new(Self {
            listens,
            current: Mutex::new(current),
            is_advertised: advertised.is_some(),
            gossip,
            failed: Arc::default(),
            warned_at: Mutex::default(),
        });
        if let Some(name) = advertised.filter(|advertised| advertised.address().is_none()) {
            runtime.spawn(keep_resolved(Arc::downgrade(&own), Arc::clone(&own.failed), name.clone(), identity.clone()));
        }
        own
    }

    /// The address now.
    pub(crate) fn current(&self) -> SocketAddr {
        *self.current.lock()
    }

    /// Whether the address is of another node and can be reached: a name may have IPv6 addresses that an IPv4 socket
    /// cannot reach.
    pub(crate) fn may_reach(&self, peer: SocketAddr) -> bool {
        peer != self.listens && peer != self.current() && (peer.is_ipv4() || self.listens.is_ipv6())
    }

    /// Another node reports that it cannot connect to an address of this one.
    pub(crate) fn unreachable(&self, by: SocketAddr, report: &Unreachable) {
        let current = self.current();
        // An address that this node has left is no news.
        let is_current = report.address.parse::<SocketAddr>().is_ok_and(|address| {
            address == current || current.ip().is_unspecified() && address.port() == current.port()
        });
        if !is_current {
            return;
        }
        self.failed.notify_one();
        let now = Instant::now();
        let mut warned_at = self.warned_at.lock();
        if warned_at.is_some_and(|at| now.saturating_duration_since(at) < WARN_EVERY) {
            return;
        }
        *warned_at = Some(now);
        let (address, reason) = (&report.address, quoted(&report.reason));
        let advice =
            if self.is_advertised { "is quic.advertise right?" } else { "quic.advertise names another address" };
        tracing::warn!(%address, %by, reason, "another node cannot connect to this one at its address: {advice}");
    }

    /// The name was resolved. A usable address stays while the name still has it.
    fn resolved(&self, found: &[SocketAddr], identity: &Identity) -> bool {
        let is_usable = |address: &&SocketAddr| {
            NodeAddress::is_of_one_node(address.ip())
                && (address.is_ipv4() || self.listens.is_ipv6())
                && identity.check_address(**address).is_ok()
        };
        let mut current = self.current.lock();
        let mut usable = found.iter().filter(is_usable).peekable();
        let Some(first) = usable.peek().map(|first| **first) else { return false };
        if !usable.any(|address| *address == *current) {
            *current = first;
            tracing::info!(address = %first, "other nodes reach this one at its advertised name");
        }
        // Also if it is the one that it listens on: nothing better is observed.
        self.gossip.iter().for_each(|gossip| gossip.set_address(*current));
        true
    }
}

/// Resolves the name until it has an address, and again when another node could not connect.
async fn keep_resolved(own: Weak<OwnAddress>, failed: Arc<Notify>, name: NodeAddress, identity: Identity) {
    let mut was_logged = false;
    loop {
        let found = name.resolve(RESOLVE_TIMEOUT).await;
        let Some(own) = own.upgrade() else { return };
        match found {
            Ok(found) if own.resolved(&found, &identity) => {
                was_logged = false;
                drop(own);
                failed.notified().await;
            }
            other => {
                let error =
                    other.err().map_or_else(|| "none of its addresses can be used".to_owned(), |e| e.to_string());
                if !std::mem::replace(&mut was_logged, true) {
                    tracing::warn!(%name, "the advertised name has no address yet, and is resolved again: {error}");
                }
            }
        }
        tokio::time::sleep(RESOLVE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(listens: &str, advertised: Option<&str>) -> Arc<OwnAddress> {
        let listens: SocketAddr = listens.parse().unwrap();
        let advertised: Option<NodeAddress> = advertised.map(|address| address.parse().unwrap());
        Arc::new(OwnAddress {
            listens,
            current: Mutex::new(advertised.as_ref().and_then(NodeAddress::address).unwrap_or(listens)),
            is_advertised: advertised.is_some(),
            gossip: None,
            failed: Arc::default(),
            warned_at: Mutex::default(),
        })
    }

    fn is_news(own: &OwnAddress, address: &str) -> bool {
        *own.warned_at.lock() = None;
        let report = Unreachable { address: address.to_owned(), reason: String::new() };
        own.unreachable("127.0.0.1:9".parse().unwrap(), &report);
        own.warned_at.lock().is_some()
    }

    #[test]
    fn a_report_counts_if_it_is_of_the_present_address() {
        let advertised = own("0.0.0.0:4433", Some("192.0.2.7:1"));
        assert!(is_news(&advertised, "192.0.2.7:1"));
        assert!(!is_news(&advertised, "192.0.2.7:2") && !is_news(&advertised, "nonsense"));
        let everywhere = own("0.0.0.0:4433", None);
        assert!(is_news(&everywhere, "10.0.0.1:4433") && !is_news(&everywhere, "10.0.0.1:4434"));
    }

    #[test]
    fn a_name_keeps_its_address_while_it_has_it() {
        let directory = std::env::temp_dir().join(format!("callboard-own-address-{}", std::process::id()));
        let identity = Identity::development_in(&directory).unwrap();
        let own = own("127.0.0.1:4433", Some("node.example:1"));
        let resolve = |found: &[&str]| {
            let found: Vec<SocketAddr> = found.iter().map(|address| address.parse().unwrap()).collect();
            (own.resolved(&found, &identity), own.current().to_string())
        };
        // Of no use: every address, those of groups, one that an IPv4 socket cannot send to, and one beyond loopback.
        let unusable = ["0.0.0.0:1", "255.255.255.255:1", "224.0.0.1:1", "[::1]:1", "192.0.2.7:1"];
        assert_eq!(resolve(&unusable), (false, "127.0.0.1:4433".to_owned()));
        assert_eq!(resolve(&["[::1]:1", "127.0.0.2:1", "127.0.0.3:1"]), (true, "127.0.0.2:1".to_owned()));
        assert_eq!(resolve(&["127.0.0.3:1", "127.0.0.2:1"]), (true, "127.0.0.2:1".to_owned()));
        assert_eq!(resolve(&["127.0.0.3:1"]), (true, "127.0.0.3:1".to_owned()));
        let own_ones = ["127.0.0.3:1", "127.0.0.1:4433"];
        assert!(own_ones.iter().all(|address| !own.may_reach(address.parse().unwrap())));
        assert!(own.may_reach("127.0.0.2:1".parse().unwrap()) && !own.may_reach("[::1]:1".parse().unwrap()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
