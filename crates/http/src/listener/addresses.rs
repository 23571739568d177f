//! The number of connections of each address, and their limit.
//!
//! One lock per connection, never per request. The map holds connected addresses only, so the connections bound it.
//! **Full**: the connection is closed at once and counted; in the backlog it would block the clients after it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// The connections of every address.
#[derive(Debug)]
pub(crate) struct AddressLimits {
    most: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// The permit of one connection; released when dropped.
#[derive(Debug)]
pub(crate) struct AddressPermit {
    addresses: Arc<AddressLimits>,
    client: IpAddr,
}

impl AddressLimits {
    /// A limit for each address.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// A permit for one more connection of this address; `None` at the limit.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let client = client_of(address);
        let mut open = self.open.lock();
        let count = open.entry(client).or_insert(0);
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(AddressPermit { addresses: Arc::clone(self), client })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.addresses.open.lock().entry(self.client) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// The unit of a client: an IPv4 address, or a /64 network of IPv6, whose addresses a host may choose freely.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
        address @ IpAddr::V4(_) => address,
    }
}

const NETWORK: u128 = !0 << 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_per_address_and_forgotten_when_they_close() {
        let addresses = AddressLimits::new(2);
        let enter = |address: &str| addresses.enter(address.parse().unwrap());
        let (first, second) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(first.is_some() && second.is_some());
        assert!(enter("10.0.0.1").is_none(), "both forms of an IPv4 address are one address");
        assert!(enter("10.0.0.2").is_some());
        drop(second);
        assert!(enter("10.0.0.1").is_some());

        let _network = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(_network.1.is_some());
        assert!(enter("2001:db8::ffff").is_none(), "a /64 network counts as one host");
        assert!(enter("2001:db8:0:1::1").is_some());
        drop((first, _network));
        assert!(addresses.open.lock().is_empty());
    }
}
