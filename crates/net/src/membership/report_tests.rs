//! Reports in whole clusters, and what a member that lies about them cannot do.

use std::time::Duration;

use bytes::Bytes;
use callboard_core::remote::{NodePhase, NodeReport};
use foca::State;

use super::Output;
use super::message::{Gossip, Sourced};
use super::reports::Version;
use super::sim::{Loss, Sim, id, name, report};
use super::tests::{Lone, secs, seed};

/// The report of each node is known to all, and so is each change.
fn changes(count: usize) {
    let mut sim = Sim::reporting(count, seed(), Loss::Delayed(0.0));
    let all = |sim: &Sim| (0..count).all(|node| sim.know(node, "1.0.0"));
    assert!(all(&sim), "five seconds after the start of {count}");
    sim.bytes = 0;
    sim.run(secs(4.0));
    let per_second = |sim: &Sim, seconds: f64| sim.bytes as f64 / count as f64 / seconds / 1e3;
    println!("{count} nodes: {:.2} kB/s per node while nothing changes", per_second(&sim, 4.0));
    assert!(per_second(&sim, 4.0) <= 2.0);
    for (loss, name) in [(0.0, "0"), (0.2, "20")] {
        sim.loss = Loss::Delayed(loss);
        let mut times = Vec::new();
        for change in 0..3 {
            let (node, version) = (count / 3 * change, format!("{name}.{change}"));
            sim.report(node, &version);
            let took = sim.run_until(secs(10.0), |sim| sim.know(node, &version));
            times.push(took.expect("all know of the change"));
        }
        println!("{count} nodes, loss of {name} %: a change is known after {times:.1?}");
        assert!(times.iter().all(|took| *took <= secs(2.0)), "{times:?}");
    }
    sim.loss = Loss::Delayed(0.0);
    sim.bytes = 0;
    for change in 0..20 {
        sim.report(change * 7 % count, &format!("busy.{change}"));
        sim.run(secs(0.1));
    }
    println!("{count} nodes: {:.2} kB/s per node with 10 changes a second", per_second(&sim, 2.0));
    assert_eq!((sim.false_deaths, sim.renewals()), (0, 0));
}

#[test]
fn a_change_is_known_to_thirty_nodes_within_two_seconds() {
    changes(30);
}

#[test]
#[ignore = "a minute: run it in a release build"]
fn a_change_is_known_to_three_hundred_nodes_within_two_seconds() {
    changes(300);
}

#[test]
fn a_node_announces_one_change_a_second_and_the_last_one_counts() {
    let mut sim = Sim::reporting(5, seed(), Loss::Delayed(0.0));
    sim.bytes = 0;
    sim.run(secs(5.0));
    let quiet = sim.bytes;
    for change in 0..100 {
        sim.report(1, &format!("2.{change}"));
        sim.run(secs(0.05));
    }
    sim.run_until(secs(2.0), |sim| sim.know(1, "2.99")).expect("the last change");
    // Five or six changes, each with an answer to each of the others, and three rounds of rumours by each node.
    assert!(sim.bytes < 2 * quiet + 6 * 4 * 1_000 + 6 * 5 * 12 * 200, "{} bytes, {quiet} before", sim.bytes);
}

#[test]
fn a_new_generation_of_a_member_has_a_new_report_and_a_dead_one_keeps_its_last() {
    let mut sim = Sim::reporting(5, seed(), Loss::Delayed(0.05));
    sim.report(2, "2.0.0");
    sim.run_until(secs(5.0), |sim| sim.know(2, "2.0.0")).expect("all know");
    sim.kill(2);
    sim.run(secs(10.0));
    assert!(sim.know(2, "2.0.0"));
    sim.restart(2);
    sim.report(2, "3.0.0");
    sim.connect(2, 0);
    sim.run_until(secs(5.0), |sim| sim.agrees() && sim.know(2, "3.0.0")).expect("all know of the new generation");
}

/// A report whose stages have this many ready replicas, in this phase.
fn counts(ready: u32, phase: NodePhase) -> NodeReport {
    let mut report = report("1");
    report.phase = phase;
    report.stages.iter_mut().for_each(|stage| stage.ready = ready);
    report
}

#[test]
fn numbers_of_replicas_that_change_all_the_time_are_announced_less_and_less_often() {
    let mut lone = Lone::with_members(1);
    lone.has_report(1, 1);
    let mut announced = Vec::new();
    for tick in 0..600_u32 {
        lone.node.set_report(counts(tick % 2, NodePhase::Ready), lone.now);
        let sent = lone.sent_within(secs(0.1), &[1]);
        announced.extend(sent.into_iter().filter_map(|(_, gossip)| match gossip {
            Gossip::Versions { versions, .. } => versions.iter().find(|told| *told.name == *name(0)).map(|v| v.version),
            _ => None,
        }));
    }
    let last = announced.into_iter().max().expect("some");
    // After 1, 2, 4, 8 and then each 15 seconds.
    assert!((6..=9).contains(&last), "{last} versions in a minute");
    // Other changes do not wait that long.
    let start = lone.now;
    lone.node.set_report(counts(7, NodePhase::NotReady), lone.now);
    let mut sent = Vec::new();
    let tells = |gossip: &Gossip| match gossip {
        Gossip::Versions { versions, .. } => versions.iter().any(|told| told.version == last + 1),
        _ => false,
    };
    while !sent.iter().any(|(_, gossip)| tells(gossip)) {
        assert!(lone.now < start + secs(1.2), "the phase is announced within a second");
        sent = lone.sent_within(secs(0.1), &[1]);
    }
}

#[test]
fn a_drain_is_announced_at_once_and_is_known_when_all_were_answered() {
    let mut lone = Lone::with_members(2);
    (1..=2).for_each(|member| lone.has_report(member, 1));
    lone.node.set_report(counts(1, NodePhase::Ready), lone.now);
    lone.sent_within(secs(0.2), &[1, 2]);
    lone.node.set_report(counts(1, NodePhase::Draining), lone.now);
    assert!(!lone.node.is_report_known());
    lone.sent_within(secs(0.2), &[1, 2]);
    for member in [1, 2] {
        assert!(!lone.node.is_report_known());
        let answers = lone.said(member, Gossip::Ask(0));
        assert!(matches!(&answers[..], [(_, Gossip::Report { version: 2, .. })]), "{answers:?}");
    }
    assert!(lone.node.is_report_known());
}

impl Lone {
    /// A message of a member arrives.
    fn said(&mut self, number: usize, gossip: Gossip) -> Vec<(String, Gossip)> {
        let message = Sourced { source: id(number, 1), gossip }.to_bytes();
        self.node.received(&name(number), &message, self.now).expect("a valid message");
        self.sent()
    }

    /// The messages about reports that it sends now.
    fn sent(&mut self) -> Vec<(String, Gossip)> {
        let outputs: Vec<_> = std::iter::from_fn(|| self.node.poll_output()).collect();
        of_reports(outputs)
    }

    /// The same while time passes.
    fn sent_within(&mut self, lasting: Duration, speaking: &[usize]) -> Vec<(String, Gossip)> {
        of_reports(self.pass(lasting, speaking, |_| false))
    }

    fn report_of(&self, number: usize) -> Option<&NodeReport> {
        self.node.reports().of(&id(number, 1)).map(AsRef::as_ref)
    }

    /// A member connects, and has its own report in this version.
    fn has_report(&mut self, number: usize, version: u64) {
        self.node.connected(&name(number).into(), (true, false), self.now);
        let asked = self.said(number, versions(number, version));
        assert!(asked.contains(&(name(number), Gossip::Ask(0))), "{asked:?}");
        self.said(number, answer(version));
        assert!(self.report_of(number).is_some());
    }
}

fn of_reports(outputs: Vec<Output>) -> Vec<(String, Gossip)> {
    let messages = outputs.into_iter().filter_map(|output| match output {
        Output::Send { to, message } => Some((to.to_string(), Sourced::read(&message).unwrap().gossip)),
        _ => None,
    });
    let is_of_reports = |gossip: &Gossip| {
        !matches!(gossip, Gossip::Swim(_) | Gossip::Digest(_) | Gossip::Buckets(_) | Gossip::Members { .. })
    };
    messages.filter(|(_, gossip)| is_of_reports(gossip)).collect()
}

fn version(number: usize, version: u64) -> Version {
    Version { name: name(number).into(), generation: 1, version }
}

fn versions(number: usize, told: u64) -> Gossip {
    Gossip::Versions { mask: 0, wants_answer: false, versions: vec![version(number, told)] }
}

fn answer(version: u64) -> Gossip {
    Gossip::Report { version, bytes: super::report_codec::cut(report(&version.to_string())).1 }
}

/// Some rumours do not arrive: the exchange tells of the rest.
#[test]
fn an_exchange_tells_of_the_versions_that_a_member_lacks() {
    let mut lone = Lone::with_members(3);
    lone.has_report(1, 7);
    lone.sent_within(secs(1.0), &[1, 2, 3]);
    // Member 2 has none; member 3 has a newer one.
    let told = lone.said(2, Gossip::ReportBuckets(Box::default()));
    let [(to, Gossip::Versions { mask, wants_answer: true, versions: told })] = &*told else { panic!("{told:?}") };
    assert_eq!((to, &**told, mask.count_ones()), (&name(2), &[version(1, 7)][..], 1));
    let listed = Gossip::Versions { mask: *mask, wants_answer: true, versions: vec![version(1, 8)] };
    let told = lone.said(3, listed);
    let expected = [
        (name(1), Gossip::Ask(7)),
        (name(3), Gossip::Versions { mask: *mask, wants_answer: false, versions: vec![version(1, 7)] }),
    ];
    assert_eq!(told, expected);
}

#[test]
fn an_earlier_version_of_the_software_hears_nothing_of_reports() {
    let mut lone = Lone::with_members(2);
    lone.node.connected(&name(1).into(), (false, false), lone.now);
    lone.has_report(2, 1);
    lone.node.set_report(report("new"), lone.now);
    let sent = lone.sent_within(secs(10.0), &[1, 2]);
    assert!(sent.iter().any(|(to, _)| *to == name(2)) && sent.iter().all(|(to, _)| *to != name(1)), "{sent:?}");
}

#[test]
fn versions_that_a_member_makes_up_cost_a_question_a_second_and_go_no_further() {
    let mut lone = Lone::with_members(3);
    (1..=3).for_each(|member| lone.has_report(member, 1));
    lone.sent_within(secs(2.0), &[1, 2, 3]);
    let mut sent = Vec::new();
    for round in 0..200_u64 {
        sent.extend(lone.said(1, versions(2, 1 << 60 | round)));
        // Neither an unknown generation nor this node's own report can be made up.
        for made_up in [Version { generation: 9, ..version(3, 50) }, version(0, 50), version(700, 50)] {
            sent.extend(lone.said(1, Gossip::Versions { mask: 0, wants_answer: false, versions: vec![made_up] }));
        }
        sent.extend(lone.sent_within(secs(0.05), &[1, 2, 3]));
    }
    let questions = sent.iter().filter(|(_, gossip)| matches!(gossip, Gossip::Ask(_)));
    let questions: Vec<_> = questions.map(|(to, _)| to.clone()).collect();
    assert!((8..=11).contains(&questions.len()), "{} in ten seconds", questions.len());
    assert!(questions.iter().all(|to| *to == name(2)), "{questions:?}");
    for (_, gossip) in &sent {
        let Gossip::Versions { versions, .. } = gossip else { continue };
        assert!(versions.iter().all(|told| told.version <= 1), "{versions:?}");
    }
    // The owner's answer ends it.
    assert_eq!(lone.said(2, versions(2, 1)), []);
    assert!(lone.sent_within(secs(3.0), &[1, 2, 3]).iter().all(|(_, gossip)| !matches!(gossip, Gossip::Ask(_))));
}

#[test]
fn a_report_counts_once_a_second_and_only_if_it_was_asked_for() {
    let mut lone = Lone::with_members(2);
    lone.node.connected(&name(1).into(), (true, true), lone.now);
    lone.said(1, answer(1));
    assert_eq!(lone.report_of(1), None, "nobody has asked");
    let (mut taken, mut last) = (0, None);
    for version in 2..102 {
        lone.said(1, versions(1, version));
        lone.said(1, answer(version));
        let now = lone.report_of(1).cloned();
        taken += usize::from(now != last);
        last = now;
        lone.sent_within(secs(0.05), &[1, 2]);
    }
    assert!((4..=6).contains(&taken), "{taken} in five seconds");
    assert_eq!(lone.state(1), Some(State::Alive));
}

#[test]
fn an_invalid_report_is_refused_and_not_asked_for_again() {
    let mut lone = Lone::with_members(1);
    lone.node.connected(&name(1).into(), (true, true), lone.now);
    lone.said(1, versions(1, 5));
    let gossip = Gossip::Report { version: 5, bytes: Bytes::from_static(b"nonsense") };
    let message = Sourced { source: id(1, 1), gossip }.to_bytes();
    let error = lone.node.received(&name(1), &message, lone.now).unwrap_err().to_string();
    assert!(error.starts_with("the report of a member is invalid: "), "{error}");
    assert_eq!(lone.report_of(1), None);
    let sent = lone.sent_within(secs(5.0), &[1]);
    assert!(sent.iter().all(|(_, gossip)| !matches!(gossip, Gossip::Ask(_))), "{sent:?}");
}

#[test]
fn a_member_that_asks_without_end_gets_four_answers_a_second() {
    let mut lone = Lone::with_members(1);
    lone.node.connected(&name(1).into(), (true, true), lone.now);
    lone.node.set_report(report("own"), lone.now);
    lone.sent_within(secs(1.0), &[1]);
    let mut answers = 0;
    for _ in 0..100 {
        let sent = lone.said(1, Gossip::Ask(0));
        answers += sent.iter().filter(|(_, gossip)| matches!(gossip, Gossip::Report { version: 1, .. })).count();
        lone.sent_within(secs(0.05), &[1]);
    }
    assert!((10..=21).contains(&answers), "{answers} in five seconds");
    // Nobody who has it gets it again.
    lone.sent_within(secs(1.0), &[1]);
    assert_eq!(lone.said(1, Gossip::Ask(1)), [(name(1), versions(0, 1))]);
}
