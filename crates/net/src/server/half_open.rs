//! Connections before their hello, by address.
//!
//! There is a limit for all of them, and one for each proven address; joins and renewals count until they are answered.
//! An unproven address does not count: otherwise strangers could use up its share with forged packets. Once a quarter
//! of the limit is in use, callers must first prove their address, which costs them a round trip and this node no
//! memory.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::endpoint::Tuning;

/// The decision about a first packet.
#[derive(Debug)]
pub(super) enum HandshakeDecision {
    /// Continue the handshake, and hold the slot until the hello.
    Accept(HalfOpenSlot),
    /// Have the caller prove its address first.
    Retry,
    /// Refuse: a limit is reached.
    Refuse,
}

/// The connections before their hello.
#[derive(Debug, Default)]
pub(super) struct HalfOpen(Arc<Mutex<HalfOpenCounts>>);

#[derive(Debug, Default)]
struct HalfOpenCounts {
    all: usize,
    /// The connections from proven addresses. Zero counts are removed.
    by_address: HashMap<IpAddr, usize>,
}

/// A slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct HalfOpenSlot {
    counts: Arc<Mutex<HalfOpenCounts>>,
    address: Option<IpAddr>,
}

impl HalfOpen {
    /// Decides about a first packet from this address, which is proven or not.
    pub(super) fn enter(&self, address: IpAddr, is_proven: bool, tuning: &Tuning) -> HandshakeDecision {
        let address = share_address(address);
        let mut counts = self.0.lock();
        if counts.all >= tuning.max_half_open {
            return HandshakeDecision::Refuse;
        }
        if !is_proven && counts.all > tuning.max_half_open / 4 {
            return HandshakeDecision::Retry;
        }
        if is_proven {
            let of_address = counts.by_address.entry(address).or_default();
            if *of_address >= tuning.max_half_open_per_address {
                return HandshakeDecision::Refuse;
            }
            *of_address += 1;
        }
        counts.all += 1;
        HandshakeDecision::Accept(HalfOpenSlot { counts: Arc::clone(&self.0), address: is_proven.then_some(address) })
    }
}

impl Drop for HalfOpenSlot {
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

/// The address whose share counts: all addresses of an IPv6 /64 are one.
fn share_address(address: IpAddr) -> IpAddr {
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
    fn an_address_has_a_share_of_the_limit() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(8, 2));
        let enter = |address: &str| half_open.enter(ip(address), true, &tuning);
        let (first, second) = (enter("192.0.2.1"), enter("::ffff:192.0.2.1"));
        assert!(matches!((&first, &second), (HandshakeDecision::Accept(_), HandshakeDecision::Accept(_))));
        assert!(matches!(enter("192.0.2.1"), HandshakeDecision::Refuse));
        let other = enter("192.0.2.2");
        assert!(matches!(other, HandshakeDecision::Accept(_)));
        drop(first);
        let third = enter("192.0.2.1");
        assert!(matches!(third, HandshakeDecision::Accept(_)));
        assert!(matches!(enter("192.0.2.1"), HandshakeDecision::Refuse));
        let sixes = [enter("2001:db8::1"), enter("2001:db8::ffff:2"), enter("2001:db8:0:1::1")];
        assert!(sixes.iter().all(|six| matches!(six, HandshakeDecision::Accept(_))));
        assert!(matches!(enter("2001:db8::3"), HandshakeDecision::Refuse), "of the same /64");
        drop((second, other, third, sixes));
        let counts = half_open.0.lock();
        assert_eq!((counts.all, counts.by_address.len()), (0, 0), "closed connections count no longer");
    }

    #[test]
    fn unproven_addresses_have_no_share_and_must_soon_be_proven() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(8, 1));
        let spoofed: Vec<_> = (0..3).map(|_| half_open.enter(ip("192.0.2.1"), false, &tuning)).collect();
        assert!(spoofed.iter().all(|entrance| matches!(entrance, HandshakeDecision::Accept(_))));
        assert!(matches!(half_open.enter(ip("192.0.2.1"), false, &tuning), HandshakeDecision::Retry));
        assert!(matches!(half_open.enter(ip("192.0.2.1"), true, &tuning), HandshakeDecision::Accept(_)));
    }

    #[test]
    fn there_is_a_limit_for_all_addresses_together() {
        let (half_open, tuning) = (HalfOpen::default(), tuning(2, 2));
        let places = [half_open.enter(ip("192.0.2.1"), true, &tuning), half_open.enter(ip("192.0.2.2"), true, &tuning)];
        for is_proven in [false, true] {
            assert!(matches!(half_open.enter(ip("192.0.2.3"), is_proven, &tuning), HandshakeDecision::Refuse));
        }
        drop(places);
        assert!(matches!(half_open.enter(ip("192.0.2.3"), false, &tuning), HandshakeDecision::Accept(_)));
    }
}
