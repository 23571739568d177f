//! Replicas of this test program that call routes of their node. Each test has one isolated stage: the replica runs the
//! test up to it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::{
    App, Batch, CallContext, CallError, CallOptions, ErrorKind, Failure, Instant, LocalClient, Node, Replica, Stage,
    StreamStage, Worker,
};
use callboard_process::Isolate as _;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::calls::{notified, stream_waiting, waiting};
use crate::isolate::only_this_test;
use crate::{restarts, until};

/// A route, and the input for it.
type Asked = (String, u64);

/// Calls the route with a thread for each item, all at the same time.
struct Blocking(LocalClient);

impl Worker for Blocking {
    type In = Asked;
    type Out = Value;

    fn call(&mut self, batch: Batch<Asked>) -> Vec<Result<Value, Failure>> {
        let call = |(index, (route, input)): (usize, &Asked)| match route.strip_prefix("alone ") {
            Some(route) => Ok(self.0.blocking().call(route, *input)?),
            None => Ok(batch.context(index).client()?.blocking().call(route, *input)?),
        };
        std::thread::scope(|scope| {
            let calls: Vec<_> = batch.iter().enumerate().map(|item| scope.spawn(move || call(item))).collect();
            calls.into_iter().map(|call| call.join().expect("no call panics")).collect()
        })
    }
}

fn blocking() -> Stage<Asked, Value> {
    let build = |replica: &Replica| Ok(Blocking(replica.client()));
    Stage::worker("calls", build).max_batch_size(32).isolate_with(only_this_test)
}

fn asynchronous() -> Stage<Asked, Value> {
    let call = async |asked: Arc<Asked>, context: CallContext| Ok(context.client()?.call(&asked.0, asked.1).await?);
    Stage::each_async_with_context("calls", move |asked, context| Box::pin(call(asked, context)))
        .concurrency(64)
        .isolate_with(only_this_test)
}

fn app(calling: Stage<Asked, Value>) -> App {
    let tell = |_: &u64, context: &CallContext| {
        let is_soon = context.deadline().remaining(Instant::now()) < Duration::from_secs(5);
        let trace = context.traceparent().is_some_and(|trace| trace.contains("0af7651916cd43dd8448eb211c80319c"));
        let (header, query, path) = (context.header("x-city"), context.query("q"), context.path());
        let request = format!("{header:?} {query:?} {path:?}");
        let caller = (context.request_id(), context.caller(), context.tag("lang"));
        Ok(format!("{caller:?} {request} {trace} {is_soon}"))
    };
    let refuse = |_: &u64| Err::<u64, _>(Failure::new("no tea").with_status(418).with_type("Teapot").with_details(7));
    App::new()
        .route("/calls", calling)
        .route("/double", Stage::each("double", |number: &u64| Ok(2 * number)))
        .route("/tell", Stage::each_with_context("tell", tell))
        .route("/refuse", Stage::each("refuse", refuse))
}

async fn call(node: &Node, route: &str, input: u64, options: CallOptions) -> Result<Value, CallError> {
    node.client().call_with("/calls", (route.to_owned(), input), options).await
}

async fn a_call_has_the_deadline_trace_and_caller_of_its_item(calling: Stage<Asked, Value>) {
    let node = app(calling).start().await.unwrap();
    let options = CallOptions::new().with_timeout(Duration::from_secs(4)).with_request_id("r-1").with_caller("ada");
    let options = options.with_tag("lang", "fr").with_header("x-city", "Lima").with_query("q", "7").with_path("/a");
    let options = options.with_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let told = call(&node, "/tell", 0, options).await.unwrap();
    assert_eq!(
        told.as_str().unwrap(),
        r#"(Some("r-1"), Some("ada"), Some("fr")) Some("Lima") Some("7") Some("/a") true true"#
    );
}

#[tokio::test]
async fn a_call_of_a_replica_has_the_deadline_trace_and_caller_of_its_item() {
    a_call_has_the_deadline_trace_and_caller_of_its_item(blocking()).await;
}

#[tokio::test]
async fn a_call_of_asynchronous_code_has_the_deadline_trace_and_caller_of_its_item() {
    a_call_has_the_deadline_trace_and_caller_of_its_item(asynchronous()).await;
}

#[tokio::test]
async fn errors_of_the_calls_of_a_replica_arrive_as_in_process() {
    let node = app(blocking()).start().await.unwrap();
    let none = CallOptions::new;
    let refused = call(&node, "/refuse", 0, none()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.status(), refused.message()), (ErrorKind::Failed, Some(418), "no tea"));
    assert_eq!((refused.error_type(), refused.details()), (Some("Teapot"), Some(&Value::from(7))));
    assert_eq!(refused.stage(), Some("calls > refuse"));
    let missing = call(&node, "/missing", 0, none()).await.unwrap_err();
    assert_eq!((missing.kind(), missing.message()), (ErrorKind::NotFound, "there is no route `/missing`"));
    // All replicas of the stage could wait for the stage.
    let looped = call(&node, "/calls", 0, none()).await.unwrap_err();
    assert_eq!((looped.kind(), looped.status()), (ErrorKind::Failed, Some(508)), "{looped}");
    let alone = call(&node, "alone /double", 1, none()).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Unavailable, "{alone}");
    assert!(alone.message().contains("within the call of an item only"), "{alone}");
    assert_eq!(call(&node, "/double", 21, none()).await.unwrap(), Value::from(42));
    assert_eq!(restarts(&node), 0);
}

async fn many_calls_keep_their_results(calling: Stage<Asked, Value>) {
    let node = app(calling).start().await.unwrap();
    let answers = join_all((0..500).map(|number| call(&node, "/double", number, CallOptions::new()))).await;
    for (number, answer) in (0..).zip(answers) {
        assert_eq!(answer.unwrap(), Value::from(2 * number));
    }
    assert_eq!(restarts(&node), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_of_a_replica_at_once_keep_their_results() {
    many_calls_keep_their_results(blocking()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_of_asynchronous_code_at_once_keep_their_results() {
    many_calls_keep_their_results(asynchronous()).await;
}

async fn a_caller_that_leaves_takes_the_call_with_it(calling: Stage<Asked, Value>) {
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let node = app(calling).route("/wait", waiting(&begun, &left)).start().await.unwrap();
    let client = node.client();
    let caller = tokio::spawn(async move { client.call::<_, Value>("/calls", ("/wait".to_owned(), 0_u64)).await });
    notified(&begun).await;
    caller.abort();
    notified(&left).await;
    // The code has ended, and its replica has room.
    assert_eq!(call(&node, "/double", 1, CallOptions::new()).await.unwrap(), Value::from(2));
    assert_eq!(restarts(&node), 0);
}

#[tokio::test]
async fn a_caller_that_leaves_takes_the_call_of_a_replica_with_it() {
    a_caller_that_leaves_takes_the_call_with_it(blocking()).await;
}

#[tokio::test]
async fn a_caller_that_leaves_takes_the_call_of_asynchronous_code_with_it() {
    a_caller_that_leaves_takes_the_call_with_it(asynchronous()).await;
}

#[tokio::test]
async fn a_call_with_a_timeout_of_its_own_ends_on_the_node_as_well() {
    let call = |item: &u64, context: &CallContext| {
        let options = CallOptions::new().with_timeout(Duration::from_millis(50));
        let client = context.client()?.blocking();
        let late = client.call_with::<_, Value>("/wait", Value::from(*item), options);
        // The batch, whose end would end it, goes on.
        client.call::<_, Value>("/left", Value::Null)?;
        Ok(late.expect_err("nothing answers").kind().as_str().to_owned())
    };
    let calling = Stage::each_with_context("calls", call).isolate_with(only_this_test);
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let wait = waiting(&begun, &left);
    let wait_until_left = Stage::each_async("left", move |_: Arc<Value>| {
        let left = Arc::clone(&left);
        async move {
            notified(&left).await;
            Ok(Value::Null)
        }
    });
    let app = App::new().route("/calls", calling).route("/wait", wait).route("/left", wait_until_left);
    let node = app.start().await.unwrap();
    assert_eq!(node.client().call::<_, String>("/calls", 7_u64).await.unwrap(), "deadline_exceeded");
}

/// The item after it asks for the outcome.
#[tokio::test]
async fn a_call_that_its_code_does_not_await_ends_with_its_batch() {
    let (outcome, ended) = channel();
    let ended = std::sync::Mutex::new((ended, None));
    let call = move |item: &u64, context: &CallContext| {
        let mut ended = ended.lock().expect("no item panics");
        if *item > 0 {
            return Ok(ended.0.recv_timeout(Duration::from_secs(10)).map_err(|error| error.to_string())?);
        }
        let outcome = outcome.clone();
        let then = move |done: Result<Value, CallError>| _ = outcome.send(done.unwrap_err().kind().as_str().to_owned());
        ended.1 = Some(context.client()?.start_call("/wait", Value::Null, CallOptions::new(), then));
        Ok("started".to_owned())
    };
    let calling = Stage::each_with_context("calls", call).isolate_with(only_this_test);
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let app = App::new().route("/calls", calling).route("/wait", waiting(&begun, &left));
    let node = app.start().await.unwrap();
    assert_eq!(node.client().call::<_, String>("/calls", 0_u64).await.unwrap(), "started");
    assert_eq!(node.client().call::<_, String>("/calls", 1_u64).await.unwrap(), "cancelled");
}

/// More than may come before they are read.
const OUTPUTS: u64 = 100;

/// Counts up, and fails at the end if it is told to count no further than 7.
fn numbers() -> StreamStage<u64, u64> {
    StreamStage::each("numbers", |count: &u64| {
        let end = (*count == 7).then(|| Err(Failure::new("seven").with_status(409)));
        Box::pin(stream::iter((0..*count).map(Ok).chain(end)))
    })
}

async fn reads_a_stream(calling: Stage<u64, (Vec<u64>, String)>) {
    let app = App::new().route("/calls", calling).route_streaming("/numbers", numbers());
    let node = app.start().await.unwrap();
    let read = async |count: u64| node.client().call::<_, (Vec<u64>, String)>("/calls", count).await.unwrap();
    assert_eq!(read(OUTPUTS).await, ((0..OUTPUTS).collect(), "end".to_owned()));
    assert_eq!(read(7).await, ((0..7).collect(), "Some(409) seven".to_owned()));
    assert_eq!(read(0).await, (Vec::new(), "end".to_owned()));
    assert_eq!((node.describe().in_flight, restarts(&node)), (0, 0));
}

/// The outputs, and what came at the end.
async fn read(count: u64, context: CallContext) -> Result<(Vec<u64>, String), CallError> {
    let (mut all, mut replies) = (Vec::new(), context.client()?.replies::<_, u64>("/numbers", count)?);
    while let Some(output) = replies.next().await {
        match output {
            Ok(number) => all.push(number),
            Err(error) => return Ok((all, format!("{:?} {}", error.status(), error.message()))),
        }
    }
    Ok((all, "end".to_owned()))
}

#[tokio::test]
async fn a_replica_reads_a_stream_of_its_node() {
    let read = |count: &u64, context: &CallContext| Ok(Handle::current().block_on(read(*count, context.clone()))?);
    reads_a_stream(Stage::each_with_context("calls", read).isolate_with(only_this_test)).await;
}

#[tokio::test]
async fn asynchronous_code_reads_a_stream_of_its_node() {
    let read = async |count: Arc<u64>, context: CallContext| Ok(read(*count, context).await?);
    let calling = Stage::each_async_with_context("calls", move |count, context| Box::pin(read(count, context)));
    reads_a_stream(calling.isolate_with(only_this_test)).await;
}

#[tokio::test]
async fn a_caller_that_leaves_takes_the_stream_of_a_replica_with_it() {
    let read = |_: &u64, context: &CallContext| {
        let mut replies = context.client()?.replies::<_, u64>("/endless", Value::Null)?;
        Ok(Handle::current().block_on(replies.next()).is_some())
    };
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let calling = Stage::each_with_context("calls", read).isolate_with(only_this_test);
    let app = App::new().route("/calls", calling).route_streaming("/endless", stream_waiting(&begun, &left));
    let node = app.start().await.unwrap();
    let client = node.client();
    let caller = tokio::spawn(async move { client.call::<_, bool>("/calls", 0_u64).await });
    notified(&begun).await;
    caller.abort();
    notified(&left).await;
    until("nothing is in flight", || node.describe().in_flight == 0).await;
}
