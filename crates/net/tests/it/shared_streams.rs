//! Calls that share a stream: which calls do, and that they share nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{DecodeLimits, Value};
use callboard_core::{App, CallError, CallOptions, Caller, Limits, Stage};
use callboard_net::testing::in_flight;
use callboard_net::{CallFailure, Client, NetConfig};
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::common::{LONG, ServingNode, builder, patient, until};

/// A node with a gate, and the number of runs of its stages.
struct Gate {
    open: Arc<Semaphore>,
    started: Arc<AtomicUsize>,
    shouted: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> (Self, App) {
        let (open, started, shouted) = (Arc::new(Semaphore::new(0)), Arc::default(), Arc::default());
        let gate = Self { open: Arc::clone(&open), started: Arc::clone(&started), shouted: Arc::clone(&shouted) };
        let held = Stage::each_async("held", move |n: Arc<i64>| {
            let (open, started) = (Arc::clone(&open), Arc::clone(&started));
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                Ok(*n)
            }
        });
        let shout = Stage::each("shout", move |text: &String| {
            shouted.fetch_add(1, Ordering::SeqCst);
            Ok(text.to_uppercase())
        });
        let large = Stage::each("large", |bytes: &usize| Ok(Value::from(bytes::Bytes::from(vec![7_u8; *bytes]))));
        let app = App::new().route("/held", held.concurrency(64)).route("/shout", shout).route("/large", large);
        (gate, app.limits(Limits { max_in_flight: 256, ..Limits::default() }))
    }

    /// A call has taken the only stream, so that later calls gather.
    async fn occupied(&self, client: &Client) -> JoinHandle<Result<i64, CallError>> {
        let calling = {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, i64>("/held", 0).await })
        };
        until(|| self.started.load(Ordering::SeqCst) == 1).await;
        calling
    }
}

/// One stream besides that of the hello.
fn narrow() -> NetConfig {
    let mut config = patient();
    config.tuning.max_streams = 1;
    config
}

fn streams(served: &ServingNode) -> u64 {
    let metrics = served.edge.metrics();
    let line = metrics.lines().find(|line| line.starts_with("callboard_net_streams_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn shout(client: &Client, text: &str) -> JoinHandle<Result<String, CallError>> {
    let (client, text) = (client.clone(), text.to_owned());
    tokio::spawn(async move { client.call("/shout", text).await })
}

async fn until_waiting(client: &Client, calls: usize) {
    until(|| in_flight(client).0 == calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_together_share_a_stream() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let client = served.client().await;
    let first = gate.occupied(&client).await;
    let before = streams(&served);
    let calls: Vec<_> = (0..60).map(|n| shout(&client, &format!("a{n}"))).collect();
    until_waiting(&client, 60).await;
    gate.open.add_permits(1);
    assert_eq!(first.await.unwrap().unwrap(), 0);
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), format!("A{n}"));
    }
    // No stream has more than 32 calls.
    assert_eq!(streams(&served) - before, 2);
    served.until_idle().await;
    until(|| in_flight(&client) == (0, 0)).await;
}

/// A future that was polled once may stay unpolled for long, for example among many in a stream with a slow reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpolled_caller_delays_no_other_caller() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let others: Vec<_> = (0..8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, i64>("/held", n).await })
        })
        .collect();
    until(|| gate.started.load(Ordering::SeqCst) == 8).await;
    let mut still = Box::pin(client.call::<_, String>("/shout", "still".to_owned()));
    assert!(still.as_mut().now_or_never().is_none());
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    assert_eq!(still.await.unwrap(), "STILL");
    gate.open.add_permits(8);
    for other in others {
        other.await.unwrap().unwrap();
    }
    served.until_idle().await;
}

/// As above, with more calls than the queue has places: no place is reserved for futures that are not polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpolled_callers_at_a_full_queue_delay_no_other_caller() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let client = served.client().await;
    let first = gate.occupied(&client).await;
    let mut still: Vec<_> =
        (0..4_000).map(|_| Box::pin(client.call::<_, String>("/shout", "still".to_owned()))).collect();
    // Each in its own poll: a task has a coop budget.
    for call in &mut still {
        tokio::task::unconstrained(std::future::poll_fn(|context| {
            assert!(call.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        }))
        .await;
    }
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    drop(still);
    served.until_idle().await;
}

/// The node waits for the first call on every stream below one that it knows, and resets silent ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_caller_has_left_is_released() {
    let (gate, app) = Gate::new();
    let mut config = patient();
    config.tuning.max_streams = 2;
    config.head_timeout = Duration::from_millis(50);
    let served = ServingNode::start_with(app, config).await;
    let client = served.client().await;
    let first = gate.occupied(&client).await;
    let held = client.clone();
    let second = tokio::spawn(async move { held.call::<_, i64>("/held", 1).await });
    until(|| gate.started.load(Ordering::SeqCst) == 2).await;
    let left = shout(&client, "left");
    until_waiting(&client, 1).await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    gate.open.add_permits(2);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    served.until_idle().await;
    // On its own stream, after the stream of the cancelled call.
    let long = "a".repeat(100_000);
    assert_eq!(client.call::<_, String>("/shout", long.clone()).await.unwrap(), long.to_uppercase());
    served.until_idle().await;
    assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    assert!(!served.edge.metrics().contains("reason=\"silent\""), "{}", served.edge.metrics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_neither_for_more_calls_nor_for_earlier_ones() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let first = gate.occupied(&client).await;
    for _ in 0..20 {
        assert_eq!(client.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
    }
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();
    served.until_idle().await;
}

/// The first of several callers sends for all of them, even if it is cancelled.
#[tokio::test]
async fn calls_are_sent_although_the_first_of_them_is_cancelled() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let calls: Vec<_> = (0..4)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, i64>("/held", n).await })
        })
        .collect();
    until(|| gate.started.load(Ordering::SeqCst) == 4).await;
    let call = |text: &str| Box::pin(client.call::<_, String>("/shout", text.to_owned()));
    let (mut first, mut second) = (call("first"), call("second"));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    assert_eq!(tokio::time::timeout(LONG, second).await.unwrap().unwrap(), "SECOND");
    gate.open.add_permits(4);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    served.until_idle().await;
    // It was not sent.
    assert_eq!(gate.shouted.load(Ordering::SeqCst), 1);
}

/// On one stream: calls that succeed, are refused, are slow, are late, have a large outcome, or were cancelled before
/// they were sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outcome_of_one_call_does_not_affect_others_on_its_stream() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let limits = DecodeLimits { max_bytes: 100_000, ..DecodeLimits::default() };
    let client = builder().attempts(1).decode_limits(limits).connect(&served.url()).await.unwrap();
    let first = gate.occupied(&client).await;
    let before = streams(&served);
    let call = |route: &'static str, n: i64, options: CallOptions| {
        let client = client.clone();
        tokio::spawn(async move { client.call_with::<_, Value>(route, n, options).await })
    };
    let given_up = shout(&client, "never");
    until_waiting(&client, 1).await;
    let refused = call("/nowhere", 1, CallOptions::new());
    let slow = call("/held", 2, CallOptions::new());
    let too_large = call("/large", 500_000, CallOptions::new());
    let wrong = call("/shout", 7, CallOptions::new());
    until_waiting(&client, 5).await;
    given_up.abort();
    let well: Vec<_> = (0..10).map(|_| shout(&client, "a")).collect();
    until_waiting(&client, 14).await;
    let late = call("/held", 3, CallOptions::new().with_timeout(Duration::from_secs(2)));
    // On a busy machine it may be late before it is sent.
    until(|| in_flight(&client).0 == 15 || late.is_finished()).await;
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();

    for call in well {
        assert_eq!(tokio::time::timeout(LONG, call).await.unwrap().unwrap().unwrap(), "A");
    }
    let trouble = async |call: JoinHandle<Result<Value, CallError>>| {
        let error = tokio::time::timeout(LONG, call).await.unwrap().unwrap().unwrap_err();
        (CallFailure::classify(&error), error.was_started(), error.error_type().map(str::to_owned))
    };
    assert_eq!(trouble(refused).await, (CallFailure::NoSuchRoute, false, None));
    assert_eq!(trouble(wrong).await, (CallFailure::Request, false, None));
    let of_the_limit = Some("reply_too_large".to_owned());
    assert_eq!(trouble(too_large).await, (CallFailure::Infrastructure, true, of_the_limit));
    assert_eq!(trouble(late).await.0, CallFailure::Deadline);
    // The late call may still run, and take one.
    gate.open.add_permits(2);
    assert_eq!(slow.await.unwrap().unwrap(), Value::from(2));
    assert_eq!(streams(&served) - before, 1);
    assert_eq!(gate.shouted.load(Ordering::SeqCst), 10);
    served.until_idle().await;
    until(|| in_flight(&client) == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_shared_stream_can_be_cancelled_while_it_runs() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let client = served.client().await;
    let first = gate.occupied(&client).await;
    let held: Vec<_> = (1..=4_i64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, i64>("/held", n).await })
        })
        .collect();
    until_waiting(&client, 4).await;
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();
    until(|| gate.started.load(Ordering::SeqCst) == 5).await;
    for call in &held[..3] {
        call.abort();
    }
    let discarded = || served.node.client().metrics();
    let line = "callboard_stage_discarded_total{stage=\"held\",place=\"worker\",reason=\"cancelled\"} 3";
    until(|| discarded().contains(line)).await;
    gate.open.add_permits(1);
    let [.., last] = <[_; 4]>::try_from(held).unwrap();
    assert_eq!(last.await.unwrap().unwrap(), 4);
    served.until_idle().await;
    until(|| in_flight(&client) == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_reports_for_each_call_whether_it_was_sent() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let client = builder().attempts(1).connect(&served.url()).await.unwrap();
    let first = gate.occupied(&client).await;
    let held = |n: i64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<_, i64>("/held", n).await })
    };
    let sent: Vec<_> = (1..=3).map(held).collect();
    until_waiting(&client, 3).await;
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();
    until(|| gate.started.load(Ordering::SeqCst) == 4).await;
    let waiting: Vec<_> = (4..=6).map(held).collect();
    until_waiting(&client, 3).await;
    // The node stays: its end would be an answer.
    let ServingNode { node: _node, edge } = served;
    drop(edge);
    for (calls, trouble) in [(sent, CallFailure::ConnectionLost), (waiting, CallFailure::NeverStarted)] {
        for call in calls {
            let error = tokio::time::timeout(LONG, call).await.unwrap().unwrap().unwrap_err();
            assert_eq!(CallFailure::classify(&error), trouble, "{error}");
        }
    }
    until(|| in_flight(&client) == (0, 0)).await;
}

/// Calls with large replies would delay others: they get their own streams once that is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_large_answers_get_their_own_streams() {
    let (gate, app) = Gate::new();
    let served = ServingNode::start_with(app, narrow()).await;
    let client = served.client().await;
    let _: Value = client.call("/large", 100_000).await.unwrap();
    let first = gate.occupied(&client).await;
    let before = streams(&served);
    let large: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, Value>("/large", 100_000).await })
        })
        .collect();
    let small: Vec<_> = (0..3).map(|_| shout(&client, "a")).collect();
    until_waiting(&client, 3).await;
    gate.open.add_permits(1);
    first.await.unwrap().unwrap();
    for call in large {
        assert!(call.await.unwrap().is_ok());
    }
    for call in small {
        assert_eq!(call.await.unwrap().unwrap(), "A");
    }
    assert_eq!(streams(&served) - before, 4);
}
