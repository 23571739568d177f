//! Children that call routes of their node.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Map, Value};
use callboard_core::{App, CallContext, CallError, CallOptions, Node, Stage};
use callboard_process::stage;
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

/// A stage that waits until it is told, and whose call shows by its guard when it is cancelled.
pub(crate) fn waiting(begun: &Arc<Notify>, left: &Arc<Notify>) -> Stage<Value, Value> {
    struct Tells(Arc<Notify>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
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
