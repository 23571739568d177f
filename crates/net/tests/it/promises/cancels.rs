//! Whatever is given up, wherever it is, leaves nothing behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_core::{App, Failure, Stage};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::usage::Process;
use super::{Scale, cluster, quantile, working};
use crate::common::LONG;
use crate::ledger::{Book, Ledger, Work};

const AT_ONCE: usize = 64;

/// At random points, from before they are sent until after they are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_anywhere_leave_nothing_behind() {
    let scale = Scale::of(0, 0);
    let count: u64 = if scale.is_full { 1_000_000 } else { 5_000 };
    let seed = std::env::var("CALLBOARD_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("CALLBOARD_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let book = Book::in_memory();
    let work = working(&book, 0, Duration::from_millis(2)).concurrency(64);
    let (gateway, workers) = cluster(vec![App::new().route("/work", work)]).await;
    let client = gateway.served.node.client();
    let (mut calls, mut ledger, mut given_up) = (JoinSet::new(), Ledger::default(), 0);
    let mut warm = None;
    for id in 0..count {
        if calls.len() >= AT_ONCE {
            given_up += note(calls.join_next().await.unwrap().unwrap(), &mut ledger);
        }
        if id == count / 10 {
            warm = Process::Own.resident_kib();
        }
        let (client, patience) = (client.clone(), Duration::from_micros(chance.u64(0..20_000)));
        calls.spawn(async move {
            let call = client.call::<Work, u64>("/run", (id, u64::MAX));
            (id, tokio::time::timeout(patience, call).await.ok())
        });
    }
    while let Some(call) = calls.join_next().await {
        given_up += note(call.unwrap(), &mut ledger);
    }
    let begun = Instant::now();
    workers[0].comes_to_rest().await;
    gateway.served.comes_to_rest().await;
    scale.hold("given up: at rest after the last", begun.elapsed(), Duration::from_secs(1));
    println!("given up: {given_up} of {count} were given up, {} had an outcome", count - given_up);
    // A machine that others have gives no call its answer in time, or each.
    assert!(!scale.is_full || (given_up > count / 10 && given_up < count), "{given_up} of {count}");
    assert!(workers[0].node.describe().stages[0].queued == 0);
    // Room for everything is there again.
    let mut again = JoinSet::new();
    for id in 0..AT_ONCE as u64 {
        let client = client.clone();
        again.spawn(async move { client.call::<Work, u64>("/run", (id, u64::MAX)).await });
    }
    let all = tokio::time::timeout(LONG, again.join_all()).await.unwrap();
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    // What is left of an outcome that was given up may have run, and none twice.
    let executions = book.executions();
    let mut ids: Vec<u64> = executions.iter().map(|execution| execution.id).collect();
    ids.truncate(executions.len() - AT_ONCE);
    ids.sort_unstable();
    assert!(ids.windows(2).all(|two| two[0] != two[1]), "a call that was given up ran twice");
    if let (Some(warm), Some(now)) = (warm, Process::Own.resident_kib()) {
        // The ledger of this test itself grows with what was executed.
        let own = (executions.len() * 64 / 1024) as u64;
        println!("given up: resident: {warm} kB warm, {now} kB at the end, of which the ledger about {own} kB");
        let drift = now.saturating_sub(warm + own) as f64 / warm as f64 * 100.0;
        scale.at_most("given up: drift of resident memory", drift, 5.0, "%");
    }
}

/// Tells when it is dropped, which is when its call is given up.
struct Notes(mpsc::UnboundedSender<Instant>);

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

/// A call that runs on a peer and is given up here ends there at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_reaches_a_running_worker_on_a_peer() {
    let scale = Scale::of(0, 0);
    let count = if scale.is_full { 2_000 } else { 100 };
    #[expect(clippy::disallowed_methods, reason = "one call runs at a time")]
    let (begun, mut runs) = mpsc::unbounded_channel();
    #[expect(clippy::disallowed_methods, reason = "one call runs at a time")]
    let (dropped, mut ended) = mpsc::unbounded_channel();
    let endless = Stage::each_async("work", move |_: Arc<Work>| {
        let (begun, notes) = (begun.clone(), Notes(dropped.clone()));
        async move {
            let _notes = notes;
            let _ = begun.send(());
            std::future::pending::<Result<u64, Failure>>().await
        }
    });
    let (gateway, workers) = cluster(vec![App::new().route("/work", endless)]).await;
    let client = gateway.served.node.client();
    let mut took = Vec::new();
    for id in 0..count {
        let client = client.clone();
        let call = tokio::spawn(async move { client.call::<Work, u64>("/run", (id, u64::MAX)).await });
        runs.recv().await.unwrap();
        let given_up = Instant::now();
        call.abort();
        let heard = tokio::time::timeout(LONG, ended.recv()).await.expect("the worker hears of it").unwrap();
        took.push(heard.saturating_duration_since(given_up));
    }
    scale.hold("given up: a cancel reaches the worker, p99", quantile(took, 0.99), Duration::from_millis(50));
    workers[0].comes_to_rest().await;
    gateway.served.comes_to_rest().await;
}

/// 1 for a call that was given up.
fn note((id, outcome): (u64, Option<Result<u64, callboard_core::CallError>>), ledger: &mut Ledger) -> u64 {
    match outcome {
        Some(outcome) => {
            ledger.note(id, &outcome);
            assert!(outcome.is_ok(), "{outcome:?}");
            0
        }
        None => 1,
    }
}
