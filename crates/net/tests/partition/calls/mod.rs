//! Calls between nodes whose lines are in trouble: cut without a word, flapping, one way only, lossy and narrow.
//!
//! A ledger has the outcome of each call and each execution of it. Whatever happens: each call has one outcome, no call
//! that may run again fails, and no other one runs twice. Times are printed, and checked with `CALLBOARD_PROMISES=full`
//! on a machine that does nothing else. The tests are skipped with one line unless `CALLBOARD_REQUIRE` names
//! `namespaces`.

mod lab;
mod load;

use std::time::{Duration, Instant};

use self::lab::Lab;
use self::load::Load;

/// A call that is done later than this counts as late: work takes 5 ms.
const IN_TIME: Duration = Duration::from_millis(250);

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Prints a time beside the one that is asked for, and checks it where times are checked.
fn hold(what: &str, got: Duration, most: Duration) {
    judge(what, &format!("at most {most:.1?}"), &format!("{got:.2?}"), got <= most);
}

fn judge(what: &str, asked: &str, got: &str, holds: bool) {
    println!("figures: {what}: asked {asked}, got {got}");
    let is_full = std::env::var("CALLBOARD_PROMISES").is_ok_and(|form| form == "full");
    assert!(holds || !is_full, "{what}: {got}");
}

/// Nothing tells the others that the first worker is away: neither it, nor the network.
#[test]
fn a_node_that_dies_without_a_word_costs_no_call_that_may_run_again() {
    let Some(lab) = Lab::start("silent-death", 2, 2) else { return };
    let load = Load::begin(&lab);
    load.wait_for(seconds(2));
    let died = load.now();
    lab.cut(1);
    lab.others(1).for_each(|node| node.wait_for_members(2));
    println!("all others call it down after {:.1?}", load.now() - died);
    load.wait_for(seconds(6).saturating_sub(load.now() - died));
    assert_eq!(lab.deaths(), [0, 1, 1, 1], "nobody accuses another one");
    lab.heal();
    let calls = load.end(&lab, "silent death");
    hold("silent death: slowest call", calls.slowest(), Duration::from_millis(1_500));
    println!("goodput before: {:.1} %", calls.goodput(Duration::ZERO, died, IN_TIME) * 100.0);
    let again = calls.goodput(died + seconds(2), died + seconds(4), IN_TIME) * 100.0;
    judge("silent death: goodput from 2 s on", "at least 95 %", &format!("{again:.1} %"), again >= 95.0);
}

/// Each pause is too short for a lost link, unless packets are lost beside it.
#[test]
fn a_line_that_comes_and_goes_each_second_fails_no_call_that_may_run_again() {
    let Some(lab) = Lab::start("flapping", 2, 2) else { return };
    let load = Load::begin(&lab);
    load.wait_for(seconds(1));
    for _ in 0..10 {
        lab.cut(1);
        load.wait_for(seconds(1));
        lab.mend();
        load.wait_for(seconds(1));
    }
    println!("flapping: called down {:?} times", lab.deaths());
    let mended = Instant::now();
    lab.wait_for_one_view();
    hold("flapping: one view after the last cut", mended.elapsed(), seconds(3));
    let calls = load.end(&lab, "flapping");
    hold("flapping: slowest call that may run again", calls.slowest(), Duration::from_millis(1_500));
}

/// The gateway hears nothing from a worker that hears it: it runs what it is asked for, and its answers are lost.
#[test]
fn a_worker_whose_answers_are_lost_runs_no_call_twice_that_may_run_once() {
    let Some(lab) = Lab::start("no-answers", 2, 2) else { return };
    let load = Load::begin(&lab);
    load.wait_for(seconds(1));
    lab.network.drop_from([1], 3);
    load.wait_for(seconds(8));
    assert_eq!(lab.deaths(), [0; 4], "the others speak for it");
    lab.heal();
    let calls = load.end(&lab, "answers lost");
    hold("answers lost: slowest call that may run again", calls.slowest(), Duration::from_millis(1_500));
}

/// The worker hears nothing from a gateway that hears it: its packets say that it is alive.
#[test]
fn a_worker_that_does_not_hear_its_caller_costs_no_call_that_may_run_again() {
    let Some(lab) = Lab::start("no-calls", 2, 2) else { return };
    let load = Load::begin(&lab);
    load.wait_for(seconds(1));
    lab.network.drop_from([3], 1);
    load.wait_for(seconds(8));
    assert_eq!(lab.deaths(), [0; 4], "the others speak for it");
    lab.heal();
    let calls = load.end(&lab, "calls lost");
    hold("calls lost: slowest call that may run again", calls.slowest(), Duration::from_millis(1_500));
}

/// A line carries a few times as much as its calls, so that bursts wait and what is sent again has room.
#[test]
fn five_nodes_lose_no_outcome_on_lossy_narrow_lines() {
    let Some(lab) = Lab::start("lossy", 3, 2) else { return };
    let load = Load::begin(&lab);
    load.wait_for(seconds(1));
    for number in lab.numbers() {
        lab.network.lose(20, number);
        lab.network.throttle(2_000, number);
    }
    load.wait_for(seconds(15));
    assert_eq!(lab.deaths(), [0; 5]);
    lab.numbers().for_each(|number| lab.network.throttle_nothing(number));
    lab.heal();
    let calls = load.end(&lab, "20 % lost at 2 Mbit/s");
    hold("20 % lost at 2 Mbit/s: slowest call that may run again", calls.slowest(), seconds(3));
}
