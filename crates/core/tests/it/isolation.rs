//! A batch that kills its worker, on a stage whose calls may run again: only the culprit fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{App, AsyncWorker, Batch, CallOptions, ErrorKind, Failure, Node, Stage};
use futures_util::future::join_all;
use tokio::time::sleep;

use super::support::{hide_panics, until};

const POISON: u64 = 666;

/// A stage that dies of poison, and counts its runs. `gate` holds them back until a batch is full.
fn fragile(max_batch_size: usize, runs: &Arc<AtomicUsize>) -> Stage<u64, u64> {
    let runs = Arc::clone(runs);
    Stage::batch("fragile", move |batch: Batch<u64>| {
        runs.fetch_add(1, Ordering::SeqCst);
        assert!(batch.iter().all(|n| *n < POISON), "meant to panic");
        batch.iter().map(|n| Ok(n + 1)).collect()
    })
    .max_batch_size(max_batch_size)
    // Only full batches, so that the test decides which calls run together.
    .max_delay(Duration::from_secs(3600))
}

async fn outcomes(node: &Node, inputs: impl IntoIterator<Item = u64>) -> Vec<Result<u64, ErrorKind>> {
    let client = node.client();
    let calls = inputs.into_iter().map(|n| client.call::<u64, u64>("/fragile", n));
    join_all(calls).await.into_iter().map(|outcome| outcome.map_err(|error| error.kind())).collect()
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn only_the_culprit_fails_and_is_found_in_few_runs() {
    hide_panics();
    for (size, at) in [(2usize, 1usize), (8, 0), (8, 5), (16, 15), (32, 7), (33, 32), (64, 40)] {
        let runs = Arc::default();
        let node = App::new().route("/fragile", fragile(size, &runs).pure()).start().await.unwrap();
        let outcomes = outcomes(&node, (0..size as u64).map(|n| if n as usize == at { POISON } else { n })).await;
        for (n, outcome) in outcomes.into_iter().enumerate() {
            let expected = if n == at { Err(ErrorKind::WorkerFailed) } else { Ok(n as u64 + 1) };
            assert_eq!(outcome, expected, "entry {n} of {size}");
        }
        let bound = 2 * size.next_power_of_two().ilog2() as usize + 2;
        let runs = runs.load(Ordering::SeqCst);
        assert!(runs <= bound, "{runs} runs for {size} entries, at most {bound} are promised");
    }
}

/// A stage with batches of one, whose worker panics in every tenth run, for any input.
fn flaky() -> Stage<u64, u64> {
    let runs = AtomicUsize::new(0);
    Stage::each("fragile", move |n: &u64| {
        assert!(runs.fetch_add(1, Ordering::SeqCst) % 10 != 9, "meant to panic");
        Ok(n + 1)
    })
}

async fn failures(stage: Stage<u64, u64>) -> usize {
    let node = App::new().route("/fragile", stage).start().await.unwrap();
    let mut failed = 0;
    for n in 0..100 {
        failed += outcomes(&node, [n]).await.iter().filter(|outcome| outcome.is_err()).count();
    }
    failed
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn an_entry_that_was_alone_when_its_worker_died_is_tried_once_more() {
    hide_panics();
    assert_eq!(failures(flaky().idempotent()).await, 0);
    assert_eq!(failures(flaky().pure()).await, 0);
    assert_eq!(failures(flaky()).await, 10, "at-most-once entries never run again");
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn an_entry_is_poison_after_the_tries_that_its_stage_allows() {
    hide_panics();
    for (retries, runs_made) in [(0, 1), (1, 2), (3, 4)] {
        let runs = Arc::default();
        let stage = fragile(1, &runs).pure().crash_retries(retries);
        let node = App::new().route("/fragile", stage).start().await.unwrap();
        assert_eq!(outcomes(&node, [POISON]).await, [Err(ErrorKind::WorkerFailed)]);
        assert_eq!(runs.load(Ordering::SeqCst), runs_made);
        assert!(node.metrics().contains("callboard_stage_poison_entries_total{stage=\"fragile\"} 1"));
    }
}

/// Panics after ten milliseconds.
struct PanicsLate(Arc<AtomicUsize>);

impl AsyncWorker for PanicsLate {
    type In = u64;
    type Out = u64;

    async fn call(&self, _: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(10)).await;
        panic!("meant to panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_tries_of_an_entry() {
    hide_panics();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let stage =
        Stage::async_worker("fragile", move |_| Ok(PanicsLate(Arc::clone(&counted)))).pure().crash_retries(1000);
    let node = App::new().route("/fragile", stage).start().await.unwrap();
    let options = CallOptions::new().with_timeout(Duration::from_millis(35));
    let error = node.client().call_with::<u64, u64>("/fragile", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn several_culprits_are_all_found_and_no_other_call_fails() {
    hide_panics();
    let runs = Arc::default();
    let node = App::new().route("/fragile", fragile(32, &runs).idempotent().replicas(2)).start().await.unwrap();
    let inputs = (0..32).map(|n| if n % 7 == 0 { POISON } else { n });
    for (n, outcome) in outcomes(&node, inputs).await.into_iter().enumerate() {
        assert_eq!(outcome.is_err(), n % 7 == 0, "entry {n}: {outcome:?}");
    }
    let metrics = node.metrics();
    assert!(metrics.contains("callboard_stage_poison_entries_total{stage=\"fragile\"} 5"), "{metrics}");
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn at_most_once_means_no_second_run() {
    hide_panics();
    let runs = Arc::default();
    let node = App::new().route("/fragile", fragile(8, &runs)).start().await.unwrap();
    let outcomes = outcomes(&node, (0..8).map(|n| if n == 3 { POISON } else { n })).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Err(ErrorKind::WorkerFailed)), "{outcomes:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn poison_alone_never_fails_a_stage_but_much_of_it_degrades_it() {
    hide_panics();
    let stage = Stage::each("fragile", |n: &u64| {
        assert!(*n < POISON, "meant to panic");
        Ok(n + 1)
    });
    let node = App::new().route("/fragile", stage).start().await.unwrap();
    for _ in 0..40 {
        assert_eq!(outcomes(&node, [POISON]).await, [Err(ErrorKind::WorkerFailed)]);
    }
    let state = || node.describe().stages[0].health.clone();
    until("the replica is back", || !node.describe().stages[0].replicas.is_empty()).await;
    assert_eq!(state().state, StageState::Degraded);
    assert!(state().reason.is_some_and(|reason| reason.contains("a fifth")), "{:?}", state());

    for n in 0..400 {
        assert_eq!(outcomes(&node, [n]).await, [Ok(n + 1)]);
    }
    assert_eq!(state().state, StageState::Ready, "successful entries restore it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_culprit_in_a_hundred_calls_fails_alone_under_load() {
    hide_panics();
    let stage = Stage::batch("fragile", |batch: Batch<u64>| {
        assert!(batch.iter().all(|n| n % 100 != 99), "meant to panic");
        batch.iter().map(|n| Ok(n + 1)).collect()
    });
    let stage = stage.max_batch_size(16).replicas(2).on_threads().pure();
    let node = App::new().route("/fragile", stage).start().await.unwrap();
    for wave in 0..20u64 {
        let inputs: Vec<u64> = (wave * 100..wave * 100 + 100).collect();
        for (n, outcome) in inputs.iter().zip(outcomes(&node, inputs.clone()).await) {
            let expected = if n % 100 == 99 { Err(ErrorKind::WorkerFailed) } else { Ok(n + 1) };
            assert_eq!(outcome, expected, "entry {n}");
        }
    }
    let description = node.describe();
    assert!(description.stages[0].health.state.is_ready());
    assert_eq!((description.in_flight, description.stages[0].queued), (0, 0));
}

/// Panics after a while for more than one item, and is slow with one.
struct PanicsInBatches;

impl AsyncWorker for PanicsInBatches {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        sleep(Duration::from_millis(10)).await;
        assert!(batch.len() == 1, "meant to panic");
        sleep(Duration::from_secs(1)).await;
        vec![Ok(batch[0])]
    }
}

#[tokio::test(start_paused = true)]
async fn retried_entries_hold_a_queue_place_only_while_they_wait() {
    hide_panics();
    let stage = Stage::async_worker("fragile", |_| Ok(PanicsInBatches)).max_batch_size(4).concurrency(1).pure();
    let stage = stage.max_delay(Duration::from_secs(3600));
    let node = App::new().route("/fragile", stage).start().await.unwrap();
    let calls: Vec<_> = (0..4)
        .map(|n| {
            let client = node.client();
            tokio::spawn(async move { client.call::<u64, u64>("/fragile", n).await })
        })
        .collect();
    let queued = || node.describe().stages[0].queued;
    sleep(Duration::from_millis(5)).await;
    assert_eq!(queued(), 0, "all four run");
    calls[3].abort();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(queued(), 2, "one entry runs, two wait, and one had left before the crash");
    calls[1].abort();
    until("a suspect whose caller leaves is removed from the queue", || queued() == 1).await;
}
