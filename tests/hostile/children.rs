//! Items that end, hang or fill a child, and children that attack their node.
//!
//! The honest caller calls the same stage: what a caller does to one replica is that caller's, under every contract.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;

const JSON: &str = "application/json";

/// The routes of `children.toml`, one for each contract.
const CONTRACTS: [&str; 3] = ["/at_most_once", "/idempotent", "/pure"];

/// An item that tells a child what to do.
fn item(path: &str, text: &str) -> Request {
    Request::post(path, JSON, format!("\"{text}\""))
}

/// One caller sends this item, one request at a time, under each contract, beside an honest caller of the same stage.
fn under_each_contract(names: [&'static str; 3], text: &str, duration: Duration) {
    for (name, path) in names.into_iter().zip(CONTRACTS) {
        let attack = Attack::new(name).on_children().honest_at(item(path, "honest")).lasting(duration);
        attack.run(|target| target.repeat(&item(path, text), 1));
    }
}

#[test]
fn an_item_that_ends_its_child() {
    let names =
        ["child: at most once, ended by items", "child: idempotent, ended by items", "child: pure, ended by items"];
    under_each_contract(names, "exit", Duration::from_secs(3));
}

/// A batch that waits in a child behind a hung one returns to the queue when the child is killed, and waits behind no
/// other one.
#[test]
fn an_item_that_outlasts_the_timeout_of_its_stage() {
    let names =
        ["child: at most once, hung by items", "child: idempotent, hung by items", "child: pure, hung by items"];
    // More than five times the timeout: as many ends as a loop of crashes has.
    under_each_contract(names, "hang", Duration::from_secs(8));
}

#[test]
fn an_item_that_fills_the_memory_of_its_child() {
    let attack = Attack::new("child: filled by items").on_children().honest_at(item("/pure", "honest"));
    attack.lasting(Duration::from_secs(3)).run(|target| target.repeat(&item("/pure", "hoard"), 1));
}

#[test]
fn children_that_leave_a_daemon_with_their_output() {
    let attack = Attack::new("child: leaves a daemon with its output").on_children();
    attack.lasting(Duration::from_secs(2)).run(|target| target.repeat(&item("/at_most_once", "leave a daemon"), 1));
}

#[test]
fn children_that_hand_over_sparse_memory() {
    let attack = Attack::new("child: 240 TiB of sparse memory").on_children();
    attack.run(|target| target.repeat(&item("/at_most_once", "sparse memory"), 2));
}

#[test]
fn heads_that_decode_into_millions_of_values() {
    let attack = Attack::new("child: heads of 4 million values").on_children();
    attack.run(|target| target.repeat(&item("/at_most_once", "heads of values"), 2));
}

#[test]
fn errors_with_millions_of_details() {
    let attack = Attack::new("child: errors with a million details").on_children();
    attack.run(|target| target.repeat(&item("/at_most_once", "details"), 2));
}

#[test]
fn records_that_are_long_in_every_field() {
    let attack = Attack::new("child: records of 3 MiB").on_children();
    attack.run(|target| target.repeat(&item("/at_most_once", "long records"), 2));
}

#[test]
fn floods_of_records_and_lines() {
    for (name, text) in
        [("child: a flood of records", "flood of records"), ("child: a flood of lines", "flood of lines")]
    {
        let attack = Attack::new(name).on_children();
        attack.run(|target| target.repeat(&item("/at_most_once", text), 2));
    }
}

#[test]
fn messages_that_forge_lines_of_the_log() {
    let attack = Attack::new("child: messages that forge lines").on_children();
    attack.run(|target| target.repeat(&item("/at_most_once", "forged line"), 1));
}
