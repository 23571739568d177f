//! What a member that lies cannot do: each bound, exceeded.

use std::time::Duration;

use foca::{Header, Member, Message, State};

use super::error::GossipError;
use super::message::{Gossip, Sourced};
use super::sim::{id, name};
use super::state::{MAX_LIST_BYTES, MAX_MEMBERS, MAX_TIMERS};
use super::swim::Swim;
use super::tests::{Lone, secs};
use super::{MemberId, Output};

impl Lone {
    /// The first member lists these.
    fn told(&mut self, members: Vec<Member<MemberId>>) -> Vec<Output> {
        self.heard(Gossip::Members { mask: u64::MAX, wants_answer: false, members })
    }

    fn heard(&mut self, gossip: Gossip) -> Vec<Output> {
        let message = Sourced { source: id(1, 1), gossip }.to_bytes();
        self.node.received(&name(1), &message, self.now).expect("a valid message");
        std::iter::from_fn(|| self.node.poll_output()).collect()
    }
}

#[test]
fn lives_of_the_far_future_and_endless_ones_are_refused() {
    const DAY: u64 = 24 * 3_600 * 1_000_000_000;
    let mut lone = Lone::with_members(1);
    let bumped = |number, bump| MemberId { bump, ..id(number, 1) };
    let clock = 100 * DAY;
    lone.node.set_clock(clock);
    for refused in [id(2, clock + DAY + 1), bumped(2, (1 << 20) + 1), id(0, u64::MAX), bumped(0, u32::MAX)] {
        let outputs = lone.told(vec![Member::alive(refused.clone())]);
        let is_taken = outputs.iter().any(|output| matches!(output, Output::NameTaken(_) | Output::Renewed(_)));
        assert_eq!((is_taken, lone.state(2)), (false, None), "{refused:?} {outputs:?}");
        if *refused.name != *name(0) {
            let (generation, bump) = (refused.generation, refused.bump);
            let message = Sourced { source: refused, gossip: Gossip::Digest(1) }.to_bytes();
            let result = lone.node.received(&name(2), &message, lone.now);
            assert_eq!(result, Err(GossipError::Implausible { generation, bump }));
        }
    }
    assert_eq!(*lone.node.own(), id(0, 1));
    lone.told(vec![Member::alive(id(2, clock + DAY)), Member::alive(bumped(3, 1 << 20))]);
    assert_eq!([2, 3].map(|number| lone.state(number)), [Some(State::Alive); 2]);
}

#[test]
fn a_node_takes_at_most_one_identity_a_second_and_one_after_the_last_accusation() {
    let mut lone = Lone::with_members(1);
    let renewals = |outputs: &[Output]| outputs.iter().filter(|output| matches!(output, Output::Renewed(_))).count();
    let mut taken = 0;
    for round in 0..61 {
        let own = lone.node.own().clone();
        let header = Header { src: id(1, 1), src_incarnation: 0, dst: own.clone(), message: Message::TurnUndead };
        let outputs = match round % 3 {
            0 => lone.told(vec![Member::down(own)]),
            1 => lone.told(vec![Member::new(own, u16::MAX, State::Suspect)]),
            _ => lone.heard(Gossip::Swim(Box::new(Swim { header, members: Vec::new() }))),
        };
        taken += renewals(&outputs) + renewals(&lone.pass(Duration::from_millis(50), &[], |_| false));
    }
    assert!((3..=4).contains(&taken), "{taken} in three seconds");
    let accused = lone.node.own().clone();
    let outputs = lone.pass(secs(2.0), &[1], |_| false);
    assert_eq!((renewals(&outputs), lone.node.own() == &accused), (1, false));
}

#[test]
fn made_up_lives_and_deaths_do_not_pile_up() {
    let mut lone = Lone::with_members(1);
    let mut largest = 0;
    for generation in 1..20_000 {
        lone.told(vec![Member::alive(id(2, generation))]);
        lone.told(vec![Member::down(id(2, generation))]);
        largest = largest.max(lone.node.timers());
    }
    assert!(largest <= MAX_TIMERS, "{largest} timers");
    assert_eq!(lone.state(2), Some(State::Down));
    lone.pass(secs(3.0), &[1], |_| false);
    assert_eq!(lone.state(1), Some(State::Alive), "its probes go on");
}

#[test]
fn the_lists_of_a_thousand_members_with_long_names_are_cut() {
    let mut lone = Lone::with_members(1);
    let long = |number: usize| MemberId { name: format!("{number:063}").into(), ..id(number, 1) };
    for first in (2..MAX_MEMBERS + 1).step_by(100) {
        let numbers = first..(first + 100).min(MAX_MEMBERS + 1);
        lone.told(numbers.map(|number| Member::alive(long(number))).collect());
    }
    assert_eq!(lone.node.members().count(), MAX_MEMBERS);
    let asked = [
        (Gossip::Buckets(Box::default()), true),
        (Gossip::Members { mask: u64::MAX, wants_answer: true, members: Vec::new() }, false),
    ];
    for (gossip, asks_back) in asked {
        let (mut listed, mut buckets) = (0, 0);
        for output in lone.heard(gossip) {
            let Output::Send { message, .. } = output else { continue };
            if let Gossip::Members { members, mask, wants_answer } = Sourced::read(&message).unwrap().gossip {
                assert!(message.len() <= MAX_LIST_BYTES + 100, "{} bytes", message.len());
                assert_eq!(wants_answer, asks_back);
                (listed, buckets) = (listed + members.len(), buckets | mask);
            }
        }
        // With this node itself.
        assert_eq!((listed, buckets), (MAX_MEMBERS + 1, u64::MAX));
    }
}

#[test]
fn a_refused_port_is_the_death_of_the_member_that_was_connected_there_only() {
    let mut lone = Lone::with_members(2);
    lone.node.refused(&name(1), id(2, 1).address, lone.now);
    assert_eq!([1, 2].map(|number| lone.state(number)), [Some(State::Alive); 2]);
    lone.node.refused(&name(2), id(2, 1).address, lone.now);
    assert_eq!([1, 2].map(|number| lone.state(number)), [Some(State::Alive), Some(State::Down)]);
}
