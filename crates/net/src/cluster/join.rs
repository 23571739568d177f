//! When a node that joins others has seen them: until then it has no keyed actors.
//!
//! A node that has just started is alone by its own view. It would take keys that other nodes have, and they would lose
//! what they have not saved. So a node that names others waits until one of them has sent its member list, and until
//! each member is connected, or could not be. Then it announces its kinds; after `ANNOUNCED_FOR` it takes its keys.
//!
//! * **No nodes are named:** it has its keys at once. It may be the first node.
//! * **Late:** when its time is over, it goes on with the nodes that it has seen, perhaps alone, and says so: the named
//!   nodes may not exist yet.
//! * **Together:** the lists of nodes that start at the same time and name each other have these nodes only. So while
//!   an address could not be connected, a list counts only if some connected node offers kinds, which shows that it has
//!   joined. Otherwise nodes that start together wait until their time is over, or that address is connected.

use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_core::Instant;
use callboard_core::remote::{GIVE_AWAY_EVERY, JoinState};

use super::Inner;
use crate::server::OFFERS_EVERY;

/// How long nothing must have changed: members that have just been heard of are not yet in the view.
const QUIET_FOR: Duration = Duration::from_millis(200);

/// How long the other nodes have to learn what this one has, and then to look which keys they should give away. The
/// slack is for the way.
const ANNOUNCED_FOR: Duration = OFFERS_EVERY.saturating_add(GIVE_AWAY_EVERY).saturating_add(Duration::from_millis(50));

/// How often a joining node looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is known of an address of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStanding {
    /// It is being connected.
    Connecting,
    /// It is connected. `gossips`: it sends its member list.
    Connected { gossips: bool },
    /// It could not be connected, or is known at another address.
    Missed,
    /// It is this node.
    Ourselves,
}

/// What a joining node has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Whether a member has sent its list.
    has_list: bool,
    /// Whether a connected node has joined, and has keys.
    has_keys: bool,
    /// The addresses of its view, in their order.
    peers: Vec<PeerStanding>,
}

impl Seen {
    /// What is missing.
    fn missing(&self) -> Option<&'static str> {
        let any = |is_it: fn(&PeerStanding) -> bool| self.peers.iter().any(is_it);
        let tells = any(|peer| matches!(peer, PeerStanding::Connected { gossips: true }));
        let is_plain = any(|peer| matches!(peer, PeerStanding::Connected { gossips: false }));
        if !tells && !is_plain {
            Some("no named node has answered")
        } else if tells && !self.has_list {
            Some("no node has told it which members there are")
        } else if any(|peer| *peer == PeerStanding::Connecting) {
            Some("not all members are connected")
        } else if tells && !self.has_keys && any(|peer| *peer == PeerStanding::Missed) {
            Some("a node could not be connected, and no other one has keyed actors yet")
        } else {
            None
        }
    }
}

/// Decides when a node has joined.
#[derive(Debug)]
struct Joining {
    /// When it goes on with what it has.
    until: Instant,
    last: Option<(Seen, Instant)>,
    /// Since when the others are told, and what was missing then.
    announced: Option<(Instant, Option<Arc<str>>)>,
}

impl Joining {
    fn new(now: Instant, within: Duration) -> Self {
        Self { until: now + within, last: None, announced: None }
    }

    /// The state, given what the node has seen by now.
    fn look(&mut self, now: Instant, seen: Seen) -> JoinState {
        if let Some((since, without)) = &self.announced {
            let is_over = now.saturating_duration_since(*since) >= ANNOUNCED_FOR;
            return if is_over { JoinState::Joined { without: without.clone() } } else { JoinState::Announced };
        }
        let is_alone = !seen.peers.iter().any(|peer| matches!(peer, PeerStanding::Connected { .. }));
        let missing = seen.missing();
        let changed = match &self.last {
            Some((last, changed)) if *last == seen => *changed,
            _ => now,
        };
        self.last = Some((seen, changed));
        let is_late = now >= self.until;
        match missing {
            Some(missing) if is_late && is_alone => JoinState::Joined { without: Some(missing.into()) },
            None if is_late || now.saturating_duration_since(changed) >= QUIET_FOR => self.announce(now, None),
            Some(missing) if is_late => self.announce(now, Some(missing.into())),
            None => JoinState::Joining { reason: "it has just learnt of other nodes".into() },
            Some(missing) => JoinState::Joining { reason: missing.into() },
        }
    }

    fn announce(&mut self, now: Instant, without: Option<Arc<str>>) -> JoinState {
        self.announced = Some((now, without));
        JoinState::Announced
    }
}

/// The first state of a node that names others, or none.
pub(super) fn at_start(names_others: bool) -> JoinState {
    if names_others {
        JoinState::Joining { reason: "it has just started".into() }
    } else {
        JoinState::Joined { without: None }
    }
}

/// Publishes the state until the node has joined.
pub(super) async fn watch(cluster: Weak<Inner>, within: Duration) {
    let mut joining = Joining::new(Instant::now(), within);
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        if cluster.joined.borrow().is_joined() {
            return;
        }
        let state = joining.look(Instant::now(), cluster.seen());
        cluster.joined.send_if_modified(|last| std::mem::replace(last, state.clone()) != state);
        drop(cluster);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Inner {
    fn seen(&self) -> Seen {
        let has_list = self.gossip.as_ref().is_some_and(|gossip| gossip.has_list());
        let peers = self.index.peers();
        let has_keys = peers.iter().filter_map(|peer| peer.connected()).any(|(node, _)| node.has_kinds());
        Seen { has_list, has_keys, peers: peers.iter().map(|peer| peer.standing()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::PeerStanding::{Connected, Connecting, Missed, Ourselves};
    use super::*;

    const GOSSIPS: PeerStanding = Connected { gossips: true };
    const PLAIN: PeerStanding = Connected { gossips: false };
    const WITHIN: Duration = Duration::from_secs(5);

    /// A list is of a node that has joined.
    fn seen(has_list: bool, peers: &[PeerStanding]) -> Seen {
        Seen { has_list, has_keys: has_list, peers: peers.to_vec() }
    }

    fn is_joining(state: &JoinState) -> bool {
        matches!(state, JoinState::Joining { .. })
    }

    fn is_joined(state: &JoinState) -> bool {
        matches!(state, JoinState::Joined { without: None })
    }

    /// The states at these milliseconds.
    fn states(steps: &[(u64, Seen)]) -> Vec<JoinState> {
        let start = Instant::now();
        let mut joining = Joining::new(start, WITHIN);
        let at = |millis: u64| start + Duration::from_millis(millis);
        steps.iter().map(|(millis, seen)| joining.look(at(*millis), seen.clone())).collect()
    }

    #[test]
    fn a_node_that_names_no_others_has_its_keys_at_once() {
        assert!(is_joined(&at_start(false)) && is_joining(&at_start(true)));
    }

    #[test]
    fn a_node_waits_for_a_list_and_for_each_member_in_it_and_announces_itself() {
        let states = states(&[
            (0, seen(false, &[])),
            (10, seen(false, &[Connecting, Connecting])),
            (300, seen(false, &[GOSSIPS, Missed])),
            (600, seen(true, &[GOSSIPS, Missed])),
            // The list has a third node.
            (650, seen(true, &[GOSSIPS, Missed, Connecting])),
            (900, seen(true, &[GOSSIPS, Missed, Connecting])),
            (950, seen(true, &[GOSSIPS, Missed, GOSSIPS])),
            (1_149, seen(true, &[GOSSIPS, Missed, GOSSIPS])),
            (1_150, seen(true, &[GOSSIPS, Missed, GOSSIPS])),
            (1_549, seen(true, &[GOSSIPS, GOSSIPS, GOSSIPS])),
            (1_550, seen(true, &[GOSSIPS, GOSSIPS, GOSSIPS])),
        ]);
        assert!(states[..8].iter().all(is_joining), "{states:?}");
        assert_eq!(states[8..10], [JoinState::Announced, JoinState::Announced]);
        assert!(is_joined(&states[10]), "{states:?}");
    }

    #[test]
    fn nodes_without_gossip_have_no_list() {
        let states = states(&[(0, seen(false, &[PLAIN])), (200, seen(false, &[PLAIN])), (600, seen(false, &[PLAIN]))]);
        assert!(is_joining(&states[0]) && states[1] == JoinState::Announced && is_joined(&states[2]), "{states:?}");
    }

    #[test]
    fn a_node_whose_named_nodes_do_not_exist_goes_on_alone_and_says_so() {
        for peers in [&[][..], &[Missed, Missed], &[Ourselves], &[Connecting]] {
            let states = states(&[(0, seen(false, peers)), (4_999, seen(false, peers)), (5_000, seen(false, peers))]);
            assert!(states[..2].iter().all(is_joining), "{states:?}");
            assert!(matches!(&states[2], JoinState::Joined { without: Some(_) }), "{states:?}");
        }
    }

    #[test]
    fn nodes_that_start_together_wait_for_a_third_one_that_was_missed() {
        let fresh = |peers: &[PeerStanding]| Seen { has_keys: false, ..seen(true, peers) };
        let [missed, both] = [[GOSSIPS, Missed], [GOSSIPS, GOSSIPS]];
        let of_missed = states(&[(0, fresh(&missed)), (4_999, fresh(&missed)), (5_000, fresh(&missed))]);
        assert!(of_missed[..2].iter().all(is_joining) && of_missed[2] == JoinState::Announced, "{of_missed:?}");
        let connected = states(&[(0, fresh(&missed)), (600, seen(true, &both)), (800, seen(true, &both))]);
        assert!(is_joining(&connected[1]) && connected[2] == JoinState::Announced, "{connected:?}");
        let all_fresh = states(&[(0, fresh(&both)), (200, fresh(&both))]);
        assert_eq!(all_fresh[1], JoinState::Announced, "none was missed: {all_fresh:?}");
    }

    #[test]
    fn a_member_that_cannot_be_connected_holds_a_node_up_for_a_bounded_time() {
        let peers = [GOSSIPS, Connecting];
        let states = states(&[(0, seen(true, &peers)), (5_000, seen(true, &peers)), (5_400, seen(true, &peers))]);
        assert!(is_joining(&states[0]));
        assert_eq!(states[1], JoinState::Announced);
        assert!(matches!(&states[2], JoinState::Joined { without: Some(missing) } if missing.contains("connected")));
    }

    #[test]
    fn changes_without_end_hold_a_node_up_for_a_bounded_time() {
        let start = Instant::now();
        let mut joining = Joining::new(start, WITHIN);
        let joined = (0..1_000_u64).position(|step| {
            let others = vec![GOSSIPS; step as usize % 7 + 1];
            is_joined(&joining.look(start + LOOK_EVERY * step as u32, seen(true, &others)))
        });
        let joined = LOOK_EVERY * joined.expect("it joins") as u32;
        assert!((WITHIN..WITHIN + 2 * ANNOUNCED_FOR).contains(&joined), "{joined:?}");
    }
}
