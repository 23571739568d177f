//! Which of several peers gets the next call: a pure decision.
//!
//! Of two that are drawn, the one with less to do, weighed by how long it takes: the power of two choices. A session goes to the peer on
//! which its key falls (rendezvous hashing), unless that one has much more to do than the others.

use std::time::Duration;

/// A new peer gets the benefit of the doubt, and little of it.
const UNKNOWN_LATENCY_MICROS: f64 = 1_000.0;

/// How much the newest latency counts.
const NEWEST: f64 = 0.2;

/// What is known of a peer when a call is to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weight {
    /// Our calls that it has in hand.
    pub(super) ours: usize,
    /// All calls that it had in flight when it last said so.
    pub(super) reported: usize,
    /// How long our calls take there, smoothed; 0 for unknown.
    pub(super) latency_micros: f64,
    /// What tells it from others.
    pub(super) key: u64,
}

impl Weight {
    /// The lower, the better.
    fn cost(&self) -> f64 {
        let latency = if self.latency_micros > 0.0 { self.latency_micros } else { UNKNOWN_LATENCY_MICROS };
        (self.in_hand() + 1) as f64 * latency
    }

    /// What it had said may have ended since; ours have not.
    pub(super) fn in_hand(&self) -> usize {
        self.ours.max(self.reported)
    }
}

/// The place of the better of two, each drawn by one of `chances`. `None` of none.
pub(super) fn better_of_two(weights: &[Weight], chances: (usize, usize)) -> Option<usize> {
    let first = chances.0.checked_rem(weights.len())?;
    // Another one, where there is one.
    let second = match weights.len() {
        1 => first,
        len => (first + 1 + chances.1 % (len - 1)) % len,
    };
    let better = if weights[second].cost() < weights[first].cost() { second } else { first };
    Some(better)
}

/// The place of the peer on which a session falls, among those that have no more than a quarter above the average to do.
pub(super) fn of_session(weights: &[Weight], session: u64) -> Option<usize> {
    let total: usize = weights.iter().map(Weight::in_hand).sum();
    // 5/4 of the average, and one.
    let bound = (total * 5).div_ceil(weights.len().max(1) * 4) + 1;
    let allowed = weights.iter().enumerate().filter(|(_, weight)| weight.in_hand() <= bound);
    allowed.max_by_key(|(_, weight)| mix(session ^ mix(weight.key))).map(|(place, _)| place)
}

/// A latency with one more in it.
pub(super) fn smoothed(before_micros: f64, newest: Duration) -> f64 {
    let newest = newest.as_secs_f64() * 1e6;
    if before_micros > 0.0 { before_micros + NEWEST * (newest - before_micros) } else { newest }
}

/// SplitMix64.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(ours: usize, latency_micros: f64, key: u64) -> Weight {
        Weight { ours, reported: 0, latency_micros, key }
    }

    #[test]
    fn the_less_busy_and_the_faster_win() {
        let peers = [weight(3, 100.0, 1), weight(1, 100.0, 2)];
        assert_eq!(better_of_two(&peers, (0, 0)), Some(1));
        assert_eq!(better_of_two(&peers, (1, 0)), Some(1));
        let peers = [weight(1, 5_000.0, 1), weight(1, 100.0, 2)];
        assert_eq!(better_of_two(&peers, (0, 7)), Some(1));
        assert_eq!(better_of_two(&peers[..1], (9, 9)), Some(0));
        assert_eq!(better_of_two(&[], (0, 0)), None);
    }

    #[test]
    fn a_slow_peer_gets_few_of_many_calls() {
        let peers = [weight(1, 50_000.0, 1), weight(1, 1_000.0, 2), weight(1, 1_000.0, 3)];
        let slow = (0..9_000).filter(|n| better_of_two(&peers, (n % 3, n / 3)) == Some(0)).count();
        assert_eq!(slow, 0);
    }

    #[test]
    fn a_session_stays_where_it_is_when_another_peer_leaves() {
        let peers: Vec<_> = (0..5).map(|key| weight(0, 100.0, key)).collect();
        for session in 0..200 {
            let home = peers[of_session(&peers, session).unwrap()].key;
            let gone = (home + 1) % 5;
            let rest: Vec<_> = peers.iter().copied().filter(|peer| peer.key != gone).collect();
            assert_eq!(rest[of_session(&rest, session).unwrap()].key, home);
        }
    }

    #[test]
    fn a_session_leaves_a_peer_that_has_much_more_to_do() {
        let mut peers: Vec<_> = (0..4).map(|key| weight(0, 100.0, key)).collect();
        let home = of_session(&peers, 7).unwrap();
        peers[home].ours = 100;
        assert_ne!(of_session(&peers, 7), Some(home));
    }

    #[test]
    fn latency_follows_slowly() {
        assert_eq!(smoothed(0.0, Duration::from_micros(500)), 500.0);
        let after = smoothed(500.0, Duration::from_micros(1_500));
        assert!((after - 700.0).abs() < 1e-9);
    }
}
