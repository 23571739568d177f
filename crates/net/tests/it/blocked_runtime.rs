//! User code that blocks every thread of the runtime: the endpoint's own thread keeps connections alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, CallOptions, Caller, Failure, Node, Stage};
use callboard_net::{Client, NetConfig, QuicEdge};

use crate::common::{IDENTITY, LONG, loopback, until};
use crate::lab::total;

/// The threads of the node's runtime, all of which are busy.
const THREADS: usize = 2;

/// A stage that blocks its thread until it is released.
fn spinning(release: &Arc<AtomicBool>, started: &Arc<AtomicUsize>) -> Stage<u64, u64> {
    let (release, started) = (Arc::clone(release), Arc::clone(started));
    Stage::each_async("spin", move |number: Arc<u64>| {
        let (release, started) = (Arc::clone(&release), Arc::clone(&started));
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            while !release.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            Ok::<u64, Failure>(*number)
        }
    })
}

/// Every runtime thread of the node and its edge computes for longer than the idle timeout. Only the connections keep
/// working meanwhile: they survive, and the calls in flight are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_survives_user_code_that_occupies_every_thread() {
    let (release, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let of_node = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
    let starting = of_node.spawn({
        let stage = spinning(&release, &started).concurrency(THREADS as u32).replicas(THREADS);
        async move {
            // The default idle timeout ends a silent connection.
            let edge = QuicEdge::bind(loopback(), IDENTITY.clone(), NetConfig::default()).unwrap();
            let node: Node = App::new().route("/spin", stage).start().await.unwrap();
            edge.open(node.client());
            (edge, node)
        }
    });
    let (edge, _node) = starting.await.unwrap();
    let builder = Client::builder().identity(IDENTITY.clone()).connect_timeout(LONG).start_up_wait(LONG);
    let client = builder.connect(&format!("quic://{}", edge.address())).await.unwrap();
    let calls: Vec<_> = (0..THREADS as u64)
        .map(|number| {
            let client = client.clone();
            let options = CallOptions::new().with_timeout(LONG);
            tokio::spawn(async move { client.call_with::<u64, u64>("/spin", number, options).await })
        })
        .collect();
    until(|| started.load(Ordering::SeqCst) == THREADS).await;
    // The time itself is under test here.
    tokio::time::sleep(NetConfig::default().tuning.idle_timeout + Duration::from_secs(2)).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "no call may end before the release");
    release.store(true, Ordering::SeqCst);
    for (number, call) in (0..).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), number);
    }
    assert_eq!((total(&edge, "connections_accepted"), edge.connections()), (1, 1), "the original connection");
    drop(client);
    of_node.shutdown_background();
}
