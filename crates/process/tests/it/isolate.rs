//! Stages of this test program that run in children of it: a child runs the test that started it, up to its stage.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use callboard_codec::{Local, Value};
use callboard_core::{
    App, Batch, CallError, CallOptions, Drained, ErrorKind, Failure, IntoPipeline, Replica, Stage, Worker,
};
use callboard_process::{Isolate, ProcessConfig, isolated_stage};
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::{until, until_gone};

/// Lets a child run only the test that has started it.
pub(crate) fn only_this_test(process: &mut ProcessConfig) {
    let current = thread::current();
    let test = current.name().expect("a test has a thread with its name");
    let program = process.command[0].clone();
    process.command = vec![program, "--exact".into(), test.into(), "--nocapture".into()];
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
struct Order {
    what: String,
    count: u32,
}

fn order(what: &str, count: u32) -> Order {
    Order { what: what.to_owned(), count }
}

/// Does what it is told, and counts its batches.
#[derive(Default)]
struct Obedient {
    batches: u32,
}

impl Worker for Obedient {
    type In = Order;
    type Out = Order;

    fn call(&mut self, orders: Batch<Order>) -> Vec<Result<Order, Failure>> {
        self.batches += 1;
        let answer = |index: usize, order: &Order| match order.what.as_str() {
            "crash" => loop {
                // Rust's own handler takes the first one.
                kill_process(getpid(), Signal::SEGV).unwrap();
            },
            "abort" => std::process::abort(),
            "panic" => panic!("as it was told"),
            "invalid" => Err(Failure::invalid_input("not this")),
            "teapot" => Err(Failure::new("a pot")
                .with_status(418)
                .with_type("Teapot")
                .with_details(7)
                .with_header("x-pot", "tea")),
            "pid" => Ok(Order { count: getpid().as_raw_pid().unsigned_abs(), ..order.clone() }),
            "batches" => Ok(Order { count: self.batches, ..order.clone() }),
            "sleep" => {
                thread::park_timeout(Duration::from_secs(3600));
                Ok(order.clone())
            }
            test if test.starts_with("isolate::") => {
                Ok(Order { count: u32::from(started_again_without_a_stage(test)), ..order.clone() })
            }
            "variables of a child" => Ok(Order { what: variables_of_a_child(), ..order.clone() }),
            "wait" => {
                let context = orders.context(index);
                while !context.is_cancelled() {
                    thread::yield_now();
                }
                Ok(order.clone())
            }
            "context" => {
                let context = orders.context(index);
                let known = (context.request_id(), context.caller(), context.tag("lang"));
                let request = (context.path(), context.header("x-city"), context.query("q"));
                let what = format!("{known:?} {request:?} {}", orders.len());
                Ok(Order { what, ..order.clone() })
            }
            _ => Ok(Order { count: order.count + 1, ..order.clone() }),
        };
        orders.iter().enumerate().map(|(index, order)| answer(index, order)).collect()
    }
}

/// Tells a process that a replica has started it.
const BY_REPLICA: &str = "STARTED_BY_A_REPLICA";

/// Whether this program, started again with the variables of this process, knows of no stage.
fn started_again_without_a_stage(test: &str) -> bool {
    let mut again = Command::new("/proc/self/exe");
    again.args(["--exact", test]).env(BY_REPLICA, "1").stdin(Stdio::null()).stdout(Stdio::null());
    again.status().unwrap().success()
}

/// The variables of this crate that a child of this process sees.
fn variables_of_a_child() -> String {
    let call = async {
        let node = crate::started(callboard_process::stage("child", &crate::config(""))).await;
        crate::call(&node, "variables").await
    };
    let on_a_runtime = || tokio::runtime::Runtime::new().unwrap().block_on(call);
    thread::scope(|scope| format!("{:?}", scope.spawn(on_a_runtime).join().unwrap().unwrap()))
}

fn obedient() -> Stage<Order, Order> {
    Stage::worker("obedient", |_| Ok(Obedient::default()))
}

async fn started<In: callboard_core::edge::RouteData, Out: callboard_core::edge::RouteData>(
    stage: impl IntoPipeline<In, Out = Out>,
) -> callboard_core::Node {
    App::new().route("/stage", stage).start().await.unwrap()
}

async fn call(node: &callboard_core::Node, order: Order) -> Result<Order, CallError> {
    node.client().call("/stage", order).await
}

async fn pid(node: &callboard_core::Node) -> Pid {
    let pid = call(node, order("pid", 0)).await.unwrap().count;
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[tokio::test]
async fn a_segmentation_fault_costs_one_replica_and_its_input() {
    let stage = obedient().max_batch_size(4).max_delay(Duration::from_millis(50)).pure().crash_retries(0);
    let node = started(stage.isolate_with(only_this_test)).await;
    assert_eq!(isolated_stage(), None, "this is the node");
    let first = pid(&node).await;
    assert_ne!(first, getpid());

    let calls = ["a", "b", "crash", "c"].map(|what| call(&node, order(what, 1)));
    let outcomes = futures_util::future::join_all(calls).await;
    for (outcome, what) in outcomes.iter().zip(["a", "b", "crash", "c"]) {
        match what {
            "crash" => {
                let error = outcome.as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WorkerFailed, "{error}");
                assert!(error.message().contains("killed by signal 11 (SIGSEGV)"), "{error}");
            }
            _ => assert_eq!(*outcome.as_ref().unwrap(), order(what, 2)),
        }
    }
    until_gone(first).await;
    assert_ne!(pid(&node).await, first);

    let error = call(&node, order("abort", 0)).await.unwrap_err();
    assert!(error.message().contains("SIGABRT"), "{error}");
    let error = call(&node, order("panic", 0)).await.unwrap_err();
    assert!(error.message().contains("exited with code 101"), "{error}");
    assert_eq!(call(&node, order("x", 1)).await.unwrap(), order("x", 2));
}

/// Nor does it serve as one.
#[tokio::test]
async fn a_child_of_a_replica_is_not_told_that_it_is_a_replica() {
    let node = started(obedient().isolate_with(only_this_test)).await;
    assert_eq!(call(&node, order("variables of a child", 0)).await.unwrap(), order("List([])", 0));
}

/// It inherits the variable, but not the socket.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_that_a_replica_has_started_is_no_replica() {
    if std::env::var_os(BY_REPLICA).is_some() {
        assert_eq!(isolated_stage(), None);
        return;
    }
    let node = started(obedient().isolate_with(only_this_test)).await;
    let test = "isolate::a_process_that_a_replica_has_started_is_no_replica";
    assert_eq!(call(&node, order(test, 0)).await.unwrap(), order(test, 1));
}

/// Writes a file when it may clean up.
struct Tidy(PathBuf);

impl Worker for Tidy {
    type In = Order;
    type Out = Order;

    fn call(&mut self, orders: Batch<Order>) -> Vec<Result<Order, Failure>> {
        orders.into_inputs().into_iter().map(Ok).collect()
    }

    fn cleanup(&mut self) {
        std::fs::write(&self.0, "tidy").unwrap();
    }
}

#[tokio::test]
async fn a_worker_cleans_up_when_its_node_stops_it() {
    let file = std::env::temp_dir().join("callboard-tidy");
    let written = move |place: u32| file.with_extension(place.to_string());
    let own = written.clone();
    // The parent of the replica is the node.
    let node_id = if isolated_stage().is_some() { std::os::unix::process::parent_id() } else { std::process::id() };
    let stage = Stage::worker("tidy", move |_| Ok(Tidy(own(node_id))));
    let node = started(stage.isolate_with(only_this_test)).await;
    call(&node, order("x", 0)).await.unwrap();
    assert_eq!(node.shutdown(Duration::from_secs(20)).await, Drained::Completely);
    let written = written(node_id);
    assert_eq!(std::fs::read_to_string(&written).unwrap(), "tidy");
    std::fs::remove_file(written).unwrap();
}

#[tokio::test]
async fn errors_of_a_worker_arrive_as_they_are_and_it_keeps_its_state() {
    let node = started(obedient().isolate_with(only_this_test)).await;
    let local = App::new().route("/stage", obedient()).start().await.unwrap();
    for what in ["invalid", "teapot"] {
        let (isolated, own) = (call(&node, order(what, 0)).await, call(&local, order(what, 0)).await);
        let parts = |outcome: Result<Order, CallError>| {
            let error = outcome.unwrap_err();
            let (kind, status, details) = (error.kind(), error.status(), error.details().cloned());
            (
                kind,
                status,
                details,
                error.headers().to_vec(),
                error.error_type().map(str::to_owned),
                error.message().to_owned(),
            )
        };
        assert_eq!(parts(isolated), parts(own), "{what}");
    }
    assert_eq!(call(&node, order("batches", 0)).await.unwrap().count, 3);
    let error = node.client().call::<Value, Value>("/stage", Value::from("no order")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test]
async fn a_call_is_known_by_its_context() {
    let node = started(obedient().isolate_with(only_this_test)).await;
    let options = CallOptions::new().with_request_id("r-1").with_caller("ada").with_tag("lang", "fr");
    let options = options.with_path("/a").with_header("x-city", "Lima").with_query("q", "7");
    let answer: Order = node.client().call_with("/stage", order("context", 0), options).await.unwrap();
    let known = r#"(Some("r-1"), Some("ada"), Some("fr")) (Some("/a"), Some("Lima"), Some("7")) 1"#;
    assert_eq!(answer, order(known, 0));
}

/// The head of a frame has room for 4 MiB.
#[tokio::test]
async fn a_batch_whose_headers_do_not_fit_into_one_frame_is_divided() {
    let delay = Duration::from_secs(60);
    let stage = obedient().max_batch_size(160).max_delay(delay).isolate_with(only_this_test);
    let node = started(stage).await;
    let options = CallOptions::new().with_header("x-large", "x".repeat(32_000));
    let calls = (0..160).map(|_| {
        let (client, options) = (node.client(), options.clone());
        async move { client.call_with::<_, Order>("/stage", order("context", 0), options).await }
    });
    for answer in futures_util::future::join_all(calls).await {
        let answer = answer.unwrap();
        assert!(answer.what.ends_with(" 31") || answer.what.ends_with(" 5"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_caller_that_leaves_is_seen_and_a_worker_that_hangs_is_killed() {
    let node = started(obedient().timeout(Duration::from_secs(2)).isolate_with(only_this_test)).await;
    let first = pid(&node).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(50));
    node.client().call_with::<_, Order>("/stage", order("wait", 0), options).await.unwrap_err();
    assert_eq!(pid(&node).await, first, "it has seen that its caller has left");

    let error = call(&node, order("sleep", 0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    until_gone(first).await;
    assert_ne!(pid(&node).await, first);
}

#[tokio::test]
async fn no_replica_is_left_when_its_node_ends() {
    let stage = obedient().replicas(2).isolate_with(only_this_test);
    let node = started(stage).await;
    let running = pid(&node).await;
    drop(node);
    until_gone(running).await;
    assert!(test_kill_process(running).is_err());
}

async fn start_error(build: impl Fn(&Replica) -> Result<Obedient, Failure> + Send + Sync + 'static) -> String {
    let stage = Stage::worker("stage", build).isolate_with(only_this_test);
    App::new().route("/stage", stage).start().await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_worker_that_cannot_be_built_stops_the_start() {
    let error = start_error(|_| Err(Failure::new("no such device"))).await;
    assert!(error.contains("no such device"), "{error}");
}

#[tokio::test]
async fn a_worker_that_panics_while_it_is_built_stops_the_start() {
    let error = start_error(|_| panic!("no such device")).await;
    assert!(error.contains("panicked: no such device"), "{error}");
}

#[tokio::test]
async fn a_replica_that_ends_before_its_stage_stops_the_start_with_its_last_lines() {
    if isolated_stage().is_some() {
        // As a `main` that ends before.
        println!("the licence has expired");
        return;
    }
    let error = App::new().route("/stage", obedient().isolate_with(only_this_test)).start().await.unwrap_err();
    let error = error.to_string();
    let expected = "the process exited with code 0; it has not come to `isolate` of stage `obedient`; its last lines: ";
    assert!(error.contains(expected) && error.contains("the licence has expired | "), "{error}");
}

#[expect(clippy::print_stdout, reason = "the last line of a replica")]
fn hang(why: &str) -> ! {
    println!("{why}");
    loop {
        thread::park();
    }
}

/// The error of a stage whose worker is never built.
async fn hanging() -> String {
    let stage = Stage::worker("stage", |_| -> Result<Obedient, Failure> { hang("waits for a device") });
    let stage = stage.isolate_with(|process| {
        only_this_test(process);
        process.start_timeout = Some(Duration::from_secs(2));
    });
    App::new().route("/stage", stage).start().await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_replica_that_hangs_before_its_stage_stops_the_start_with_its_last_lines() {
    if isolated_stage().is_some() {
        hang("waits for a port");
    }
    let error = hanging().await;
    let expected =
        "it was not ready within 2s (start_timeout); it has not come to `isolate` of stage `stage`; its last lines: ";
    assert!(error.contains(expected) && error.ends_with("waits for a port"), "{error}");
}

#[tokio::test]
async fn a_worker_that_hangs_while_it_is_built_has_come_to_its_stage() {
    let error = hanging().await;
    assert!(error.contains("it was not ready within 2s (start_timeout): "), "{error}");
}

#[tokio::test]
async fn a_replica_starts_no_replicas_of_other_stages() {
    let other = Stage::each("other", |_: &Order| Err::<Order, _>(Failure::new("another stage")));
    let other = other.isolate_with(only_this_test);
    if isolated_stage().is_some_and(|stage| stage == "obedient") {
        let error = App::new().route("/stage", other).start().await.unwrap_err();
        assert!(error.to_string().contains("replica of stage `obedient`"), "{error}");
        let _: Stage<Order, Order> = obedient().isolate();
        unreachable!("the stage is served");
    }
    let node = started(obedient().isolate_with(only_this_test)).await;
    assert_eq!(call(&node, order("x", 1)).await.unwrap(), order("x", 2));
}

#[tokio::test]
async fn a_value_of_this_process_does_not_cross() {
    let stage = Stage::each("local", |text: &Local<String>| Ok(text.len() as u64));
    let ready = Stage::each("ready", |text: &String| Ok(Local(text.clone())));
    let pipeline = callboard_core::Pipeline::from(ready).then(stage.isolate_with(only_this_test));
    let node = App::new().route("/stage", pipeline).start().await.unwrap();
    let error = node.client().call::<_, u64>("/stage", "x".to_owned()).await.unwrap_err();
    assert!(error.message().contains("process"), "{error}");
}

/// Never ready; says that it was dropped.
struct Pending(Arc<tokio::sync::Notify>);

impl Future for Pending {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn asynchronous_code_runs_several_calls_and_a_cancelled_one_is_dropped() {
    let dropped = Arc::new(tokio::sync::Notify::new());
    let stage = Stage::each_async("waiting", move |order: Arc<Order>| {
        let dropped = Arc::clone(&dropped);
        async move {
            match order.what.as_str() {
                "pending" => Pending(dropped).await,
                "until dropped" => dropped.notified().await,
                "panic" => panic!("as it was told"),
                _ => {}
            }
            Ok(Order { count: order.count + 1, ..Order::clone(&order) })
        }
    });
    let node = started(stage.concurrency(2).isolate_with(only_this_test)).await;
    let client = node.client();
    let options = CallOptions::new().with_timeout(Duration::from_millis(300));
    let (pending, other) = tokio::join!(
        client.call_with::<_, Order>("/stage", order("pending", 0), options),
        client.call::<_, Order>("/stage", order("until dropped", 1)),
    );
    assert_eq!(pending.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(other.unwrap().count, 2);
    let error = call(&node, order("panic", 0)).await.unwrap_err();
    assert!(error.message().contains("exited with code 101"), "{error}");
    until("it is up again", || node.health().ready).await;
    assert_eq!(call(&node, order("x", 1)).await.unwrap().count, 2);
}

#[tokio::test]
async fn a_caller_that_leaves_a_batch_of_asynchronous_code_ends_no_other_call() {
    let slow = Stage::each_async("slow", |order: Arc<Order>| async move {
        tokio::time::sleep(Duration::from_millis(order.count.into())).await;
        Ok(Order::clone(&order))
    });
    let slow = slow.concurrency(1).max_batch_size(2).max_delay(Duration::from_secs(20));
    let node = started(slow.isolate_with(only_this_test)).await;
    let client = node.client();
    let options = CallOptions::new().with_timeout(Duration::from_millis(100));
    let (left, other) = tokio::join!(
        client.call_with::<_, Order>("/stage", order("leaves", 500), options),
        client.call::<_, Order>("/stage", order("stays", 500)),
    );
    assert_eq!(left.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(other.unwrap(), order("stays", 500));
}

/// The messages of all records of the node, with their request ids.
pub(crate) fn records() -> Arc<parking_lot::Mutex<Vec<String>>> {
    static RECORDS: std::sync::OnceLock<Arc<parking_lot::Mutex<Vec<String>>>> = std::sync::OnceLock::new();
    let start = || {
        let records = Arc::default();
        tracing::subscriber::set_global_default(Records(Arc::clone(&records))).unwrap();
        records
    };
    Arc::clone(RECORDS.get_or_init(start))
}

struct Records(Arc<parking_lot::Mutex<Vec<String>>>);

impl tracing::Subscriber for Records {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                match field.name() {
                    "message" => self.0.insert_str(0, &format!("{value:?}")),
                    "request_id" => self.0 += &format!(" request_id={value:?}"),
                    _ => {}
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn the_log_of_a_replica_is_in_that_of_its_node() {
    let stage = Stage::each("talking", |number: &i64| {
        tracing::warn!(number, "this is odd");
        println!("this is printed");
        Ok(*number)
    });
    let stage = stage.isolate_with(only_this_test);
    // After the stage: only in the node.
    let records = records();
    let node = started(stage).await;
    assert_eq!(node.client().call::<i64, i64>("/stage", 7).await.unwrap(), 7);
    for expected in ["WARN this is odd number=7", "INFO this is printed"] {
        until(expected, || records.lock().iter().any(|record| record == expected)).await;
    }
}
