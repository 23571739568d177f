//! What members of earlier versions of this software say, recorded, to a member of today.
//!
//! A recording is what one of three members received while they joined, told each other of themselves, and lost one:
//! on each line the milliseconds since the start, the member that sent it, and the message.
//! `CALLBOARD_RECORD=NAME cargo test --lib -- --ignored records_what_a_member_receives` writes one of this version; a
//! recording of a version that users had is never made again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use foca::{Message, State};

use super::message::{Gossip, Sourced};
use super::sim::{Loss, Sim, id, name};
use super::{Membership, MembershipProfile, Output};

/// The member that received the messages.
const RECEIVER: usize = 1;
/// The member that dies, and when.
const DEAD: usize = 2;
const DIES_AT: Duration = Duration::from_secs(8);
/// The end of a recording.
const LASTS: Duration = Duration::from_secs(14);

fn file(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(version).join("gossip.txt")
}

#[test]
#[ignore = "writes a recording"]
fn records_what_a_member_receives() {
    let version = std::env::var("CALLBOARD_RECORD").expect("CALLBOARD_RECORD has the name of the recording");
    let mut sim = Sim::new(3, 1, Loss::Delayed(0.0), MembershipProfile::Near);
    let start = sim.now;
    sim.received = Some((RECEIVER, Vec::new()));
    sim.tell_of_themselves("1.0.0");
    (1..3).for_each(|node| sim.connect(node, 0));
    sim.run(DIES_AT / 2);
    sim.report(0, "1.1.0");
    sim.run(DIES_AT / 2);
    sim.kill(DEAD);
    sim.run(LASTS - DIES_AT);
    let mut text = String::new();
    for (at, from, message) in sim.received.expect("it was recorded").1 {
        write!(text, "{} {from} ", (at - start).as_millis()).unwrap();
        message.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    std::fs::create_dir_all(file(&version).parent().unwrap()).unwrap();
    std::fs::write(file(&version), text).unwrap();
}

/// The messages of a recording, with the times of them.
fn recorded(version: &str) -> Vec<(Duration, usize, Bytes)> {
    let text = std::fs::read_to_string(file(version)).expect("a recording");
    let line = |line: &str| {
        let [millis, from, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let message = (0..hex.len()).step_by(2).map(byte).collect();
        (Duration::from_millis(millis.parse().unwrap()), from.parse().unwrap(), message)
    };
    text.lines().map(line).collect()
}

/// A member of today in the place of the one that received a recording, and what it has sent.
struct Replay {
    node: Membership,
    start: Instant,
    now: Instant,
    /// An answer of each member to a probe.
    acks: BTreeMap<String, Sourced>,
    sent: Vec<(String, Gossip)>,
}

impl Replay {
    /// Hears the recording. `has_reports`: whether its members know of reports.
    fn of(version: &str, has_reports: bool, mut heard: impl FnMut(&mut Self, usize, &Gossip)) -> Self {
        let start = Instant::now();
        // The lives of the simulation are numbered from 2 on.
        let own = id(RECEIVER, RECEIVER as u64 + 2);
        let node = Membership::new(own, MembershipProfile::Near, 7, start);
        let answer = |(_, from, message): (Duration, usize, Bytes)| {
            let sourced = Sourced::read(&message).unwrap();
            let is_ack =
                matches!(&sourced.gossip, Gossip::Swim(swim) if matches!(swim.header.message, Message::Ack(_)));
            is_ack.then(|| (name(from), sourced))
        };
        // The first of each: later ones tell of the death.
        let acks = recorded(version).into_iter().rev().filter_map(answer).collect();
        let mut replay = Self { node, start, now: start, acks, sent: Vec::new() };
        let mut known = Vec::new();
        for (at, from, message) in recorded(version) {
            replay.wait_until(start + at);
            if !known.contains(&from) {
                known.push(from);
                replay.node.connected(&name(from).into(), (has_reports, false), replay.now);
            }
            let answered = replay.sent.len();
            let received = replay.node.received(&name(from), &message, replay.now);
            assert_eq!(received, Ok(()), "{at:?}, from {from}");
            replay.take();
            let gossip = Sourced::read(&message).unwrap().gossip;
            if let Gossip::Swim(swim) = &gossip
                && let Message::Ping(number) = swim.header.message
            {
                let acknowledges = |(to, sent): &(String, Gossip)| match sent {
                    Gossip::Swim(swim) => *to == name(from) && swim.header.message == Message::Ack(number),
                    _ => false,
                };
                assert!(replay.sent[answered..].iter().any(acknowledges), "{at:?}: ping {number} of {from}");
            }
            heard(&mut replay, from, &gossip);
        }
        replay.wait_until(start + LASTS);
        replay
    }

    fn wait_until(&mut self, until: Instant) {
        while self.node.next_wakeup() <= until {
            self.now = self.node.next_wakeup().max(self.now);
            self.node.wake(self.now);
            self.take();
        }
        self.now = until;
    }

    fn take(&mut self) {
        while let Some(output) = self.node.poll_output() {
            if let Output::Send { to, message } = output {
                let gossip = Sourced::read(&message).unwrap().gossip;
                self.answer(&to, &gossip);
                self.sent.push((to.to_string(), gossip));
            }
        }
    }

    /// Probes are not those of the recording, so each gets the recorded answer with its own number.
    fn answer(&mut self, to: &str, sent: &Gossip) {
        let Gossip::Swim(probe) = sent else { return };
        let (Message::Ping(number), Some(ack)) = (&probe.header.message, self.acks.get_mut(to)) else { return };
        if to == name(DEAD) && self.now >= self.start + DIES_AT {
            return;
        }
        if let Gossip::Swim(swim) = &mut ack.gossip {
            swim.header.message = Message::Ack(*number);
        }
        self.node.received(to, &ack.to_bytes(), self.now).expect("a valid answer");
    }

    fn state(&self, number: usize) -> Option<State> {
        self.node.members().find(|(id, _)| *id.name == *name(number)).map(|(_, state)| state)
    }

    fn version_of(&self, number: usize) -> Option<&str> {
        let report = self.node.reports().of(&id(number, number as u64 + 2))?;
        Some(&report.version)
    }
}

/// Probes, indirect probes, digests, lists and deaths.
fn is_a_member(version: &str, has_reports: bool) -> Replay {
    let (mut probed, mut sums) = (0, (0, 0));
    let replay = Replay::of(version, has_reports, |replay, _, gossip| match gossip {
        Gossip::Swim(swim) => {
            if matches!(&swim.header.message, Message::PingReq { target, .. } if *target.name == *name(DEAD)) {
                probed += 1;
                let asked = |(to, sent): &(String, Gossip)| match sent {
                    Gossip::Swim(swim) => {
                        *to == name(DEAD) && matches!(swim.header.message, Message::IndirectPing { .. })
                    }
                    _ => false,
                };
                assert!(replay.sent.iter().any(asked), "it asks the dead member");
            }
        }
        Gossip::Digest(_) => {
            let differs = matches!(replay.sent.last(), Some((_, Gossip::Buckets(_))));
            if differs { sums.0 += 1 } else { sums.1 += 1 }
        }
        _ => {}
    });
    assert!(probed > 0, "the recording has an indirect probe");
    assert!(sums.0 > 0 && sums.1 > 0, "lists differ, and then both sides compute the same sums: {sums:?}");
    assert_eq!((replay.state(0), replay.state(DEAD)), (Some(State::Alive), Some(State::Down)));
    replay
}

#[test]
fn a_cluster_from_before_reports_has_a_member_of_today() {
    let replay = is_a_member("before-reports", false);
    let unknown = replay.sent.iter().find(|(_, gossip)| {
        !matches!(gossip, Gossip::Swim(_) | Gossip::Digest(_) | Gossip::Buckets(_) | Gossip::Members { .. })
    });
    assert_eq!(unknown, None, "they would refuse it");
}

#[test]
fn a_cluster_of_the_first_reports_has_a_member_of_today() {
    let replay = is_a_member("first-reports", true);
    assert_eq!((replay.version_of(0), replay.version_of(DEAD)), (Some("1.1.0"), Some("1.0.0")));
}
