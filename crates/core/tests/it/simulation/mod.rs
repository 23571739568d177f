//! A whole node under a seeded script, on virtual time: the invariants after every run.
//!
//! A seed becomes a [`Script`](script::Script): stages with random knobs and contracts, their routes, calls that arrive
//! in trickles and bursts, callers that leave, user code that fails, panics or hangs, replicas that cannot be built,
//! scaling, new revisions, routes that are removed and added again, and an ending. The [`world`] runs it against a real
//! node on a runtime of one thread, whose clock moves only while all tasks wait. User code records its observations in
//! a [`Journal`](journal::Journal). The [`invariants`] read it.
//!
//! `CALLBOARD_SEED=17 cargo test -p callboard-core simulation` runs one script again and prints its events;
//! `CALLBOARD_SEEDS=5000` runs this number instead of 200 (`just simulate 5000`).

mod invariants;
mod journal;
mod order;
mod script;
mod stages;
mod totals;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::support::hide_panics;
use script::Script;
use totals::Totals;

/// The count of seeds in an ordinary test run.
const SEEDS: u64 = 200;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[test]
fn every_promise_holds_for_every_script() {
    hide_panics();
    if let Some(seed) = setting("CALLBOARD_SEED") {
        let script = Script::of_seed(seed);
        println!("{script:#?}");
        let run = world::play(&script);
        println!("{}", run.journal);
        return report(vec![(seed, run.violations)]);
    }
    let seeds = setting("CALLBOARD_SEEDS").unwrap_or(SEEDS);
    let (next, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let totals = Mutex::new(Totals::default());
    let players = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..players {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let run = world::play(&Script::of_seed(seed));
                    totals.lock().unwrap().add(&run.totals);
                    if !run.violations.is_empty() {
                        failures.lock().unwrap().push((seed, run.violations));
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{seeds} seeds: {totals:?}");
    report(failures.into_inner().unwrap());
    if seeds >= SEEDS {
        assert_eq!(totals.missing_events(), Vec::<&str>::new(), "the scripts miss some events");
    }
}

fn report(mut failures: Vec<(u64, Vec<String>)>) {
    failures.retain(|(_, violations)| !violations.is_empty());
    failures.sort();
    let texts: Vec<String> = failures
        .iter()
        .take(5)
        .map(|(seed, violations)| {
            let first = violations.iter().take(6).map(|violation| format!("\n    {violation}")).collect::<String>();
            let more = violations.len().saturating_sub(6);
            format!(
                "seed {seed}: {} violations{first}{}\n  again: CALLBOARD_SEED={seed} cargo test -p callboard-core --test it simulation -- --nocapture",
                violations.len(),
                if more > 0 { format!("\n    and {more} more") } else { String::new() },
            )
        })
        .collect();
    assert!(texts.is_empty(), "{} seeds broke a promise\n{}", failures.len(), texts.join("\n"));
}
