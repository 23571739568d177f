//! A worker that crashes is restarted, and a worker that always crashes is contained.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use callboard_core::description::StageState;
use callboard_core::{App, AsyncWorker, Batch, Contract, Failure, LocalClient, Replica, Stage, Worker};
use parking_lot::Mutex;

use super::usage::Process;
use super::{Scale, cluster, offer, quantile, working};
use crate::common::LONG;
use crate::ledger::{ExecutionLog, Work};

/// One call in this many ends its worker.
const POISON: u64 = 100;

/// When each replica was built, and when it panicked.
type Lives = Arc<Mutex<Vec<(usize, Instant, bool)>>>;

struct Fragile {
    log: ExecutionLog,
    replica: usize,
    lives: Lives,
}

impl Worker for Fragile {
    type In = Work;
    type Out = Work;

    #[expect(clippy::disallowed_methods, reason = "work that holds its thread")]
    fn call(&mut self, batch: Batch<Work>) -> Vec<Result<Work, Failure>> {
        let run = |work: &Work| {
            self.log.record(work, self.replica as u64)?;
            std::thread::sleep(Duration::from_millis(5));
            if work.id % POISON == POISON - 1 {
                self.lives.lock().push((self.replica, Instant::now(), true));
                panic!("poison");
            }
            work.answered()
        };
        batch.into_iter().map(run).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_worker_restarts_and_only_its_call_fails() {
    let scale = Scale::new(100, 4);
    let (log, lives) = (ExecutionLog::in_memory(), Lives::default());
    let fragile = Stage::worker("work", {
        let (log, lives) = (log.clone(), Arc::clone(&lives));
        move |replica: &Replica| {
            lives.lock().push((replica.index(), Instant::now(), false));
            Ok(Fragile { log: log.clone(), replica: replica.index(), lives: Arc::clone(&lives) })
        }
    });
    let (gateway, workers) = cluster(vec![App::new().route("/work", fragile.replicas(8))]).await;
    let client = gateway.served.node.client();
    let offer = offer(&client, scale.rate, scale.lasting, |_| Duration::from_secs(30)).await;
    let sums = offer.ledger.check(offer.count(), &log.executions(), Contract::AtMostOnce, Duration::ZERO);
    let mut failed: Vec<u64> = offer.ledger.not_done().into_iter().map(|(id, _)| id).collect();
    failed.sort_unstable();
    let poisoned: Vec<u64> = (0..offer.count()).filter(|id| id % POISON == POISON - 1).collect();
    let health = workers[0].node.health();
    assert!(health.ready, "{sums:?}: {:?}", health.stages);
    let others = offer.calls.iter().filter(|call| call.id % POISON != POISON - 1);
    let why: Vec<_> = others.filter_map(|call| call.outcome.as_ref().err()).take(3).collect();
    assert!(failed == poisoned, "{sums:?}: other calls than the culprits failed: {why:?}");
    workers[0].until_idle().await;
    let lives = lives.lock().clone();
    let crashes = lives.iter().enumerate().filter(|(_, (.., died))| *died);
    let restarts = crashes.filter_map(|(position, (replica, died_at, _))| {
        let next = lives[position..].iter().find(|(other, _, died)| other == replica && !died)?;
        Some(next.1 - *died_at)
    });
    scale.hold("crashes: restart p99", quantile(restarts.collect(), 0.99), Duration::from_millis(100));
}

/// The number of failed starts before a stage has failed: five more are allowed. It may have tried again since.
const CRASHES: RangeInclusive<usize> = 6..=7;

/// More than fail in a loop while other calls are offered.
const LOOPS: usize = 128;

/// Panics when it is called.
struct Panics;

impl AsyncWorker for Panics {
    type In = u64;
    type Out = u64;

    async fn call(&self, _: Batch<u64>) -> Vec<Result<u64, Failure>> {
        panic!("as always")
    }
}

/// A stage whose worker can be built once and never again. It counts the failed starts, and names itself.
fn always(number: usize, crashes: &Arc<AtomicUsize>) -> (String, Stage<u64, u64>) {
    let (name, crashes) = (format!("loop-{number}"), Arc::clone(crashes));
    let stage = Stage::async_worker(name.as_str(), move |replica: &Replica| {
        if replica.generation() == 0 {
            return Ok(Panics);
        }
        crashes.fetch_add(1, Ordering::SeqCst);
        Err(Failure::new("the weights are gone"))
    });
    (format!("/{name}"), stage)
}

/// Begins a crash loop, and waits until the stage has failed. Returns the number of its failed starts.
async fn loops(client: &LocalClient, number: usize, crashes: &AtomicUsize) -> usize {
    let name = format!("loop-{number}");
    let state = || client.health().stages.iter().find(|stage| stage.name.as_str() == name).map(|stage| stage.state);
    assert!(client.call::<u64, u64>(&format!("/{name}"), 1).await.is_err());
    let failing = async {
        while state() != Some(StageState::Failed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        crashes.load(Ordering::SeqCst)
    };
    tokio::time::timeout(LONG, failing).await.expect("it is stopped")
}

/// The stage has failed after five restarts and costs next to nothing. Other stages are not affected, not even by one
/// more crash loop that starts right after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loop_is_stopped_and_affects_no_other_stage() {
    let scale = Scale::new(100, 3);
    let log = ExecutionLog::in_memory();
    let crashes: Vec<Arc<AtomicUsize>> = (0..LOOPS).map(|_| Arc::default()).collect();
    let mut app = App::new().route("/work", working(&log, 0, Duration::from_millis(5)));
    for (number, crashes) in crashes.iter().enumerate() {
        let (path, stage) = always(number, crashes);
        app = app.route(&path, stage);
    }
    let (gateway, workers) = cluster(vec![app]).await;
    let (client, worker) = (gateway.served.node.client(), workers[0].node.client());
    let crashed = |times: usize| {
        println!("figures: crash loop: crashes of one: asked {CRASHES:?}, got {times}");
        assert!(CRASHES.contains(&times), "{times} crashes");
    };
    let (started, before) = (Instant::now(), Process::Own.computed());
    crashed(loops(&worker, 0, &crashes[0]).await);
    if scale.is_full {
        // The window in which crashes are counted.
        tokio::time::sleep_until((started + Duration::from_secs(10)).into()).await;
    }
    if let (Some(before), Some(now)) = (before, Process::Own.computed()) {
        let share = (now - before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
        scale.at_most("crash loop: its part of a core", share, 5.0, "%");
    }
    let healthy = offer(&client, scale.rate, scale.lasting / 2, |_| Duration::from_secs(30)).await;
    let first = log.executions().len();
    let over = Arc::new(AtomicBool::new(false));
    let looping = tokio::spawn({
        let over = Arc::clone(&over);
        async move {
            let (mut number, mut times) = (0, vec![]);
            while !over.load(Ordering::SeqCst) && number + 1 < LOOPS {
                number += 1;
                times.push(loops(&worker, number, &crashes[number]).await);
            }
            times
        }
    });
    let during = offer(&client, scale.rate, scale.lasting, |_| Duration::from_secs(30)).await;
    over.store(true, Ordering::SeqCst);
    let times = looping.await.unwrap();
    let last = times.len();
    println!("crash loop: {last} of them beside {} calls", during.count());
    assert!(last > 0 && last + 1 < LOOPS, "a crash loop ran all the time: {last}");
    times.into_iter().for_each(crashed);
    let executions = log.executions().split_off(first);
    let sums = during.ledger.check(during.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    assert_eq!(sums.done, sums.calls, "{sums:?}");
    scale.hold("crash loop: p99 of others beside it", during.p99(), healthy.p99().mul_f64(1.1));
}
