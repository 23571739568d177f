//! Which of several peers gets the next call, and whether it leaves this node at all: pure decisions.
//!
//! Of two that are drawn, the one with less to do, weighed by how long it takes: the power of two choices. A session goes to the peer on
//! which its key falls (rendezvous hashing), unless that one has much more to do than the others. Peers that are out of order are left
//! out, but never so many that the rest would have to carry the whole.

use callboard_core::Instant;
use callboard_core::remote::StageLoad;

/// How much better another node has to be for a call to leave: with half of what waits here. A hop costs a crossing each way and the
/// encoding, and what is known of a peer is a little old.
const LOCAL_MARGIN: usize = 2;

/// A session's peer may have so much more to do than the average: 5/4, and one.
const SESSION_BOUND: (usize, usize) = (5, 4);

/// Of ten peers so many are left out at most: when most are out of order, it is not the peers.
const LEFT_OUT_OF_TEN: usize = 3;

/// What is known of a peer when a call is to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weight {
    /// Our calls that it has in hand, and those that wait there by its last word.
    pub(super) in_hand: usize,
    /// How long our calls take there.
    pub(super) latency_micros: f64,
    /// What tells it from others.
    pub(super) key: u64,
}

impl Weight {
    /// The lower, the better.
    fn cost(&self) -> f64 {
        (self.in_hand + 1) as f64 * self.latency_micros
    }
}

/// Whether a call leaves a node that does so, for one whose least busy peer has so much in hand. Not while a replica is free here.
pub(super) fn leaves(here: &StageLoad, least_there: Option<usize>) -> bool {
    let Some(least) = least_there else { return false };
    !here.open || (here.queued >= here.capacity && least.saturating_mul(LOCAL_MARGIN) < here.queued)
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
    let bound = session_bound(weights);
    let allowed = weights.iter().enumerate().filter(|(_, weight)| weight.in_hand <= bound);
    allowed.max_by_key(|(_, weight)| mix(session ^ mix(weight.key))).map(|(place, _)| place)
}

fn session_bound(weights: &[Weight]) -> usize {
    let total: usize = weights.iter().map(|weight| weight.in_hand).sum();
    (total * SESSION_BOUND.0).div_ceil(weights.len().max(1) * SESSION_BOUND.1) + 1
}

/// Which peers are left out, given until when each is out of order: those that stay so the longest, at most three of ten, but one
/// where there are two or three, and never the only one.
pub(super) fn left_out(until: &[Option<Instant>]) -> Vec<bool> {
    let most = (until.len() * LEFT_OUT_OF_TEN / 10).max(1).min(until.len().saturating_sub(1));
    let mut out_of_order: Vec<_> = until.iter().enumerate().filter_map(|(at, until)| Some(((*until)?, at))).collect();
    out_of_order.sort_by(|one, other| other.cmp(one));
    let mut out = vec![false; until.len()];
    out_of_order.into_iter().take(most).for_each(|(_, at)| out[at] = true);
    out
}

/// SplitMix64.
pub(super) fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn weight(in_hand: usize, latency_micros: f64, key: u64) -> Weight {
        Weight { in_hand, latency_micros, key }
    }

    fn peers() -> impl Strategy<Value = Vec<Weight>> {
        let peer = (0usize..200, 1.0..1e6_f64);
        prop::collection::vec(peer, 1..12).prop_map(|peers| {
            let keyed = peers.into_iter().zip(1_u64..);
            keyed.map(|((in_hand, latency), key)| weight(in_hand, latency, key)).collect()
        })
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

    proptest! {
        /// Whatever is drawn, it is never the worst of several that differ.
        #[test]
        fn two_choices_never_take_the_worst(peers in peers(), first: usize, second: usize) {
            let chosen = better_of_two(&peers, (first, second)).expect("there are peers");
            let worst = peers.iter().map(Weight::cost).fold(0.0, f64::max);
            let others_are_better = peers.iter().filter(|peer| peer.cost() == worst).count() == 1 && peers.len() > 1;
            prop_assert!(!(others_are_better && peers[chosen].cost() == worst));
        }

        /// Affinity with bounded load: the same peer as long as it is within the bound, whatever the others have to do, and never one
        /// that is above it.
        #[test]
        fn a_session_stays_where_it_is_within_the_bound(peers in peers(), busy in peers(), session: u64) {
            let idle: Vec<_> = peers.iter().map(|peer| weight(0, 1.0, peer.key)).collect();
            let home = of_session(&idle, session).expect("somebody is below the average");
            let mut now = peers;
            for (peer, other) in now.iter_mut().zip(&busy) {
                peer.in_hand = other.in_hand;
            }
            let chosen = of_session(&now, session).expect("somebody is below the average");
            let bound = session_bound(&now);
            prop_assert!(now[chosen].in_hand <= bound);
            prop_assert_eq!(chosen == home, now[home].in_hand <= bound);
            let total: usize = now.iter().map(|peer| peer.in_hand).sum();
            prop_assert!(bound as f64 <= 1.25 * total as f64 / now.len() as f64 + 2.0);
        }

        /// When a peer leaves, its sessions and those alone go elsewhere.
        #[test]
        fn a_session_stays_where_it_is_when_another_peer_leaves(count in 2_u64..12, gone: u64, session: u64) {
            let peers: Vec<_> = (0..count).map(|key| weight(0, 100.0, key)).collect();
            let home = peers[of_session(&peers, session).expect("there are peers")].key;
            let rest: Vec<_> = peers.iter().copied().filter(|peer| peer.key != gone % count).collect();
            let after = rest[of_session(&rest, session).expect("there are peers")].key;
            prop_assert!(after == home || home == gone % count);
        }

        /// However many are out of order: at most three of ten are left out, one of few, never the last; and those stay out the longest.
        #[test]
        fn so_many_are_left_out_at_most(ends in prop::collection::vec(prop::option::of(1_u64..1_000), 0..40)) {
            let start = Instant::now();
            let until: Vec<_> = ends.iter().map(|end| end.map(|end| start + Duration::from_millis(end))).collect();
            let out = left_out(&until);
            let count = out.iter().filter(|out| **out).count();
            prop_assert!(count <= (until.len() * 3 / 10).max(1));
            prop_assert!(until.is_empty() || count < until.len());
            for (at, one) in until.iter().enumerate() {
                prop_assert!(one.is_some() || !out[at]);
                for (other, two) in until.iter().enumerate() {
                    prop_assert!(!(out[at] && two.is_some() && !out[other] && two > one));
                }
            }
        }

        /// A call stays while a replica is free; and it leaves only for half of what waits here.
        #[test]
        fn what_is_not_clearly_better_elsewhere_stays(queued in 0_usize..100, capacity in 1_usize..20, least in 0_usize..100) {
            let here = load(true, queued, capacity);
            let goes = leaves(&here, Some(least));
            prop_assert!(!goes || (queued >= capacity && least * 2 < queued));
            prop_assert!(!leaves(&here, None));
            prop_assert!(leaves(&load(false, queued, capacity), Some(least)));
        }
    }

    fn load(open: bool, queued: usize, capacity: usize) -> StageLoad {
        let mut load = StageLoad::default();
        (load.open, load.queued, load.capacity) = (open, queued, capacity);
        load
    }
}
