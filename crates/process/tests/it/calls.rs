//! Children that call routes of their node.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{Map, Value};
use callboard_core::{App, CallContext, CallError, CallOptions, Failure, Node, Stage, StreamStage};
use callboard_process::stage;
use futures_util::stream;
use tokio::sync::{Notify, Semaphore};

use super::{config, restarts, until};

const MANY: u64 = 500;

fn asked(route: &str, more: &[(&str, Value)]) -> Value {
    let fixed = [("route", Value::from(route)), ("input", Value::from("x")), ("count", Value::from(1))];
    let entries = fixed.iter().chain(more).map(|(key, value)| ((*key).to_owned(), value.clone()));
    Value::Map(entries.collect::<Map>())
}

fn calling() -> Stage<Value, Value> {
    stage("child", &config("calls"))
}

fn app(child: Stage<Value, Value>) -> App {
    let tell = |_: &Value, context: &CallContext| {
        let remaining = context.deadline().remaining(callboard_core::Instant::now());
        let texts = [context.request_id(), context.caller(), context.traceparent().as_deref()]
            .map(|text| Value::from(text.unwrap_or("nothing")));
        Ok(Value::List(texts.into_iter().chain([Value::from(remaining < Duration::from_secs(5))]).collect()))
    };
    App::new()
        .route("/child", child)
        .route("/echo", Stage::each("echo", |item: &Value| Ok(item.clone())))
        .route("/tell", Stage::each_with_context("tell", tell))
}

/// Tells when it is dropped.
struct Tells(Arc<Notify>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A stage that waits until it is told, and whose call shows by its guard when it is cancelled.
pub(crate) fn waiting(begun: &Arc<Notify>, left: &Arc<Notify>) -> Stage<Value, Value> {
    let (begun, left) = (Arc::clone(begun), Arc::clone(left));
    Stage::each_async("wait", move |_: Arc<Value>| {
        let (begun, left) = (Arc::clone(&begun), Tells(Arc::clone(&left)));
        async move {
            begun.notify_one();
            let _left = left;
            std::future::pending::<()>().await;
            Ok(Value::Null)
        }
    })
}

/// Sooner than by the deadline of a call.
pub(crate) async fn notified(notify: &Notify) {
    tokio::time::timeout(Duration::from_secs(10), notify.notified()).await.expect("within 10 s");
}

async fn results(node: &Node, asked: Value) -> Result<Vec<Value>, CallError> {
    let answer: Value = node.client().call("/child", asked).await?;
    Ok(answer.as_list().unwrap().to_vec())
}

fn kind(result: &Value) -> &str {
    result.as_map().unwrap().get("kind").unwrap().as_str().unwrap()
}

#[tokio::test]
async fn a_call_of_a_child_has_the_deadline_trace_and_caller_of_its_item() {
    let node = app(calling()).start().await.unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = CallOptions::new().with_timeout(Duration::from_secs(4)).with_request_id("r-1");
    let options = options.with_caller("a key").with_traceparent(trace);
    for whole in [Value::Null, Value::from(true)] {
        let asked = asked("/tell", &[("whole", whole)]);
        let told: Value = node.client().call_with("/child", asked, options.clone()).await.unwrap();
        let expected = ["r-1", "a key", trace].map(Value::from).into_iter().chain([Value::from(true)]).collect();
        assert_eq!(told, Value::List(vec![Value::List(expected)]));
    }
}

#[tokio::test]
async fn a_call_for_a_whole_batch_has_a_caller_only_if_all_items_have_the_same() {
    let node = app(calling().max_batch_size(2).max_delay(Duration::from_secs(60))).start().await.unwrap();
    for (callers, seen) in [(["ada", "ada"], "ada"), (["ada", "bob"], "nothing")] {
        let calls = callers.map(|caller| {
            let (client, options) = (node.client(), CallOptions::new().with_caller(caller));
            async move {
                let asked = asked("/tell", &[("whole", Value::from(true))]);
                client.call_with::<_, Value>("/child", asked, options).await.unwrap()
            }
        });
        for told in futures_util::future::join_all(calls).await {
            let told = told.as_list().unwrap()[0].as_list().unwrap().to_vec();
            assert_eq!(told[1], Value::from(seen), "{callers:?}");
        }
    }
}

/// They would take 10 s if a result waited for the next look at the callers of the batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_wakes_the_thread_that_waits_for_the_child() {
    let node = app(calling()).start().await.unwrap();
    let asked = asked("/echo", &[("count", Value::from(MANY)), ("after", Value::from(true))]);
    let all = tokio::time::timeout(Duration::from_secs(5), results(&node, asked)).await.expect("in time").unwrap();
    assert_eq!(all, vec![Value::from("x"); MANY as usize]);
}

#[tokio::test]
async fn calls_at_the_same_time_have_one_result_each() {
    let node = app(calling()).start().await.unwrap();
    let all = results(&node, asked("/echo", &[("count", Value::from(2000))])).await.unwrap();
    assert_eq!(all.len(), 2000);
    let (good, refused): (Vec<_>, Vec<_>) = all.iter().partition(|result| **result == Value::from("x"));
    assert!(good.len() >= 256 && refused.iter().all(|result| kind(result) == "overloaded"), "{refused:?}");
    assert_eq!((node.describe().in_flight, restarts(&node)), (0, 0));
}

/// Each item has fewer calls than a call may have. The last one finds all places of the child taken.
#[tokio::test]
async fn a_child_has_at_most_1024_calls_open_for_all_of_its_items() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let child = calling().max_batch_size(6).max_delay(Duration::from_secs(60));
    let node = app(child).route("/wait", waiting(&begun, &left)).start().await.unwrap();
    let forgotten = |count: u64| asked("/wait", &[("count", Value::from(count)), ("forget", Value::from(true))]);
    let items = [forgotten(250), forgotten(250), forgotten(250), forgotten(250), forgotten(24), asked("/wait", &[])];
    let answers = futures_util::future::join_all(items.map(|item| results(&node, item)));
    let answers = tokio::time::timeout(Duration::from_secs(20), answers).await.expect("the last call is refused");
    let refused = answers[5].as_ref().unwrap()[0].as_map().unwrap().clone();
    assert_eq!(refused.get("kind"), Some(&Value::from("overloaded")));
    assert_eq!(refused.get("message"), Some(&Value::from("1024 calls are open already")));
    assert_eq!(refused.get("retryable"), Some(&Value::from(true)));
    assert!(answers[..5].iter().all(|answer| answer.as_ref().unwrap().is_empty()));
}

#[tokio::test]
async fn what_cannot_be_called_is_an_error_of_the_call_alone() {
    let node = app(calling()).start().await.unwrap();
    for (asked, kind_of_it) in [
        (asked("/nowhere", &[]), "not_found"),
        // The only replica would wait for itself.
        (asked("/child", &[]), "failed"),
        (asked("/echo", &[("batch", Value::from(77))]), "cancelled"),
    ] {
        let all = results(&node, asked).await.unwrap();
        assert_eq!(kind(&all[0]), kind_of_it, "{all:?}");
        let is_loop = all[0].as_map().unwrap().get("status") == Some(&Value::from(508));
        assert_eq!(is_loop, kind_of_it == "failed", "{all:?}");
    }
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_call_ends_when_the_caller_of_its_item_leaves() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let node = app(calling()).route("/wait", waiting(&begun, &left)).start().await.unwrap();
    for whole in [Value::Null, Value::from(true)] {
        let client = node.client();
        let asked = asked("/wait", &[("whole", whole)]);
        let outer = tokio::spawn(async move { client.call::<Value, Value>("/child", asked).await });
        notified(&begun).await;
        outer.abort();
        notified(&left).await;
    }
    assert_eq!(results(&node, asked("/echo", &[])).await.unwrap(), [Value::from("x")], "the child lives");
    until("nothing is in flight", || node.describe().in_flight == 0).await;
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_call_of_all_items_lives_as_long_as_one_of_their_callers() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let child = calling().max_batch_size(2).max_delay(Duration::from_secs(60));
    let node = app(child).route("/wait", waiting(&begun, &left)).start().await.unwrap();
    let asked = asked("/wait", &[("whole", Value::from(true))]);
    let call = |asked| {
        let client = node.client();
        tokio::spawn(async move { client.call::<Value, Value>("/child", asked).await })
    };
    let (first, second) = (call(asked.clone()), call(asked));
    notified(&begun).await;
    first.abort();
    let early = tokio::time::timeout(Duration::from_millis(200), left.notified()).await;
    assert!(early.is_err(), "the second caller still waits");
    second.abort();
    notified(&left).await;
}

/// The call waits in a queue for the caller with the latest deadline, and is made again for the other one.
#[tokio::test]
async fn a_call_of_all_items_is_made_again_when_the_caller_of_a_queued_one_leaves() {
    let free = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&free);
    let queue = Stage::each_async("queue", move |item: Arc<Value>| {
        let permits = Arc::clone(&permits);
        async move {
            permits.acquire().await?.forget();
            Ok((*item).clone())
        }
    });
    let child = calling().max_batch_size(2).max_delay(Duration::from_secs(60));
    let node = app(child).route("/queue", queue.concurrency(1)).start().await.unwrap();
    let call = |route: &'static str, item: Value, seconds: u64| {
        let client = node.client();
        let options = CallOptions::new().with_timeout(Duration::from_secs(seconds));
        tokio::spawn(async move { client.call_with::<Value, Value>(route, item, options).await })
    };
    let queue = || node.describe().stages.into_iter().find(|stage| stage.health.name.as_str() == "queue").unwrap();
    let first = call("/queue", Value::from("first"), 30);
    until("it runs", || queue().replicas[0].busy).await;
    let whole = asked("/queue", &[("whole", Value::from(true))]);
    let (stays, leaves) = (call("/child", whole.clone(), 20), call("/child", whole, 25));
    until("their call is queued", || queue().queued == 1).await;
    leaves.abort();
    until("the caller has left", || node.describe().in_flight == 2).await;
    free.add_permits(9);
    assert_eq!(first.await.unwrap().unwrap(), Value::from("first"));
    assert_eq!(stays.await.unwrap().unwrap(), Value::List(vec![Value::from("x")]));
}

#[tokio::test]
async fn a_call_that_the_child_gives_up_ends() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let seen = Arc::clone(&begun);
    let has_begun = Stage::each_async("begun", move |item: Arc<Value>| {
        let seen = Arc::clone(&seen);
        async move {
            seen.notified().await;
            Ok((*item).clone())
        }
    });
    let app = app(calling()).route("/wait", waiting(&begun, &left)).route("/begun", has_begun);
    let node = app.start().await.unwrap();
    let asked = asked("/wait", &[("give_up", Value::from("/begun")), ("then", Value::from("/wait"))]);
    let client = node.client();
    let outer = tokio::spawn(async move { client.call::<Value, Value>("/child", asked).await });
    notified(&left).await;
    assert!(!outer.is_finished(), "the second call of the child still waits");
}

#[tokio::test]
async fn the_calls_of_a_batch_end_with_it() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let node = app(calling()).route("/wait", waiting(&begun, &left)).start().await.unwrap();
    let forgotten = asked("/wait", &[("forget", Value::from(true)), ("count", Value::from(3))]);
    assert_eq!(results(&node, forgotten).await.unwrap(), []);
    until("all are over", || node.describe().stages.iter().all(|stage| !stage.replicas[0].busy)).await;
    assert_eq!(results(&node, asked("/echo", &[])).await.unwrap(), [Value::from("x")]);
}

#[tokio::test]
async fn an_id_that_comes_twice_ends_the_child() {
    let node = app(calling()).start().await.unwrap();
    let error = results(&node, asked("/echo", &[("same_id", Value::from(true)), ("count", Value::from(2))])).await;
    let message = error.unwrap_err().to_string();
    assert!(message.contains("an id above those of its earlier calls"), "{message}");
    assert_eq!(results(&node, asked("/echo", &[])).await.unwrap(), [Value::from("x")]);
}

// ---- Streams --------------------------------------------------------------------------------------------------------

/// The outputs of a stream of the tests.
const OUTPUTS: usize = 1_000;

/// Counts what it makes. It fails at the end if its input is `fail`.
fn numbers(made: &Arc<AtomicUsize>) -> StreamStage<Value, Value> {
    let made = Arc::clone(made);
    StreamStage::each("numbers", move |input: &Value| {
        let made = Arc::clone(&made);
        let end = (*input == Value::from("fail")).then(|| Err(Failure::new("no more").with_status(409)));
        let count = move |number: usize| {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(Value::from(number as u64))
        };
        Box::pin(stream::iter((0..OUTPUTS).map(count).chain(end)))
    })
}

async fn streaming() -> (Node, Arc<AtomicUsize>) {
    let made = Arc::default();
    let node = app(calling()).route_streaming("/numbers", numbers(&made)).start().await.unwrap();
    (node, made)
}

fn counted(count: usize) -> Vec<Value> {
    (0..count).map(|number| Value::from(number as u64)).collect()
}

#[tokio::test]
async fn a_child_reads_a_stream_as_it_gives_credit() {
    let (node, _) = streaming().await;
    for credit in [1_u64, 16] {
        let asked = asked("/numbers", &[("credit", Value::from(credit)), ("gives", Value::from(1))]);
        let mut all = results(&node, asked).await.unwrap();
        assert_eq!(all.pop(), Some(Value::from("end")));
        assert_eq!(all, counted(OUTPUTS));
    }
    assert_eq!((node.describe().in_flight, restarts(&node)), (0, 0));
}

#[tokio::test]
async fn a_stream_that_its_child_does_not_read_pauses_where_it_is_made() {
    let (node, made) = streaming().await;
    let more = [("credit", 2), ("reads", 2)].map(|(key, count)| (key, Value::from(count)));
    let asked = asked("/numbers", &[more.as_slice(), &[("then", Value::from("/echo"))]].concat());
    assert_eq!(results(&node, asked).await.unwrap(), counted(2));
    let made = made.load(Ordering::Relaxed);
    assert!(made < 100, "{made} of {OUTPUTS}");
    // It has ended with its batch.
    until("nothing is in flight", || node.describe().in_flight == 0).await;
    until("all are over", || node.describe().stages.iter().all(|stage| !stage.replicas[0].busy)).await;
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_stream_pauses_as_well_when_the_bytes_that_its_child_takes_are_unread() {
    let (node, made) = streaming().await;
    let more = [("credit", 1024), ("credit_bytes", 1), ("reads", 1)].map(|(key, count)| (key, Value::from(count)));
    let asked = asked("/numbers", &[more.as_slice(), &[("then", Value::from("/echo"))]].concat());
    assert_eq!(results(&node, asked).await.unwrap(), counted(1));
    let made = made.load(Ordering::Relaxed);
    assert!(made < 100, "{made} of {OUTPUTS}");
}

#[tokio::test]
async fn the_error_of_a_stream_comes_after_its_outputs() {
    let (node, _) = streaming().await;
    let more = [("credit", Value::from(16)), ("gives", Value::from(1)), ("input", Value::from("fail"))];
    let mut all = results(&node, asked("/numbers", &more)).await.unwrap();
    let error = all.pop().unwrap();
    assert_eq!((kind(&error), all), ("failed", counted(OUTPUTS)));
    assert_eq!(error.as_map().unwrap().get("status"), Some(&Value::from(409)));
}

#[tokio::test]
async fn a_stream_ends_when_the_caller_of_its_item_leaves() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let endless = stream_waiting(&begun, &left);
    let node = app(calling()).route_streaming("/endless", endless).start().await.unwrap();
    for whole in [Value::Null, Value::from(true)] {
        let client = node.client();
        let asked = asked("/endless", &[("whole", whole), ("credit", Value::from(16))]);
        let outer = tokio::spawn(async move { client.call::<Value, Value>("/child", asked).await });
        notified(&begun).await;
        outer.abort();
        notified(&left).await;
    }
    assert_eq!(results(&node, asked("/echo", &[])).await.unwrap(), [Value::from("x")], "the child lives");
    until("nothing is in flight", || node.describe().in_flight == 0).await;
    assert_eq!(restarts(&node), 0);
}

/// As [`waiting`], for a stream.
pub(crate) fn stream_waiting(begun: &Arc<Notify>, left: &Arc<Notify>) -> StreamStage<Value, Value> {
    let (begun, left) = (Arc::clone(begun), Arc::clone(left));
    StreamStage::each("endless", move |_: &Value| {
        let (begun, left) = (Arc::clone(&begun), Tells(Arc::clone(&left)));
        Box::pin(stream::once(async move {
            begun.notify_one();
            let _left = left;
            std::future::pending().await
        }))
    })
}

#[tokio::test]
async fn a_call_of_a_child_may_have_a_time_of_its_own() {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let app = app(calling()).route("/wait", waiting(&begun, &left));
    let node = app.route_streaming("/endless", stream_waiting(&begun, &left)).start().await.unwrap();
    let timeout = ("timeout_ms", Value::from(50));
    for asked in [asked("/wait", slice::from_ref(&timeout)), asked("/endless", &[timeout, ("credit", Value::from(1))])]
    {
        let all = results(&node, asked).await.unwrap();
        assert_eq!(kind(&all[0]), "deadline_exceeded", "{all:?}");
        notified(&left).await;
    }
}

#[tokio::test]
async fn a_child_that_takes_streams_gets_the_result_of_a_route_that_has_one() {
    let (node, _) = streaming().await;
    let credit = ("credit", Value::from(4));
    assert_eq!(results(&node, asked("/echo", slice::from_ref(&credit))).await.unwrap(), [Value::from("x")]);
    for (route, kind_of_it) in [("/nowhere", "not_found"), ("/child", "failed")] {
        assert_eq!(kind(&results(&node, asked(route, slice::from_ref(&credit))).await.unwrap()[0]), kind_of_it);
    }
    // One that takes none.
    let refused = results(&node, asked("/numbers", &[])).await.unwrap();
    assert_eq!(kind(&refused[0]), "invalid_input", "{refused:?}");
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_child_that_asks_for_too_many_outputs_or_none_is_ended() {
    let (node, _) = streaming().await;
    for more in [
        vec![("credit", Value::from(1025))],
        vec![("credit", Value::from(0))],
        vec![("credit", Value::from(1024)), ("gives", Value::from(1024))],
        vec![("credit", Value::from(16)), ("credit_bytes", Value::from(0))],
        vec![("credit", Value::from(16)), ("gives", Value::from(1)), ("gives_bytes", Value::from(1 << 30))],
    ] {
        let error = results(&node, asked("/numbers", &more)).await.unwrap_err().to_string();
        assert!(error.contains("it asked for more than 1024 outputs of a call"), "{error}");
    }
}
