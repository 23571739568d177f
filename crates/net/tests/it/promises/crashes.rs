//! A worker that crashes is started again, and what crashes always is contained.

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_core::{App, Batch, Contract, Failure, LocalClient, Replica, Stage, StageState, Worker};
use parking_lot::Mutex;

use super::usage::Process;
use super::{Scale, cluster, offer, quantile, working};
use crate::common::until;
use crate::ledger::{Book, Work};

/// One call of so many ends its worker.
const POISON: u64 = 100;

/// When each replica was built, and when it panicked.
type Lives = Arc<Mutex<Vec<(usize, Instant, bool)>>>;

struct Fragile {
    book: Book,
    replica: usize,
    lives: Lives,
}

impl Worker for Fragile {
    type In = Work;
    type Out = u64;

    #[expect(clippy::disallowed_methods, reason = "work that holds its thread")]
    fn call(&mut self, batch: Batch<Work>) -> Vec<Result<u64, Failure>> {
        let run = |work: Work| {
            self.book.begin(work, self.replica as u64)?;
            std::thread::sleep(Duration::from_millis(5));
            if work.0 % POISON == POISON - 1 {
                self.lives.lock().push((self.replica, Instant::now(), true));
                panic!("poison");
            }
            Ok(work.0)
        };
        batch.into_iter().map(|item| run(*item)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_worker_is_started_again_and_its_call_alone_has_failed() {
    let scale = Scale::of(100, 4);
    let (book, lives) = (Book::in_memory(), Lives::default());
    let fragile = Stage::worker("work", {
        let (book, lives) = (book.clone(), Arc::clone(&lives));
        move |replica: &Replica| {
            lives.lock().push((replica.index(), Instant::now(), false));
            Ok(Fragile { book: book.clone(), replica: replica.index(), lives: Arc::clone(&lives) })
        }
    });
    let (gateway, workers) = cluster(vec![App::new().route("/work", fragile.replicas(8))]).await;
    let client = gateway.served.node.client();
    let offer = offer(&client, scale.rate, scale.lasting, |_| Duration::from_secs(30)).await;
    let sums = offer.ledger.check(offer.count(), &book.executions(), Contract::AtMostOnce, Duration::ZERO);
    let mut failed: Vec<u64> = offer.ledger.not_done().into_iter().map(|(id, _)| id).collect();
    failed.sort_unstable();
    let poisoned: Vec<u64> = (0..offer.count()).filter(|id| id % POISON == POISON - 1).collect();
    let health = workers[0].node.health();
    assert!(health.ready, "{sums:?}: {:?}", health.stages);
    let others = offer.calls.iter().filter(|call| call.id % POISON != POISON - 1);
    let why: Vec<_> = others.filter_map(|call| call.outcome.as_ref().err()).take(3).collect();
    assert!(failed == poisoned, "{sums:?}: not the poisonous ones alone: {why:?}");
    workers[0].comes_to_rest().await;
    let lives = lives.lock().clone();
    let crashes = lives.iter().enumerate().filter(|(_, (.., died))| *died);
    let restarts = crashes.filter_map(|(position, (replica, died_at, _))| {
        let next = lives[position..].iter().find(|(other, _, died)| other == replica && !died)?;
        Some(next.1 - *died_at)
    });
    scale.hold("crashes: restart p99", quantile(restarts.collect(), 0.99), Duration::from_millis(100));
}

/// Calls a stage that panics always, until it is given up; how often that was.
async fn loops(client: LocalClient, stage: &'static str) -> usize {
    let state = || client.health().stages.iter().find(|told| told.name.as_str() == stage).map(|told| told.state);
    let mut crashes = 0;
    while state() != Some(StageState::Failed) {
        crashes += usize::from(client.call::<u64, u64>(&format!("/{stage}"), 1).await.is_err());
    }
    crashes
}

/// It is given up after five, costs next to nothing, and the others hear nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loop_is_given_up_and_disturbs_nobody() {
    let scale = Scale::of(100, 3);
    let book = Book::in_memory();
    let always = |name| Stage::each(name, |_: &u64| -> Result<u64, Failure> { panic!("as always") });
    let app = App::new().route("/work", working(&book, 0, Duration::from_millis(5)));
    let (gateway, workers) =
        cluster(vec![app.route("/alone", always("alone")).route("/beside", always("beside"))]).await;
    let (client, worker) = (gateway.served.node.client(), workers[0].node.client());
    let (begun, before) = (Instant::now(), Process::Own.computed());
    assert!(loops(worker.clone(), "alone").await >= 6);
    if scale.is_full {
        // The window in which crashes are counted.
        tokio::time::sleep_until((begun + Duration::from_secs(10)).into()).await;
    }
    if let (Some(before), Some(now)) = (before, Process::Own.computed()) {
        let share = (now - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        scale.at_most("crash loop: its part of a core", share, 5.0, "%");
    }
    let healthy = offer(&client, scale.rate, scale.lasting / 2, |_| Duration::from_secs(30)).await;
    let first = book.executions().len();
    let looping = tokio::spawn(loops(worker, "beside"));
    let beside = offer(&client, scale.rate, scale.lasting, |_| Duration::from_secs(30)).await;
    until(|| looping.is_finished()).await;
    assert!(looping.await.unwrap() >= 6);
    let executions = book.executions().split_off(first);
    let sums = beside.ledger.check(beside.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    assert_eq!(sums.done, sums.calls, "{sums:?}");
    scale.hold("crash loop: p99 of others beside it", beside.p99(), healthy.p99().mul_f64(1.1));
}
