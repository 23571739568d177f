//! Connections that have not said hello: how many there are, and from where.
//!
//! All of them have a limit, and so has each address that is proven; joins and renewals are among them until they are answered. Where an
//! address is not proven it counts for nobody: else strangers could use up another's share by writing its address on their packets. From a
//! quarter of all on, addresses have to be proven first, which costs the caller a round trip and this side no memory.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::endpoint::Tuning;

/// What becomes of a first packet.
#[derive(Debug)]
pub(super) enum Entrance {
    /// It is let in, for as long as this is kept.
    Open(Place),
    /// It has to prove its address first.
    Prove,
    /// There is no place.
    Full,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct HalfOpen(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Those with proven addresses, by these. None is there with zero.
    by_address: HashMap<IpAddr, usize>,
}

/// One of them; dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct Place {
    counts: Arc<Mutex<Counts>>,
    address: Option<IpAddr>,
}

impl HalfOpen {
    /// A first packet from this address comes, which is proven or not.
    pub(super) fn enter(&self, address: IpAddr, is_proven: bool, tuning: &Tuning) -> Entrance {
        let address = share_of(address);
        let mut counts = self.0.lock();
        if counts.all >= tuning.max_half_open {
            return Entrance::Full;
        }
        if !is_proven && counts.all > tuning.max_half_open / 4 {
            return Entrance::Prove;
        }
        if is_proven {
            let of_address = counts.by_address.entry(address).or_default();
            if *of_address >= tuning.max_half_open_per_address {
                return Entrance::Full;
            }
            *of_address += 1;
        }
        counts.all += 1;
        Entrance::Open(Place { counts: Arc::clone(&self.0), address: is_proven.then_some(address) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.all -= 1;
        let Some(address) = self.address else { return };
        if let Some(of_address) = counts.by_address.get_mut(&address) {
            *of_address -= 1;
            if *of_address == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

/// Whose share an address is of: whoever has one of a /64 has them all.
fn share_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(all: usize, per_address: usize) -> Tuning {
        let mut tuning = Tuning::default();
        (tuning.max_half_open, tuning.max_half_open_per_address) = (all, per_address);
        tuning
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_leaves_the_rest_to_others() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(8, 2));
        let enter = |address: &str| half_open.enter(ip(address), true, &tuning);
        let (first, second) = (enter("192.0.2.1"), enter("::ffff:192.0.2.1"));
        assert!(matches!((&first, &second), (Entrance::Open(_), Entrance::Open(_))));
        assert!(matches!(enter("192.0.2.1"), Entrance::Full));
        let other = enter("192.0.2.2");
        assert!(matches!(other, Entrance::Open(_)));
        drop(first);
        let third = enter("192.0.2.1");
        assert!(matches!(third, Entrance::Open(_)));
        assert!(matches!(enter("192.0.2.1"), Entrance::Full));
        let sixes = [enter("2001:db8::1"), enter("2001:db8::ffff:2"), enter("2001:db8:0:1::1")];
        assert!(sixes.iter().all(|six| matches!(six, Entrance::Open(_))));
        assert!(matches!(enter("2001:db8::3"), Entrance::Full), "of the same /64");
        drop((second, other, third, sixes));
        let counts = half_open.0.lock();
        assert_eq!((counts.all, counts.by_address.len()), (0, 0), "nothing is kept of who is gone");
    }

    #[test]
    fn addresses_that_are_not_proven_are_nobodys_share_and_soon_have_to_be() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(8, 1));
        let spoofed: Vec<_> = (0..3).map(|_| half_open.enter(ip("192.0.2.1"), false, &tuning)).collect();
        assert!(spoofed.iter().all(|entrance| matches!(entrance, Entrance::Open(_))));
        assert!(matches!(half_open.enter(ip("192.0.2.1"), false, &tuning), Entrance::Prove));
        assert!(matches!(half_open.enter(ip("192.0.2.1"), true, &tuning), Entrance::Open(_)));
    }

    #[test]
    fn all_together_have_a_limit_as_well() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(2, 2));
        let places = [half_open.enter(ip("192.0.2.1"), true, &tuning), half_open.enter(ip("192.0.2.2"), true, &tuning)];
        for is_proven in [false, true] {
            assert!(matches!(half_open.enter(ip("192.0.2.3"), is_proven, &tuning), Entrance::Full));
        }
        drop(places);
        assert!(matches!(half_open.enter(ip("192.0.2.3"), false, &tuning), Entrance::Open(_)));
    }
}
