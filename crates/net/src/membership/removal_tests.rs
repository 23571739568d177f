//! Signed lists of removed members in whole clusters, and what a member that floods with them cannot do.

use bytes::Bytes;

use super::Output;
use super::message::{Gossip, Sourced};
use super::removals::ListVersion;
use super::sim::{Loss, Sim, id, lists, name};
use super::tests::{Lone, secs, seed};

/// The first version comes from the first node, and so on.
#[test]
fn a_list_is_known_to_thirty_nodes_within_two_seconds() {
    for loss in [0.0, 0.2] {
        let mut sim = Sim::reporting(30, seed(), Loss::Delayed(loss));
        for version in 1..=5 {
            sim.set_list(version as usize, version);
            let took = sim.run_until(secs(10.0), |sim| sim.nodes.iter().all(|node| node.list == version));
            let took = took.expect("all know of the list");
            println!("loss of {loss}: version {version} is known after {took:.1?}");
            assert!(took <= secs(2.0), "{took:?}");
        }
        assert_eq!((sim.false_deaths, sim.renewals()), (0, 0));
    }
}

#[test]
fn a_node_that_was_away_is_told_and_an_old_list_is_not_passed_on() {
    let mut sim = Sim::reporting(5, seed(), Loss::Delayed(0.05));
    sim.stop(4, secs(1.0));
    sim.set_list(0, 7);
    sim.run_until(secs(8.0), |sim| sim.nodes.iter().all(|node| node.list == 7)).expect("all know");
    // A node that has lost its list, and one with an older list than the others.
    sim.set_list(2, 3);
    sim.run_until(secs(8.0), |sim| sim.nodes.iter().all(|node| node.list == 7)).expect("all know again");
}

fn versions(of: &[(&str, u64)]) -> Vec<ListVersion> {
    of.iter().map(|(issuer, version)| ListVersion { issuer: (*issuer).to_owned(), version: *version }).collect()
}

impl Lone {
    fn is_told(&mut self, gossip: Gossip) -> Vec<Gossip> {
        let message = Sourced { source: id(1, 1), gossip }.to_bytes();
        self.node.received(&name(1), &message, self.now).expect("a valid message");
        self.lists_sent()
    }

    fn lists_sent(&mut self) -> Vec<Gossip> {
        let outputs = std::iter::from_fn(|| self.node.poll_output());
        let sent = outputs.filter_map(|output| match output {
            Output::Send { message, .. } => Some(Sourced::read(&message).expect("a message").gossip),
            _ => None,
        });
        sent.filter(|gossip| matches!(gossip, Gossip::Removals { .. } | Gossip::Removed(_))).collect()
    }
}

#[test]
fn members_are_sent_the_lists_that_they_lack_at_most_four_times_a_second() {
    let mut lone = Lone::with_members(1);
    lone.node.connected(&name(1).into(), (true, true), lone.now);
    lone.node.set_lists(lists(&[("", 5), ("0123456789abcdef", 6)]), lone.now);
    lone.pass(secs(1.0), &[1], |_| false);
    lone.lists_sent();
    let asks = |of: &[(&str, u64)]| Gossip::Removals { wants_answer: true, versions: versions(of) };
    let list = |version: u64| Gossip::Removed(Bytes::copy_from_slice(&version.to_be_bytes()));
    assert_eq!(lone.is_told(asks(&[])), [list(5), list(6)]);
    lone.now += secs(0.3);
    assert_eq!(lone.is_told(asks(&[("", 5), ("0123456789abcdef", 5)])), [list(6)]);
    lone.now += secs(0.3);
    let own = versions(&[("", 5), ("0123456789abcdef", 6)]);
    let answer = Gossip::Removals { wants_answer: false, versions: own };
    assert_eq!(lone.is_told(asks(&[("", 5), ("0123456789abcdef", 6), ("fedcba9876543210", 1)])), [answer]);
    let mut answers = 0;
    for _ in 0..100 {
        lone.now += secs(0.05);
        answers += lone.is_told(asks(&[])).len() / 2;
    }
    assert!((10..=21).contains(&answers), "{answers} in five seconds");
}

#[test]
fn a_member_without_the_feature_is_sent_no_list() {
    let mut lone = Lone::with_members(1);
    lone.node.connected(&name(1).into(), (true, false), lone.now);
    lone.node.set_lists(lists(&[("", 5)]), lone.now);
    let outputs = lone.pass(secs(5.0), &[1], |_| false);
    for output in outputs {
        let Output::Send { message, .. } = output else { continue };
        let gossip = Sourced::read(&message).expect("a message").gossip;
        assert!(!matches!(gossip, Gossip::Removals { .. } | Gossip::Removed(_)), "{gossip:?}");
    }
}

/// A list is given out to be verified, and not passed on before.
#[test]
fn what_was_not_verified_is_not_passed_on() {
    let mut lone = Lone::with_members(2);
    [1, 2].into_iter().for_each(|number| lone.node.connected(&name(number).into(), (true, true), lone.now));
    let list = Bytes::from_static(b"nonsense");
    let message = Sourced { source: id(1, 1), gossip: Gossip::Removed(list.clone()) }.to_bytes();
    lone.node.received(&name(1), &message, lone.now).expect("a message");
    let outputs: Vec<_> = std::iter::from_fn(|| lone.node.poll_output()).collect();
    assert!(outputs.contains(&Output::Removed { from: name(1).into(), list }), "{outputs:?}");
    lone.pass(secs(3.0), &[1, 2], |_| false);
    assert_eq!(lone.lists_sent(), []);
}
