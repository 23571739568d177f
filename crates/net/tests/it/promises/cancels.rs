//! Cancelled calls leave nothing behind at any point.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, CallError, Failure, LocalClient, Stage};
use callboard_net::testing::in_flight_of;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::usage::Process;
use super::{Scale, cluster, quantile};
use crate::common::{LONG, until};
use crate::ledger::Work;

const AT_ONCE: usize = 64;

/// The calls that have run, one bit each: a ledger of millions in constant memory.
#[derive(Clone, Debug, Default)]
struct RunBits {
    bits: Arc<Mutex<Vec<u64>>>,
    twice: Arc<AtomicU64>,
}

impl RunBits {
    fn record(&self, id: u64) {
        let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
        let mut bits = self.bits.lock();
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        if bits[word] & bit != 0 {
            self.twice.fetch_add(1, Ordering::SeqCst);
        }
        bits[word] |= bit;
    }

    fn has(&self, id: u64) -> bool {
        self.bits.lock().get((id / 64) as usize).is_some_and(|word| word & 1 << (id % 64) != 0)
    }
}

/// When a call is cancelled: by the clock, or after a number of polls of its task.
#[derive(Clone, Copy, Debug)]
enum CancelPoint {
    Time(Duration),
    Turns(u32),
}

impl CancelPoint {
    fn random(chance: &mut fastrand::Rng) -> Self {
        if chance.bool() {
            Self::Time(Duration::from_micros(chance.u64(0..6_000)))
        } else {
            Self::Turns(chance.u32(0..200))
        }
    }

    async fn is_over(self) {
        match self {
            Self::Time(time) => tokio::time::sleep(time).await,
            Self::Turns(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Its outcome; `None` if it was cancelled.
async fn call(client: LocalClient, id: u64, patience: CancelPoint) -> (u64, Option<Result<Work, CallError>>) {
    tokio::select! {
        outcome = client.call::<Work, Work>("/run", Work::whenever(id)) => (id, Some(outcome)),
        () = patience.is_over() => (id, None),
    }
}

/// Cancels at random points, from before a call is sent until after its answer; the counters match the number of
/// cancelled calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_cancelled_at_any_point_leak_nothing() {
    let scale = Scale::new(0, 0);
    let count: u64 = if scale.is_full { 1_000_000 } else { 5_000 };
    let seed = std::env::var("CALLBOARD_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("CALLBOARD_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let run_bits = RunBits::default();
    let work = Stage::each_async("work", {
        let run_bits = run_bits.clone();
        move |work: Arc<Work>| {
            let run_bits = run_bits.clone();
            async move {
                run_bits.record(work.id);
                tokio::time::sleep(Duration::from_millis(2)).await;
                work.answered()
            }
        }
    });
    let (gateway, workers) = cluster(vec![App::new().route("/work", work.concurrency(AT_ONCE as u32))]).await;
    let client = gateway.served.node.client();
    let (mut calls, mut made, mut given_up, mut warm) = (JoinSet::new(), 0, 0, None);
    while given_up < count || !calls.is_empty() {
        if given_up < count && calls.len() < AT_ONCE {
            calls.spawn(call(client.clone(), made, CancelPoint::random(&mut chance)));
            made += 1;
            continue;
        }
        match calls.join_next().await.unwrap().unwrap() {
            (id, Some(outcome)) => {
                assert_eq!(outcome.unwrap().call_id(), id);
                assert!(run_bits.has(id), "call {id} is reported as done, but never ran");
            }
            (_, None) => given_up += 1,
        }
        // The allocator takes more pages for a while, at a decreasing rate.
        if warm.is_none() && given_up >= count / 2 {
            warm = Process::Own.resident_kib();
        }
    }
    let started = Instant::now();
    workers[0].until_idle().await;
    gateway.served.until_idle().await;
    // The gateway holds nothing of its requests to peers either.
    until(|| in_flight_of(&gateway.cluster) == (0, 0)).await;
    scale.hold("given up: at rest after the last", started.elapsed(), Duration::from_secs(1));
    println!("figures: given up: calls: asked {count}, got {given_up} of {made} that were made");
    // On a shared machine no call is sure to be answered in time.
    assert!(given_up >= count && (!scale.is_full || given_up < made), "{given_up} of {made}");
    for served in workers.iter().chain([&gateway.served]) {
        let description = served.node.describe();
        assert_eq!((description.in_flight, description.in_flight_bytes), (0, 0));
        assert!(description.stages.iter().all(|stage| stage.queued == 0));
    }
    // All capacity is free again.
    let mut again = JoinSet::new();
    for id in made..made + AT_ONCE as u64 {
        let client = client.clone();
        again.spawn(async move { client.call::<Work, Work>("/run", Work::whenever(id)).await });
    }
    let all = tokio::time::timeout(LONG, again.join_all()).await.unwrap();
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(run_bits.twice.load(Ordering::SeqCst), 0, "a cancelled call may have run, but not twice");
    if let (Some(warm), Some(now)) = (warm, Process::Own.resident_kib()) {
        let drift = now.saturating_sub(warm) as f64 / warm as f64 * 100.0;
        println!("given up: resident: {warm} kB at half, {now} kB at the end");
        scale.at_most("given up: drift of resident memory, second half", drift, 5.0, "%");
    }
}

/// Notifies on drop, which happens when its call is cancelled.
struct DropNotice(mpsc::UnboundedSender<Instant>);

impl Drop for DropNotice {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

/// A call that runs on a peer and is cancelled here ends there at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_reaches_a_running_worker_on_a_peer() {
    let scale = Scale::new(0, 0);
    let count = if scale.is_full { 2_000 } else { 100 };
    #[expect(clippy::disallowed_methods, reason = "one call runs at a time")]
    let (started, mut runs) = mpsc::unbounded_channel();
    #[expect(clippy::disallowed_methods, reason = "one call runs at a time")]
    let (dropped, mut ended) = mpsc::unbounded_channel();
    let endless = Stage::each_async("work", move |_: Arc<Work>| {
        let (started, notes) = (started.clone(), DropNotice(dropped.clone()));
        async move {
            let _notes = notes;
            let _ = started.send(());
            std::future::pending::<Result<Work, Failure>>().await
        }
    });
    let (gateway, workers) = cluster(vec![App::new().route("/work", endless)]).await;
    let client = gateway.served.node.client();
    let mut took = Vec::new();
    for id in 0..count {
        let client = client.clone();
        let call = tokio::spawn(async move { client.call::<Work, Work>("/run", Work::whenever(id)).await });
        runs.recv().await.unwrap();
        let given_up = Instant::now();
        call.abort();
        let dropped_at = tokio::time::timeout(LONG, ended.recv()).await.expect("the worker is notified").unwrap();
        took.push(dropped_at.saturating_duration_since(given_up));
    }
    scale.hold("given up: a cancel reaches the worker, p99", quantile(took, 0.99), Duration::from_millis(50));
    workers[0].until_idle().await;
    gateway.served.until_idle().await;
}
