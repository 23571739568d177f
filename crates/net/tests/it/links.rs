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

/// Waits until nothing is sent for half a second. Returns how much was sent.
async fn until_quiet(faults: &Faults) -> u64 {
    let last = Cell::new((0, Instant::now()));
    until(|| {
        let sent = faults.counters().sent;
        if last.get().0 != sent {
            last.set((sent, Instant::now()));
        }
        last.get().1.elapsed() >= Duration::from_millis(500)
    })
    .await;
    last.get().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_without_calls_sends_at_most_a_keep_alive_and_outlives_ten_seconds_of_silence() {
    let (served, faults) = node(slow(Duration::ZERO).0).await;
    let client = connect(&served, Tuning::default()).await;
    let before = until_quiet(&faults).await;
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

/// The packets of the node arrive. Each brings its last acknowledgement again, which is no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_line_that_carries_one_way_has_timed_out() {
    let (app, running) = slow(LONG);
    let mut config = NetConfig::default();
    // The node never gives up by itself, and sends keep-alives.
    (config.tuning.idle_timeout, config.tuning.silent_after) = (LONG, LONG);
    let served = ServingNode::start_with(app, config).await;
    let faults = Faults::new(0);
    let client = connect(&served, Tuning { faults: Some(faults.clone()), ..Tuning::default() }).await;
    let calling = tokio::spawn(async move { call(&client).await });
    until(|| running.load(Ordering::SeqCst) == 1).await;
    let cut = Instant::now();
    faults.set(silence());
    let error = calling.await.unwrap().unwrap_err();
    let noticed = cut.elapsed();
    assert!((Duration::from_millis(2_500)..Duration::from_millis(5_000)).contains(&noticed), "{noticed:?}");
    assert_eq!(CallFailure::classify(&error), CallFailure::ConnectionLost);
}

/// Its congestion window is full, so that keep-alives do not leave during the pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_call_survives_a_pause_of_the_line() {
    let stage = Stage::each("length", |text: &String| Ok(text.len() as u64));
    let (served, of_node) = node(App::new().route("/length", stage)).await;
    let of_client = Faults::new(0);
    let client = connect(&served, Tuning { faults: Some(of_client.clone()), ..Tuning::default() }).await;
    // Slow enough that the pause begins while it is sent.
    let mut slow = FaultProfile::default();
    slow.delay = Duration::from_millis(20);
    of_client.set(slow);
    let before = of_client.counters().sent;
    let calling = tokio::spawn(async move {
        let options = CallOptions::new().with_timeout(LONG);
        client.call_with::<_, u64>("/length", "a".repeat(12 << 20), options).await
    });
    until(|| of_client.counters().sent > before + 100).await;
    of_client.set(silence());
    of_node.set(silence());
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(!calling.is_finished(), "it is longer than that");
    of_client.set(slow);
    of_node.set(FaultProfile::default());
    assert_eq!(calling.await.unwrap().unwrap(), 12 << 20);
    assert_eq!(total(&served.edge, "connections_accepted"), 1, "the same connection");
}

/// Two connections fill the limit. The live one stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_connection_without_calls_keeps_its_place_only_until_another_client_needs_it() {
    let config = NetConfig { max_connections: 2, ..NetConfig::default() };
    let served = ServingNode::start_with(slow(Duration::ZERO).0, config).await;
    let faults = Faults::new(0);
    let dead = connect(&served, Tuning { faults: Some(faults.clone()), ..Tuning::default() }).await;
    let live = connect(&served, Tuning::default()).await;
    faults.set(silence());
    let began = Instant::now();
    let third = connect(&served, Tuning::default()).await;
    assert_eq!(call(&third).await.unwrap(), 7);
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert_eq!(call(&live).await.unwrap(), 7);
    assert_eq!(total(&served.edge, "connections_accepted"), 3, "the live one has not connected again");
    drop(dead);
}

/// Its connection has had no call, and would outlive the silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_while_it_drains_is_connected_again() {
    let (served, faults) = node(slow(Duration::ZERO).0).await;
    let client = connect(&served, Tuning::default()).await;
    until_quiet(&faults).await;
    served.edge.drain();
    until_quiet(&faults).await;
    let call = || client.call_with::<u64, u64>("/slow", 7, CallOptions::new().with_timeout(Duration::from_millis(500)));
    call().await.unwrap_err();
    assert_eq!(total(&served.edge, "connections_accepted"), 1, "the node drains");
    faults.set(silence());
    let died = Instant::now();
    while died.elapsed() < Duration::from_secs(5) {
        call().await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    faults.set(FaultProfile::default());
    let returning = async {
        while total(&served.edge, "connections_accepted") == 1 {
            call().await.unwrap_err();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), returning).await.expect("it is connected again");
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
