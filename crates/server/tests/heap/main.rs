//! Changed requests to every door of one node, in process: each stays within what it is charged, and gives all of it
//! back. A binary of its own, because its allocator counts for the whole process.
//!
//! `CALLBOARD_RUNS` sets the number of requests, `CALLBOARD_SEED` repeats a run.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on says so by panicking")]

#[path = "../doors/door.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod door;
#[path = "../../../codec/tests/common/heap.rs"]
mod heap;
#[path = "../doors/models.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod models;
#[path = "../../../codec/tests/common/mutate.rs"]
mod mutate;
mod node;
mod request;
#[path = "../doors/send.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod send;

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use callboard_core::testing::env_number;

use self::mutate::Random;
use self::node::Tested;
use self::request::{Changed, seeds};

/// The number of requests of an ordinary test run.
const SHORT_RUN: u64 = 4000;

#[test]
fn every_door_accepts_its_seeds() {
    let _turn = heap::turn();
    let tested = Tested::start();
    for seed in seeds() {
        let measured = tested.send(&seed);
        assert_eq!((measured.status, measured.problem()), (200, None), "{seed:?}: {measured:?}");
    }
}

#[test]
fn every_changed_request_stays_within_its_charge_and_gives_it_back() {
    let _turn = heap::turn();
    let seed = env_number("CALLBOARD_SEED", UNIX_EPOCH.elapsed().map_or(1, |age| age.as_secs()));
    let runs = env_number("CALLBOARD_RUNS", SHORT_RUN);
    println!("CALLBOARD_SEED={seed} CALLBOARD_RUNS={runs}");
    let (tested, seeds, mut random) = (Tested::start(), seeds(), Random::new(seed));
    let (mut statuses, mut nearest) = (BTreeMap::new(), 0_f64);
    for number in 0..runs {
        let request = Changed::of(&seeds, &mut random);
        let measured = tested.send(&request);
        if let Some(problem) = measured.problem() {
            panic!("input {number} of CALLBOARD_SEED={seed}: {problem}\n{request:?}\n{measured:?}");
        }
        *statuses.entry(measured.status).or_insert(0_u64) += 1;
        nearest = nearest.max(measured.share());
    }
    println!("by status {statuses:?}; {nearest:.2} of the allowed heap at most");
}
