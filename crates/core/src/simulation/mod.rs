//! All decisions together, without actors: a discrete-event model of one stage and its gateway, on virtual time.
//!
//! All decisions are the real code: [`Ledger`](crate::gateway::Ledger), [`SessionQueues`](crate::queue::SessionQueues),
//! [`BatchPolicy`](crate::queue::BatchPolicy), the deadline check of a call and its cost model, restart window,
//! back-off, the share of culprits, the retry budget, the stage's states. The [`world`] only replaces the actors: it
//! passes events to the decisions and carries them out. It has no runtime, no clock and no unordered map, so the same
//! seed gives the same trace to the bit. The [`script`] makes events from a seed; the [`invariants`] are checked after
//! each of them.
//!
//! `CALLBOARD_SEED=17 cargo test -p callboard-core simulation -- --nocapture` prints the trace of a seed.

mod invariants;
mod script;
mod trace;
mod world;

use script::Script;
use world::ModelWorld;

/// The count of seeds in an ordinary test run.
const SEEDS: u64 = 200;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn again(seed: u64) -> String {
    format!("again: CALLBOARD_SEED={seed} cargo test -p callboard-core --lib simulation -- --nocapture")
}

#[test]
fn the_decisions_keep_every_promise_together() {
    let only = setting("CALLBOARD_SEED");
    let seeds = only.map_or_else(|| 0..setting("CALLBOARD_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut sum = world::Counts::default();
    for seed in seeds.clone() {
        let world = ModelWorld::new(Script::from_seed(seed)).play();
        if only.is_some() {
            println!("{}", world.trace);
        }
        assert!(world.violations.is_empty(), "seed {seed}: {:#?}\n{}", world.violations, again(seed));
        sum.add(&world.counts);
    }
    println!("{} seeds: {sum:?}", seeds.end - seeds.start);
    assert!(only.is_some() || seeds.end < SEEDS || sum.has_everything(), "the scripts miss some events: {sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_bit() {
    let seeds = setting("CALLBOARD_SEED").map_or(0..50, |seed| seed..seed + 1);
    let mut hashes = std::collections::BTreeSet::new();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let hash = || ModelWorld::new(Script::from_seed(seed)).play().trace.hash();
        let first = hash();
        println!("seed {seed}: trace {first:016x}");
        assert_eq!(first, hash(), "{}", again(seed));
        hashes.insert(first);
    }
    assert_eq!(hashes.len() as u64, count, "each seed has its own trace");
}
