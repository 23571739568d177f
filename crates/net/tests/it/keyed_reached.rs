//! How soon the keys of a killed node are reachable again. `KEYED_KEYS` sets their number (default 1,000).

#![allow(clippy::print_stdout, reason = "figures are part of the output")]

use std::time::{Duration, Instant};

use callboard_core::actor::AskError;
use callboard_core::keyed::{KeyedRef, SavePolicy};
use callboard_core::testing::env_number;
use futures_util::{StreamExt, stream};

use crate::common::{LONG, until};
use crate::keyed_cluster::{Add, KeyedCluster, gossiping};

/// The questions at a time.
const AT_ONCE: usize = 256;

/// How soon all keys are to be reachable, on a machine that does nothing else.
const WITHIN: Duration = Duration::from_secs(4);

/// Adds one to each key. Asks again after an error: a node that was killed has handled nothing since.
async fn add_to_each(counter: &KeyedRef, keys: &[String]) -> Vec<u64> {
    let adding = keys.iter().map(|key| async move {
        loop {
            match counter.ask(key, LONG, Add(1)).await {
                Ok(answer) => return answer.total,
                Err(error @ AskError::DeadlineExceeded { .. }) => panic!("{key}: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    tokio::time::timeout(LONG, stream::iter(adding).buffered(AT_ONCE).collect()).await.expect("they are reachable")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_killed_node_are_reachable_within_seconds_with_what_was_saved() {
    let count = usize::try_from(env_number("KEYED_KEYS", 1_000)).unwrap();
    let cluster = KeyedCluster::start("keyed-reached", 7, SavePolicy::Durable).await;
    let left = cluster.node("left", &[], gossiping()).await;
    let killed = cluster.node("killed", &[left.address()], gossiping()).await;
    left.until_ready().await;
    killed.until_ready().await;
    // Each of two nodes has about half of them, once both know each other.
    until(|| left.served.node.remote_actor("keyed:counter").members().len() == 1).await;
    let keys: Vec<String> = (0..2 * count).map(|key| key.to_string()).collect();
    assert!(add_to_each(&left.counter, &keys).await.iter().all(|total| *total == 1));
    let active = killed.counter.active();
    assert!(active > count / 2, "{active} of {} keys are on the node that is killed", keys.len());
    let of_killed = killed.counter.active_keys(keys.len());
    killed.kill();
    let began = Instant::now();
    let totals = add_to_each(&left.counter, &of_killed).await;
    let took = began.elapsed();
    assert!(totals.iter().all(|total| *total == 2), "nothing that was saved is lost, and nothing is added twice");
    println!("figures: {active} keys of a killed node: asked at most {WITHIN:?}, all reachable after {took:.2?}");
    assert!(took < WITHIN || std::env::var("CALLBOARD_PROMISES").is_err(), "{took:?}");
}
