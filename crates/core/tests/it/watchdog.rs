//! Slow code in a task stage is named and moved off the runtime.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use callboard_core::{App, Stage};

use super::support::until;

/// Blocks its thread, like a forgotten `std::thread::sleep` or a model.
fn block(time: Duration) {
    let (lock, never) = (Mutex::new(()), std::sync::Condvar::new());
    let started = Instant::now();
    let mut guard = lock.lock().unwrap();
    while started.elapsed() < time {
        (guard, _) = never.wait_timeout(guard, time.saturating_sub(started.elapsed())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_task_stages_that_block_the_runtime_are_moved_to_threads_and_other_stages_answer() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let blocking = |name: &str| {
        let threads = Arc::clone(&threads);
        Stage::each(name, move |millis: &u64| {
            block(Duration::from_millis(*millis));
            threads.lock().unwrap().insert(std::thread::current().name().unwrap_or("").to_owned());
            Ok(*millis)
        })
    };
    let node = App::new()
        .route("/one", blocking("one"))
        .route("/two", blocking("two"))
        .route("/quick", Stage::each("quick", |n: &u64| Ok(*n)))
        .start()
        .await
        .unwrap();
    let client = node.client();
    let call = |route: &'static str, millis: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>(route, millis).await.unwrap() })
    };

    // The first calls block both runtime threads for 5 s; only the watchdog, on its own thread, can notice.
    let moved = |stage: &str| format!(r#"callboard_stage_moved_to_threads_total{{stage="{stage}"}} 1"#);
    let started = Instant::now();
    let held = [call("/one", 5000), call("/two", 5000)];
    let mut metrics = node.metrics();
    while !(metrics.contains(&moved("one")) && metrics.contains(&moved("two"))) {
        assert!(started.elapsed() < Duration::from_secs(4), "the watchdog missed it: {metrics}");
        std::thread::park_timeout(Duration::from_millis(5));
        metrics = node.metrics();
    }
    assert!(!metrics.contains(&moved("quick")), "{metrics}");
    for held in held {
        held.await.unwrap();
    }

    // From now on the same two calls block no other call.
    let long = [call("/one", 5000), call("/two", 5000)];
    until("both run", || {
        node.describe().stages.iter().filter(|stage| stage.replicas.iter().any(|r| r.busy)).count() == 2
    })
    .await;
    let started = Instant::now();
    for n in 0..100u64 {
        assert_eq!(client.call::<u64, u64>("/quick", n).await.unwrap(), n);
    }
    assert!(started.elapsed() < Duration::from_secs(4), "the quick stage waited for the blocked ones");
    for held in long {
        held.await.unwrap();
    }
    let threads = threads.lock().unwrap();
    assert!(threads.contains("one-0") && threads.contains("two-0"), "{threads:?}");
}
