//! The promised times and costs of whole clusters, each over several seeds and losses.
//!
//! Small clusters run with the other tests. The sizes of `docs/scale.md` take minutes in a release build:
//! `cargo test --release -p callboard-net --lib -- --ignored --nocapture scale_tests`.

use std::time::Duration;

use super::MembershipProfile;
use super::sim::{Loss, Sim};
use super::tests::{LONGEST, STREAMS, secs};

/// The seeds are fixed: of the time to the first probe of a dead member there is only a probability.
const SEEDS: u64 = 5;

/// A cluster of each seed and each loss.
fn each(mut test: impl FnMut(u64, f64)) {
    for seed in 1..=SEEDS {
        STREAMS.into_iter().for_each(|loss| test(seed, loss));
    }
}

/// Nobody is called dead in this time. Then a death is known to one member within 3.5 s in most cases, and to all half a
/// second later.
fn deaths(nodes: usize, quiet: Duration) {
    let mut late = 0;
    each(|seed, loss| {
        let mut sim = Sim::joined(nodes, seed, Loss::Delayed(loss));
        sim.run(quiet);
        let kilobytes = sim.bytes as f64 / nodes as f64 / quiet.as_secs_f64() / 1e3;
        let (dead, at) = (nodes / 2, sim.now);
        sim.kill(dead);
        sim.run_until(secs(15.0), |sim| sim.learnt(dead, at).is_some());
        let (first, all) = sim.learnt(dead, at).expect("everybody learns of a death");
        println!(
            "{nodes} nodes, seed {seed}, loss {loss}: first {first:.2?}, all {all:.2?}, {kilobytes:.2} kB/s per node"
        );
        assert_eq!((sim.false_deaths, sim.renewals()), (0, 0), "seed {seed}, loss {loss}");
        assert!(first <= LONGEST && all - first <= secs(0.5), "seed {seed}, loss {loss}: {first:?}, {all:?}");
        late += usize::from(first > secs(3.5));
    });
    println!("{nodes} nodes: {late} of {} deaths were known to nobody after 3.5 s", 3 * SEEDS);
    assert!(late <= 1, "{late} of {}", 3 * SEEDS);
}

#[test]
fn most_deaths_among_ten_are_known_within_three_and_a_half_seconds() {
    deaths(10, secs(5.0));
}

#[test]
#[ignore = "minutes: run it in a release build"]
fn most_deaths_among_three_hundred_are_known_within_three_and_a_half_seconds() {
    deaths(300, secs(100.0));
}

#[test]
#[ignore = "many minutes: run it in a release build"]
fn most_deaths_among_a_thousand_are_known_within_three_and_a_half_seconds() {
    deaths(1_000, secs(100.0));
}

/// All know each other within 3 s, bear 5 s without any message, and have one view within 3 s after a partition.
fn joins_and_partitions(nodes: usize) {
    each(|seed, loss| {
        let mut sim = Sim::new(nodes, seed, Loss::Delayed(loss), MembershipProfile::Near);
        (1..nodes).for_each(|node| sim.connect(node, 0));
        let joined = sim.run_until(secs(60.0), Sim::agrees).expect("all know each other");
        sim.run(secs(5.0));
        sim.cut(|_, _| true);
        sim.run(secs(5.0));
        sim.cut(|_, _| false);
        sim.run(secs(10.0));
        let called_dead = (sim.false_deaths, sim.renewals());
        sim.cut(move |a, b| (a < nodes / 2) != (b < nodes / 2));
        sim.run(secs(30.0));
        assert!(!sim.agrees());
        sim.cut(|_, _| false);
        let healed = sim.run_until(secs(60.0), Sim::agrees).expect("one view");
        println!(
            "{nodes} nodes, seed {seed}, loss {loss}: joined {joined:.2?}, {called_dead:?} by silence, healed {healed:.2?}"
        );
        assert_eq!(called_dead, (0, 0), "seed {seed}, loss {loss}");
        assert!(joined <= secs(3.0) && healed <= secs(3.0), "seed {seed}, loss {loss}: {joined:?}, {healed:?}");
    });
}

#[test]
fn ten_nodes_join_bear_silence_and_agree_after_a_partition() {
    joins_and_partitions(10);
}

#[test]
#[ignore = "minutes: run it in a release build"]
fn three_hundred_nodes_join_bear_silence_and_agree_after_a_partition() {
    joins_and_partitions(300);
}

/// Each node has a report, and ten of these change in each second.
fn costs_of_changes(nodes: usize, most: f64) {
    each(|seed, loss| {
        let (mut sim, lasting) = (Sim::reporting(nodes, seed, Loss::Delayed(loss)), 10);
        for change in 0..lasting * 10 {
            sim.report(change * 7 % nodes, &format!("1.{change}"));
            sim.run(secs(0.1));
        }
        let kilobytes = sim.bytes as f64 / nodes as f64 / lasting as f64 / 1e3;
        println!("{nodes} nodes, seed {seed}, loss {loss}: {kilobytes:.2} kB/s with ten changes a second");
        assert!(kilobytes <= most, "seed {seed}, loss {loss}: {kilobytes} kB/s");
        assert_eq!((sim.false_deaths, sim.renewals()), (0, 0), "seed {seed}, loss {loss}");
    });
}

#[test]
fn ten_changes_a_second_among_ten_cost_at_most_seventeen_kilobytes_a_second() {
    costs_of_changes(10, 17.0);
}

#[test]
#[ignore = "minutes: run it in a release build"]
fn ten_changes_a_second_among_three_hundred_cost_at_most_fifteen_kilobytes_a_second() {
    costs_of_changes(300, 15.0);
}

/// How the times of two hundred deaths spread.
#[test]
#[ignore = "minutes: run it in a release build"]
fn nineteen_of_twenty_deaths_are_known_to_somebody_within_three_seconds() {
    for nodes in [10, 30, 100] {
        for loss in STREAMS {
            let mut times = Vec::new();
            for seed in 0..40 {
                let mut sim = Sim::joined(nodes, seed, Loss::Delayed(loss));
                sim.run(Duration::from_millis(seed * 37));
                for dead in [1, 2, 4, 7, 9] {
                    let at = sim.now;
                    sim.kill(dead);
                    sim.run_until(secs(30.0), |sim| sim.learnt(dead, at).is_some());
                    times.push(sim.learnt(dead, at).expect("everybody learns of a death").0);
                    sim.run(secs(3.0));
                }
                assert_eq!((sim.false_deaths, sim.renewals()), (0, 0), "seed {seed}, loss {loss}");
            }
            times.sort();
            let (half, most, late) = (times[100], times[190], times.iter().filter(|time| **time > secs(3.5)).count());
            println!("{nodes} nodes, loss {loss}: half {half:.2?}, 95 % {most:.2?}, {late} of 200 after 3.5 s");
            assert!(half <= secs(2.3) && most <= secs(3.0) && late <= 3, "{half:?}, {most:?}");
        }
    }
}
