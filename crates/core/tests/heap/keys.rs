//! The memory of active keys.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::actor::Question;
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, StateKey, StateStore, Stored};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Failure};
use serde::{Deserialize, Serialize};

use crate::{block_on, heap};

const KEYS: usize = 10_000;

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

/// Each has its task, its mailbox and its place among the shards.
#[test]
fn an_active_key_takes_at_most_two_kibibytes_beside_its_state() {
    let _turn = heap::turn();
    block_on(measure_active_keys());
}

async fn measure_active_keys() {
    let names: Vec<String> = (0..KEYS).map(|number| format!("user-{number}")).collect();
    let (alone, before) = (MemoryStore::new(), heap::live());
    for name in &names {
        alone.claim(StateKey { kind: "counter", key: name }, "node").await.unwrap();
    }
    let stored = (heap::live() - before) / KEYS;
    drop(alone);

    let spec = KeyedSpec::new("counter", Arc::new(MemoryStore::new()), |_, count: Stored<u64>| async { Ok(count) });
    let node = App::new().keyed(spec.accepts::<Get>()).start().await.unwrap();
    let keys = node.keyed("counter");
    keys.ask("the first", Duration::from_secs(30), Get).await.unwrap();
    let before = heap::live();
    for name in &names {
        keys.ask(name, Duration::from_secs(30), Get).await.unwrap();
    }
    let each = (heap::live() - before) / KEYS - stored;
    println!("{each} bytes per active key, and {stored} in a store in memory");
    assert!(each <= 2_048, "{each} bytes per active key");
}
