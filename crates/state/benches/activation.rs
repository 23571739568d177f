//! What the first question to a key costs beside its store, and the next ones.
//!
//! Run with `cargo bench -p callboard-state --bench activation`. Each first question activates a key: the store is
//! asked for the key's epoch and state, and the instance is made. The store alone is measured in the same rounds, on
//! keys of its own. What is left is the cost of an activation.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_core::actor::Question;
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, StateKey, StateStore, Stored};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Failure};
use callboard_state::RedbStore;
use serde::{Deserialize, Serialize};

const ROUNDS: usize = 5;
const KEYS: usize = 1_000;
const LONG: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Get;

impl Question for Get {
    const NAME: &str = "get";
    type Answer = u64;
}

impl Answers<Get> for Stored<u64> {
    async fn answer(&mut self, Get: Get, _: &KeyContext) -> Result<u64, Failure> {
        Ok(**self)
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let path = std::env::temp_dir().join(format!("callboard-activation-{}.redb", std::process::id()));
    println!("p50, µs          first question    its store alone    difference    next question");
    runtime.block_on(async {
        tokio::spawn(measure("in memory", Arc::new(MemoryStore::new()))).await.unwrap();
        tokio::spawn(measure("redb", Arc::new(RedbStore::open(&path).unwrap()))).await.unwrap();
    });
    let _ = std::fs::remove_file(&path);
}

async fn measure(name: &str, store: Arc<dyn StateStore>) {
    let alone = Arc::clone(&store);
    let spec = KeyedSpec::new("counter", store, |_, count: Stored<u64>| async { Ok(count) });
    let node = App::new().keyed(spec.accepts::<Get>()).start().await.unwrap();
    let keys = node.keyed("counter");
    let mut best = [f64::MAX; 3];
    for round in 0..ROUNDS {
        let mut micros = [const { Vec::new() }; 3];
        for number in 0..KEYS {
            let key = format!("{round}-{number}");
            let begin = Instant::now();
            keys.ask(&key, LONG, Get).await.unwrap();
            let asked = Instant::now();
            alone.claim(StateKey { kind: "alone", key: &key }, "a node").await.unwrap();
            let claimed = Instant::now();
            keys.ask(&key, LONG, Get).await.unwrap();
            let times = [asked - begin, claimed - asked, claimed.elapsed()];
            micros.iter_mut().zip(times).for_each(|(all, time)| all.push(time.as_nanos() as f64 / 1000.0));
        }
        for (best, micros) in best.iter_mut().zip(&mut micros) {
            micros.sort_unstable_by(f64::total_cmp);
            *best = best.min(micros[KEYS / 2]);
        }
    }
    let [first, alone, next] = best;
    println!("{name:<12} {first:>18.1} {alone:>18.1} {:>13.1} {next:>16.2}", first - alone);
}
