//! Many small and large calls over two hops of QUIC, with random cancels, deadlines, failures and panics: each has one
//! outcome, and no permit, stream, credit or byte is left on either side.
//!
//! `NET_CHAOS_CALLS` sets the number of calls (default 10,000), `CHAOS_SEED` repeats a run's choices.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_core::testing::env_number;
use callboard_core::{App, CallOptions, Caller, ErrorKind, Failure, Limits, Node, Pipeline, Stage};
use callboard_net::testing::{in_flight, in_flight_of};
use callboard_net::{Client, Cluster, StaticView};
use tokio::sync::Semaphore;

use crate::common::{LONG, ServingNode, builder, patient, until};
use crate::counting::{alone, live};

const CALLERS: u64 = 64;

/// One of them carries the hello.
const STREAMS: u32 = 64;

/// Permitted remains: tables and buffers that have grown, for any number of calls.
const SLACK: isize = 2 << 20;

/// The number of a call determines its kind.
fn nature(n: u64) -> u64 {
    fastrand::Rng::with_seed(n).u64(..)
}

/// The input: its number, sometimes with too many bytes for a shared stream.
fn input(n: u64) -> Vec<Value> {
    let bytes = if nature(n).is_multiple_of(50) { 40_000 } else { 10 };
    vec![Value::from(n as i64), Value::from(Bytes::from(vec![7; bytes]))]
}

fn options(n: u64) -> CallOptions {
    match nature(n) % 10 {
        0 => CallOptions::new().with_timeout(Duration::from_micros(500 + nature(n) % 3_000)),
        _ => CallOptions::new(),
    }
}

/// Works, fails, panics or takes its time.
fn random_outcomes() -> Stage<Vec<Value>, Vec<Value>> {
    Stage::each_async("fickle", |input: Arc<Vec<Value>>| async move {
        let Value::Int(n) = input[0] else { return Err(Failure::invalid_input("a number comes first")) };
        match nature(n as u64) % 1_000 {
            0..20 => Err(Failure::new("no")),
            20..300 => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(input.to_vec())
            }
            _ => Ok(input.to_vec()),
        }
    })
    .concurrency(256)
}

struct Storm {
    worker: ServingNode,
    gateway: ServingNode,
    cluster: Cluster,
    client: Client,
    gate: Arc<Semaphore>,
    started: Arc<AtomicUsize>,
}

impl Storm {
    async fn start() -> Self {
        let (gate, started): (Arc<Semaphore>, Arc<AtomicUsize>) = (Arc::new(Semaphore::new(0)), Arc::default());
        let held = Stage::each_async("held", {
            let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
            move |_: Arc<Value>| {
                let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
                async move {
                    started.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(1_u64)
                }
            }
        });
        let mut config = patient();
        config.tuning.max_streams = STREAMS;
        let worker = ServingNode::start_with(App::new().route("/storm", random_outcomes()), config.clone()).await;
        let storm = Pipeline::<Vec<Value>, Vec<Value>>::remote("fickle");
        let app = App::new().route("/storm", storm).route("/held", held.concurrency(STREAMS));
        let gateway = ServingNode::start_with(app.limits(Limits::default()), config.clone()).await;
        let cluster = Cluster::start(&gateway.edge, Arc::new(StaticView::try_new([worker.edge.address()]).unwrap()));
        gateway.node.handle().join(cluster.clone()).unwrap();
        until(|| cluster.connected_peers() == 1).await;
        let client = builder().tuning(config.tuning).connect(&gateway.url()).await.unwrap();
        Self { worker, gateway, cluster, client, gate, started }
    }

    /// Makes this number of calls; returns the counts: answered, failed, late or refused, and cancelled.
    async fn run(&self, seed: u64, calls: u64) -> [u64; 4] {
        let per_caller = calls.div_ceil(CALLERS);
        let tasks: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let client = self.client.clone();
                let first = seed.wrapping_mul(31).wrapping_add(caller * per_caller) >> 1;
                tokio::spawn(async move {
                    let mut outcomes = [0; 4];
                    for n in first..first + per_caller {
                        outcomes[call(&client, n).await] += 1;
                    }
                    outcomes
                })
            })
            .collect();
        let mut outcomes = [0; 4];
        for task in tasks {
            for (sum, count) in outcomes.iter_mut().zip(task.await.unwrap()) {
                *sum += count;
            }
        }
        assert_eq!(outcomes.iter().sum::<u64>(), CALLERS * per_caller);
        outcomes
    }

    async fn until_idle(&self) {
        self.worker.until_idle().await;
        self.gateway.until_idle().await;
        until(|| in_flight(&self.client) == (0, 0) && in_flight_of(&self.cluster) == (0, 0)).await;
        for node in [&self.worker.node, &self.gateway.node] {
            check_idle(node);
        }
    }

    /// A caller can open all of its streams. QUIC announces closed streams once an eighth has ended.
    async fn check_free_streams(&self) {
        let all = (STREAMS - STREAMS / 8 - 1) as usize;
        let large = Value::from(Bytes::from(vec![7; 40_000]));
        let calls: Vec<_> = (0..all)
            .map(|_| {
                let (client, large) = (self.client.clone(), large.clone());
                tokio::spawn(async move { client.call::<Value, u64>("/held", large).await })
            })
            .collect();
        until(|| self.started.load(Ordering::SeqCst) == all).await;
        self.gate.add_permits(STREAMS as usize);
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), 1);
        }
    }
}

/// Makes one call, and returns its kind of outcome.
async fn call(client: &Client, n: u64) -> usize {
    let sent = input(n);
    let calling = client.call_with::<_, Vec<Value>>("/storm", sent.clone(), options(n));
    let outcome = match nature(n) % 2 {
        // A caller that cancels at a random point of the call.
        0 => match tokio::time::timeout(Duration::from_micros(nature(n) / 2 % 3_000), calling).await {
            Ok(outcome) => outcome,
            Err(_) => return 3,
        },
        _ => tokio::time::timeout(LONG, calling).await.expect("every call ends"),
    };
    match outcome {
        Ok(output) => {
            assert_eq!(output, sent);
            0
        }
        Err(error) if error.kind() == ErrorKind::Failed => 1,
        Err(error) => {
            let expected = [ErrorKind::DeadlineExceeded, ErrorKind::Overloaded, ErrorKind::Unavailable];
            assert!(expected.contains(&error.kind()), "{error}");
            2
        }
    }
}

fn check_idle(node: &Node) {
    let description = node.describe();
    assert_eq!((description.in_flight, description.in_flight_bytes), (0, 0));
    assert!(description.stages.iter().all(|stage| stage.queued == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_cancels_leaks_nothing() {
    let _alone = alone().await;
    let calls = env_number("NET_CHAOS_CALLS", 10_000);
    let seed = env_number("CHAOS_SEED", u64::from(std::process::id()));
    println!("CHAOS_SEED={seed} NET_CHAOS_CALLS={calls}");
    let storm = Storm::start().await;
    // Everything that grows with the number of callers has grown.
    storm.run(seed.wrapping_add(1), 2_000).await;
    storm.until_idle().await;
    let before = live();
    let outcomes = storm.run(seed, calls).await;
    println!("ok, failed, late or refused, given up: {outcomes:?}");
    assert!(outcomes[0] > 0 && outcomes[3] > 0, "some outcome is missing: {outcomes:?}");
    storm.until_idle().await;
    let left = live() - before;
    println!("{left} bytes more than before");
    assert!(left < SLACK, "{left} bytes are left");
    storm.check_free_streams().await;
    storm.until_idle().await;
}
