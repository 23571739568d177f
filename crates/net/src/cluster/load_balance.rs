//! Load balancing: the peer for the next call, and the decision whether a call leaves this node. Pure decisions.
//!
//! The better of two random peers gets the call, by expected work: the power of two choices. A session goes to the
//! peer of its key (rendezvous hashing), unless that peer has much more work than the others. Peers with an open
//! breaker are ejected, but never so many that the rest would be overloaded.

use callboard_core::Instant;
use callboard_core::remote::{StageLoad, splitmix64};

/// A call leaves only for a peer with less than half of the local queue: forwarding costs a round trip and encoding,
/// and the statistics of a peer are a little old.
const LOCAL_MARGIN: usize = 2;

/// The most work of a session's peer, relative to the average: 5/4, plus one.
const SESSION_BOUND: (usize, usize) = (5, 4);

/// The most ejected peers of ten: when most peers fail, the cause is not the peers.
const EJECTED_OF_TEN: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PeerLoad {
    /// This node's calls in flight there, and the queue that it last reported.
    pub(super) in_flight: usize,
    /// The expected latency of a call.
    pub(super) latency_micros: f64,
    /// Identifies the peer, by its name.
    pub(super) key: u64,
}

impl PeerLoad {
    /// The expected work: the lower, the better.
    pub(super) fn cost(&self) -> f64 {
        (self.in_flight + 1) as f64 * self.latency_micros
    }
}

/// Whether to forward a call, given the local load and the in-flight count of the least busy peer. Not while a replica
/// is free here.
pub(super) fn should_forward(here: &StageLoad, least_there: Option<usize>) -> bool {
    let Some(least) = least_there else { return false };
    !here.open || (here.queued >= here.capacity && least.saturating_mul(LOCAL_MARGIN) < here.queued)
}

/// The index of the better of two peers, each drawn by one of `chances`. `None`: there is no peer.
pub(super) fn better_of_two(loads: &[PeerLoad], chances: (usize, usize)) -> Option<usize> {
    let (first, second) = two_of(loads.len(), chances)?;
    let better = if loads[second].cost() < loads[first].cost() { second } else { first };
    Some(better)
}

/// The indices of two of `len` peers, each drawn by one of `chances`: different ones, unless there is only one.
pub(super) fn two_of(len: usize, chances: (usize, usize)) -> Option<(usize, usize)> {
    let first = chances.0.checked_rem(len)?;
    let second = match len {
        1 => first,
        len => (first + 1 + chances.1 % (len - 1)) % len,
    };
    Some((first, second))
}

/// The index of a session's peer, among the peers with at most a quarter more work than the average.
pub(super) fn session_peer(loads: &[PeerLoad], session: u64) -> Option<usize> {
    let bound = session_bound(loads);
    let allowed = loads.iter().enumerate().filter(|(_, load)| load.in_flight <= bound);
    allowed.max_by_key(|(_, load)| splitmix64(session ^ splitmix64(load.key))).map(|(place, _)| place)
}

fn session_bound(loads: &[PeerLoad]) -> usize {
    let total: usize = loads.iter().map(|load| load.in_flight).sum();
    (total * SESSION_BOUND.0).div_ceil(loads.len().max(1) * SESSION_BOUND.1) + 1
}

/// The ejected peers, given the end of each open breaker: the longest first. At most three of ten, but one of two or
/// three, and never the only peer.
pub(super) fn ejected(until: &[Option<Instant>]) -> Vec<bool> {
    let most = (until.len() * EJECTED_OF_TEN / 10).max(1).min(until.len().saturating_sub(1));
    let mut open: Vec<_> = until.iter().enumerate().filter_map(|(at, until)| Some(((*until)?, at))).collect();
    open.sort_by(|one, other| other.cmp(one));
    let mut ejected = vec![false; until.len()];
    open.into_iter().take(most).for_each(|(_, at)| ejected[at] = true);
    ejected
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn peer_load(in_flight: usize, latency_micros: f64, key: u64) -> PeerLoad {
        PeerLoad { in_flight, latency_micros, key }
    }

    fn peers() -> impl Strategy<Value = Vec<PeerLoad>> {
        let peer = (0usize..200, 1.0..1e6_f64);
        prop::collection::vec(peer, 1..12).prop_map(|peers| {
            let keyed = peers.into_iter().zip(1_u64..);
            keyed.map(|((in_flight, latency), key)| peer_load(in_flight, latency, key)).collect()
        })
    }

    #[test]
    fn the_less_busy_and_the_faster_win() {
        let peers = [peer_load(3, 100.0, 1), peer_load(1, 100.0, 2)];
        assert_eq!(better_of_two(&peers, (0, 0)), Some(1));
        assert_eq!(better_of_two(&peers, (1, 0)), Some(1));
        let peers = [peer_load(1, 5_000.0, 1), peer_load(1, 100.0, 2)];
        assert_eq!(better_of_two(&peers, (0, 7)), Some(1));
        // Ten calls on a fast peer take longer than one on a slow peer, but not than two.
        let peers = [peer_load(9, 100.0, 1), peer_load(0, 600.0, 2), peer_load(1, 600.0, 3)];
        assert_eq!(better_of_two(&peers, (0, 0)), Some(1));
        assert_eq!(better_of_two(&peers, (2, 0)), Some(0));
        let idle = [peer_load(0, 5_000.0, 1), peer_load(0, 100.0, 2), peer_load(0, 100.0, 3)];
        assert_eq!(better_of_two(&idle, (0, 0)), Some(1));
        assert_eq!(better_of_two(&idle, (2, 1)), Some(2), "the first of two equal peers");
        assert_eq!(better_of_two(&peers[..1], (9, 9)), Some(0));
        assert_eq!(better_of_two(&[], (0, 0)), None);
    }

    #[test]
    fn a_call_leaves_when_all_replicas_are_busy() {
        assert!(should_forward(&load(true, 8, 8), Some(3)));
        assert!(!should_forward(&load(true, 7, 8), Some(0)), "a replica is free");
        assert!(!should_forward(&load(true, 8, 8), Some(4)), "half of the queue is not less than half");
    }

    #[test]
    fn a_session_stays_on_a_peer_that_is_just_within_the_bound() {
        let idle = [peer_load(0, 1.0, 1), peer_load(0, 1.0, 2)];
        let session = (0..).find(|session| session_peer(&idle, *session) == Some(0)).expect("there is one");
        // With 3 to 5 calls on one of two peers the bound is that many calls, with 6 it is 5.
        let busy = |in_flight| session_peer(&[peer_load(in_flight, 1.0, 1), idle[1]], session);
        assert_eq!([3, 5, 6].map(busy), [Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn sessions_are_spread_evenly() {
        let (peers, mut counts) = ([1, 2, 3, 4, 5].map(|key| peer_load(0, 1.0, key)), [0; 5]);
        (0..10_000).filter_map(|session| session_peer(&peers, session)).for_each(|peer| counts[peer] += 1);
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn three_of_ten_failing_peers_are_ejected() {
        let ejected_of =
            |count: usize| ejected(&vec![Some(Instant::now()); count]).into_iter().filter(|out| *out).count();
        assert_eq!([0, 1, 2, 3, 10, 20].map(ejected_of), [0, 0, 1, 1, 3, 6]);
    }

    #[test]
    fn a_slow_peer_gets_few_of_many_calls() {
        let peers = [peer_load(1, 50_000.0, 1), peer_load(1, 1_000.0, 2), peer_load(1, 1_000.0, 3)];
        let slow = (0..9_000).filter(|n| better_of_two(&peers, (n % 3, n / 3)) == Some(0)).count();
        assert_eq!(slow, 0);
    }

    proptest! {
        /// Never chooses the one peer that is worse than all others.
        #[test]
        fn two_choices_never_take_the_worst(peers in peers(), first: usize, second: usize) {
            let chosen = better_of_two(&peers, (first, second)).expect("there are peers");
            let worst = peers.iter().map(PeerLoad::cost).fold(0.0, f64::max);
            let others_are_better = peers.iter().filter(|peer| peer.cost() == worst).count() == 1 && peers.len() > 1;
            prop_assert!(!(others_are_better && peers[chosen].cost() == worst));
        }

        /// Affinity with bounded load: always the same peer while it is within the bound, and never a peer above the
        /// bound.
        #[test]
        fn a_session_keeps_its_peer_within_the_bound(peers in peers(), busy in peers(), session: u64) {
            let idle: Vec<_> = peers.iter().map(|peer| peer_load(0, 1.0, peer.key)).collect();
            let home = session_peer(&idle, session).expect("a peer is below the average");
            let mut now = peers;
            for (peer, other) in now.iter_mut().zip(&busy) {
                peer.in_flight = other.in_flight;
            }
            let chosen = session_peer(&now, session).expect("a peer is below the average");
            let bound = session_bound(&now);
            prop_assert!(now[chosen].in_flight <= bound);
            prop_assert_eq!(chosen == home, now[home].in_flight <= bound);
            let total: usize = now.iter().map(|peer| peer.in_flight).sum();
            prop_assert!(bound as f64 <= 1.25 * total as f64 / now.len() as f64 + 2.0);
        }

        /// When a peer leaves, only its own sessions move.
        #[test]
        fn a_session_keeps_its_peer_when_another_peer_leaves(count in 2_u64..12, removed: u64, session: u64) {
            let peers: Vec<_> = (0..count).map(|key| peer_load(0, 100.0, key)).collect();
            let home = peers[session_peer(&peers, session).expect("there are peers")].key;
            let rest: Vec<_> = peers.iter().copied().filter(|peer| peer.key != removed % count).collect();
            let after = rest[session_peer(&rest, session).expect("there are peers")].key;
            prop_assert!(after == home || home == removed % count);
        }

        /// At most three of ten peers are ejected, one of few, never the last; the peers whose breakers stay
        /// open the longest are chosen.
        #[test]
        fn the_number_of_ejected_peers_is_bounded(ends in prop::collection::vec(prop::option::of(1_u64..1_000), 0..40)) {
            let start = Instant::now();
            let until: Vec<_> = ends.iter().map(|end| end.map(|end| start + Duration::from_millis(end))).collect();
            let out = ejected(&until);
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

        /// A call stays while a replica is free, and leaves only for a peer with half of the local queue.
        #[test]
        fn a_call_stays_unless_a_peer_is_clearly_better(queued in 0_usize..100, capacity in 1_usize..20, least in 0_usize..100) {
            let here = load(true, queued, capacity);
            let goes = should_forward(&here, Some(least));
            prop_assert!(!goes || (queued >= capacity && least * 2 < queued));
            prop_assert!(!should_forward(&here, None));
            prop_assert!(should_forward(&load(false, queued, capacity), Some(least)));
        }
    }

    fn load(open: bool, queued: usize, capacity: usize) -> StageLoad {
        let mut load = StageLoad::default();
        (load.open, load.queued, load.capacity) = (open, queued, capacity);
        load
    }
}
