//! What a member that lies cannot do: each bound, exceeded.

use std::time::Duration;

use foca::{Header, Member, Message, State};

use super::error::GossipError;
use super::message::{Gossip, Sourced};
use super::sim::{Loss, Sim, id, name};
use super::state::{MAX_LIST_BYTES, MAX_MEMBERS, MAX_TIMERS};
use super::swim::Swim;
use super::tellers::{MAX_STRANGERS, PLACES};
use super::tests::{Lone, secs, seed};
use super::{MemberId, Output};

impl Lone {
    /// The first member lists these.
    fn told(&mut self, members: Vec<Member<MemberId>>) -> Vec<Output> {
        self.heard(Gossip::Members { mask: u64::MAX, wants_answer: false, members })
    }

    fn heard(&mut self, gossip: Gossip) -> Vec<Output> {
        self.heard_of(1, gossip)
    }

    /// A member tells of itself.
    fn joins(&mut self, number: usize) -> Vec<Output> {
        self.heard_of(number, Gossip::Members { mask: 0, wants_answer: false, members: alive(number..number + 1) })
    }

    /// A member says this, no sooner than it may.
    fn heard_of(&mut self, number: usize, gossip: Gossip) -> Vec<Output> {
        self.now += Duration::from_millis(10);
        let message = Sourced { source: id(number, 1), gossip }.to_bytes();
        self.node.received(&name(number), &message, self.now).expect("a valid message");
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
    lone.meet((2..MAX_MEMBERS + 1).map(long));
    std::iter::from_fn(|| lone.node.poll_output()).for_each(drop);
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

fn alive(numbers: std::ops::Range<usize>) -> Vec<Member<MemberId>> {
    numbers.map(|number| Member::alive(id(number, 1))).collect()
}

#[test]
fn the_word_of_one_member_makes_few_strangers_known_until_some_are_heard() {
    let mut lone = Lone::with_members(1);
    let known = |lone: &Lone| lone.node.members().count() - 1;
    lone.told(alive(100..1_000));
    lone.told(alive(1_000..2_000));
    assert_eq!(known(&lone), PLACES);
    // Nobody is told of them: neither by lists nor by rumours.
    let sent = lone.heard(Gossip::Members { mask: u64::MAX, wants_answer: true, members: Vec::new() });
    let sent = sent.into_iter().chain(lone.pass(secs(1.0), &[1], |_| false));
    let mut messages = 0;
    for output in sent {
        let Output::Send { message, .. } = output else { continue };
        let named = match Sourced::read(&message).unwrap().gossip {
            Gossip::Swim(swim) => swim.members,
            Gossip::Members { members, .. } => members,
            _ => Vec::new(),
        };
        messages += 1;
        // What this node finds out itself it tells: that they do not answer.
        let is_told = |member: &Member<MemberId>| member.state() == State::Alive && *member.id().name >= *name(100);
        assert!(!named.iter().any(is_told), "{named:?}");
    }
    assert!(messages > 5, "{messages}");
    for number in (100..2_000).filter(|number| lone.state(*number).is_some()).collect::<Vec<_>>() {
        lone.node.connected(&name(number).into(), (false, false), lone.now);
    }
    lone.told(alive(2_000..3_000));
    assert_eq!(known(&lone), 3 * PLACES, "twice as many after those were heard");
}

/// Others would believe this node, and take the places of the lie from it.
#[test]
fn a_suspicion_of_a_later_life_of_a_dead_member_is_passed_on_to_nobody() {
    let mut lone = Lone::with_members(2);
    lone.told(alive(100..101));
    lone.pass(secs(60.0), &[1, 2], |lone| lone.state(100) == Some(State::Down));
    lone.pass(secs(10.0), &[1, 2], |_| false);
    let lie = Member::new(id(100, 2), 0, State::Suspect);
    let sent = lone.told(vec![lie.clone()]).into_iter().chain(lone.pass(secs(1.0), &[1, 2], |_| false));
    for output in sent {
        let Output::Send { message, .. } = output else { continue };
        if let Gossip::Swim(swim) = Sourced::read(&message).unwrap().gossip {
            assert!(!swim.members.contains(&lie), "{swim:?}");
        }
    }
}

#[test]
fn a_stranger_that_is_dead_takes_a_place_again_with_each_life() {
    let mut lone = Lone::with_members(1);
    lone.told(alive(100..100 + PLACES));
    lone.pass(secs(60.0), &[1], |lone| {
        lone.node.members().all(|(id, state)| *id.name == *name(1) || state == State::Down)
    });
    assert_eq!(lone.state(100), Some(State::Down));
    // The places are held still: these are the same strangers.
    lone.told((100..100 + PLACES).map(|number| Member::alive(id(number, 2))).collect());
    assert_eq!(lone.state(100), Some(State::Alive));
    lone.pass(secs(700.0), &[1], |_| false);
    lone.told(alive(300..300 + PLACES));
    assert_eq!((lone.state(100), lone.state(300)), (Some(State::Down), Some(State::Alive)));
    lone.told((100..100 + PLACES).map(|number| Member::alive(id(number, 3))).collect());
    assert_eq!(lone.state(100), Some(State::Down));
    lone.told((100..100 + PLACES).map(|number| Member::new(id(number, 4), 0, State::Suspect)).collect());
    assert_eq!(lone.state(100), Some(State::Down), "nor by a suspicion");
    // A death of a stranger is no news, nor a suspicion.
    let (dead, suspected) = (Member::down(id(500, 1)), Member::new(id(501, 1), 0, State::Suspect));
    lone.told(vec![dead, suspected]);
    assert_eq!([500, 501].map(|number| lone.state(number)), [None, None]);
}

/// A node whose list is full: of the strangers of forty liars, and of members that were heard, from 5,000 on. Returns
/// the number of the next member, too.
fn full() -> (Lone, usize) {
    let liars = 40;
    let mut lone = Lone::with_members(liars);
    for liar in 1..=liars {
        let members = alive(liar * 100..liar * 100 + 100);
        lone.heard_of(liar, Gossip::Members { mask: u64::MAX, wants_answer: false, members });
    }
    assert_eq!(lone.node.members().count(), liars + MAX_STRANGERS);
    let next = 5_000 + MAX_MEMBERS - MAX_STRANGERS - liars;
    (5_000..next).for_each(|number| _ = lone.joins(number));
    assert_eq!(lone.node.members().count(), MAX_MEMBERS);
    (lone, next)
}

#[test]
fn a_member_that_is_heard_has_room_where_liars_have_filled_the_list() {
    let (mut lone, next) = full();
    let last = next + MAX_STRANGERS - 50;
    let outputs: Vec<_> = (next..last).flat_map(|number| lone.joins(number)).collect();
    assert_eq!(lone.node.members().count(), MAX_MEMBERS);
    assert!((5_000..last).all(|number| lone.state(number) == Some(State::Alive)));
    // The strangers that give way have not died.
    let deaths = outputs.iter().filter(|output| matches!(output, Output::Down { .. })).count();
    assert_eq!(deaths, 0, "of {} messages", last - next);
}

#[test]
fn a_message_makes_room_for_its_sender_once() {
    let (mut lone, next) = full();
    let members = vec![Member::alive(id(next, 1)); 100];
    lone.heard_of(next, Gossip::Members { mask: 0, wants_answer: false, members });
    assert_eq!((lone.node.members().count(), lone.state(next)), (MAX_MEMBERS, Some(State::Alive)));
}

/// A member of ten that makes up others for ten seconds, while an honest one joins through it.
#[test]
fn what_one_member_makes_up_reaches_nobody_else_and_a_newcomer_is_known_as_soon_as_ever() {
    let mut sim = Sim::joined(10, seed(), Loss::Delayed(0.05));
    let up = |sim: &Sim, node: usize| {
        sim.nodes[node].membership.members().filter(|(_, state)| *state != State::Down).count()
    };
    for round in 0..100 {
        let source = sim.nodes[0].membership.own().clone();
        let members = alive(1_000 + round % 20 * 100..1_100 + round % 20 * 100);
        let message = Sourced { source, gossip: Gossip::Members { mask: 0, wants_answer: false, members } }.to_bytes();
        sim.deliver(0, 1, &message);
        if round == 50 {
            let joined = sim.add();
            sim.connect(joined, 0);
        }
        sim.run(secs(0.1));
        // Each of the others may have given its teller a place.
        assert!(up(&sim, 1) <= 21 + PLACES, "{} members", up(&sim, 1));
        assert!((2..10).all(|node| up(&sim, node) <= 10));
    }
    assert!((1..10).all(|node| sim.nodes[node].membership.members().any(|(member, _)| *member.name == *name(10))));
    let took = sim.run_until(secs(60.0), Sim::agrees).expect("one view");
    println!("what was made up is gone after {took:.1?}");
    assert_eq!((sim.false_deaths, sim.renewals()), (0, 0));
}

#[test]
fn a_flood_of_messages_is_not_read() {
    let mut lone = Lone::with_members(2);
    let message = Sourced { source: id(1, 1), gossip: Gossip::Digest(1) }.to_bytes();
    let mut read = 0;
    while lone.node.received(&name(1), &message, lone.now).is_ok() {
        read += 1;
    }
    assert!((200..300).contains(&read), "{read} messages");
    assert_eq!(lone.node.received(&name(1), &message, lone.now), Err(GossipError::TooMany));
    let other = Sourced { source: id(2, 1), gossip: Gossip::Digest(1) }.to_bytes();
    assert_eq!(lone.node.received(&name(2), &other, lone.now), Ok(()), "others are heard");
}
