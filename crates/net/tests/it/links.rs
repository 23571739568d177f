//! Links without calls cost nothing and outlive silences; links with calls are watched from both sides.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, CallError, CallOptions, Caller, Failure, Stage};
use callboard_net::testing::{FaultProfile, Faults};
use callboard_net::{CallFailure, Client, NetConfig, Tuning};

use crate::common::{IDENTITY, LONG, ServingNode, until};
use crate::lab::total;

/// A stage whose calls take this long, and which counts those that run.
fn slow(takes: Duration) -> (App, Arc<AtomicUsize>) {
    struct Running(Arc<AtomicUsize>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let running = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&running);
    let stage = Stage::each_async("slow", move |number: Arc<u64>| {
        counter.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&counter));
        async move {
            let _running = running;
            tokio::time::sleep(takes).await;
            Ok::<u64, Failure>(*number)
        }
    });
    (App::new().route("/slow", stage), running)
}

async fn connect(served: &ServingNode, tuning: Tuning) -> Client {
    let builder = Client::builder().identity(IDENTITY.clone()).connect_timeout(LONG).start_up_wait(LONG);
    builder.tuning(tuning).connect(&served.url()).await.unwrap()
}

async fn call(client: &Client) -> Result<u64, CallError> {
    client.call_with::<u64, u64>("/slow", 7, CallOptions::new().with_timeout(LONG)).await
}

fn silence() -> FaultProfile {
    FaultProfile::new(1.0, 0.0, 0.0, Duration::ZERO)
}

/// A node with these faults, and with default times.
async fn node(app: App) -> (ServingNode, Faults) {
    let (faults, mut config) = (Faults::new(0), NetConfig::default());
    config.tuning.faults = Some(faults.clone());
    (ServingNode::start_with(app, config).await, faults)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_without_calls_sends_at_most_a_keep_alive_and_outlives_ten_seconds_of_silence() {
    let (served, faults) = node(slow(Duration::ZERO).0).await;
    let client = connect(&served, Tuning::default()).await;
    // The packets of the connection and of its offers come first.
    let last = Cell::new((0, Instant::now()));
    until(|| {
        let sent = faults.counters().sent;
        if last.get().0 != sent {
            last.set((sent, Instant::now()));
        }
        last.get().1.elapsed() >= Duration::from_millis(500)
    })
    .await;
    let (before, _) = last.get();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let sent = faults.counters().sent - before;
    assert!(sent <= 2, "{sent} datagrams in two seconds");
    faults.set(silence());
    tokio::time::sleep(Duration::from_secs(10)).await;
    faults.set(FaultProfile::default());
    assert_eq!(call(&client).await.unwrap(), 7);
    assert_eq!(total(&served.edge, "connections_accepted"), 1, "the same connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_call_of_a_caller_that_vanishes_is_cancelled() {
    let (app, running) = slow(LONG);
    let served = ServingNode::start_with(app, NetConfig::default()).await;
    let faults = Faults::new(0);
    // A caller that never gives up by itself.
    let tuning = Tuning { idle_timeout: LONG, silent_after: LONG, faults: Some(faults.clone()), ..Tuning::default() };
    let client = connect(&served, tuning).await;
    let calling = tokio::spawn(async move { call(&client).await });
    until(|| running.load(Ordering::SeqCst) == 1).await;
    let vanished = Instant::now();
    faults.set(silence());
    until(|| running.load(Ordering::SeqCst) == 0 && served.edge.connections() == 0).await;
    let noticed = vanished.elapsed();
    // A second and a half more than users are promised, for a busy machine.
    assert!((Duration::from_millis(2_500)..Duration::from_millis(5_000)).contains(&noticed), "{noticed:?}");
    until(|| served.edge.streams() == 0 && served.node.describe().in_flight == 0).await;
    calling.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_node_that_vanishes_has_timed_out() {
    let (app, running) = slow(LONG);
    let (served, faults) = node(app).await;
    let client = connect(&served, Tuning::default()).await;
    let calling = tokio::spawn(async move { call(&client).await });
    until(|| running.load(Ordering::SeqCst) == 1).await;
    let vanished = Instant::now();
    faults.set(silence());
    let error = calling.await.unwrap().unwrap_err();
    let noticed = vanished.elapsed();
    assert!((Duration::from_millis(2_500)..Duration::from_millis(5_000)).contains(&noticed), "{noticed:?}");
    assert_eq!(CallFailure::classify(&error), CallFailure::ConnectionLost);
    let message = "the call was sent, and may have run: the connection was lost: timed out";
    assert_eq!(error.message(), message);
}

/// A peer of an earlier version takes no datagrams, and keeps the connection up by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_to_peers_of_earlier_versions_stay_up_with_and_without_calls() {
    let earlier = || Tuning { keeps_alive_by_quic: true, ..Tuning::default() };
    let takes = Tuning::default().idle_timeout + Duration::from_secs(1);
    let pairs = [(earlier(), Tuning::default()), (Tuning::default(), earlier())];
    let talks = pairs.map(|(accepting, dialling)| async move {
        let config = NetConfig { tuning: accepting, ..NetConfig::default() };
        let served = ServingNode::start_with(slow(takes).0, config).await;
        let client = connect(&served, dialling).await;
        tokio::time::sleep(takes).await;
        assert_eq!(call(&client).await.unwrap(), 7);
        assert_eq!(total(&served.edge, "connections_accepted"), 1, "the same connection");
    });
    futures_util::future::join_all(talks).await;
}
