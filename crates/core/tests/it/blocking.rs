//! The client for programs without a runtime: plain threads that block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use callboard_codec::{Map, Value};
use callboard_core::{App, BlockingNode, CallOptions, Drained, ErrorKind, Failure, FunctionCall, Stage, StartError};

use super::support::{Gate, PATIENCE, gated, serve};

fn start(app: App) -> BlockingNode {
    app.start_blocking().expect("the node starts")
}

fn echo() -> Stage<u64, u64> {
    Stage::each("echo", |n: &u64| Ok(*n))
}

/// Blocks until `condition` holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_program_without_a_runtime_calls_sends_casts_and_streams() {
    let add = Stage::each("add", |call: &FunctionCall| Ok(call.arg::<i64>(0, "a")? + call.arg::<i64>(1, "b")?));
    let node = start(App::new().route("/echo", echo()).route("/add", add));
    let client = node.client();

    assert_eq!(client.call::<u64, u64>("/echo", 7).unwrap(), 7);
    assert_eq!(client.send("add", [1, 2], Map::new()).unwrap(), Value::Int(3));
    client.call_detached("/echo", 1u64).unwrap();
    let numbers: Vec<u64> = client.stream("/echo", 0..100u64).unwrap().map(Result::unwrap).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    assert_eq!(client.call::<u64, u64>("/nowhere", 7).unwrap_err().kind(), ErrorKind::NotFound);

    assert_eq!(node.shutdown(PATIENCE), Drained::Completely);
    let description = client.client().describe();
    assert_eq!((description.admitted, description.outcomes, description.in_flight), (103, 103, 0));
    assert_eq!(client.call::<u64, u64>("/echo", 7).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(client.call_detached("/echo", 7u64).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn many_threads_share_one_client() {
    let node = start(App::new().route("/echo", echo().max_batch_size(8)));
    let client = node.client();
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || {
                for n in 0..200 {
                    let n = thread * 1000 + n;
                    assert_eq!(client.call::<u64, u64>("/echo", n).unwrap(), n);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(node.node().describe().outcomes, 1600);
}

#[test]
fn a_blocking_call_keeps_its_deadline() {
    let gate = Gate::default();
    let node = start(App::new().route("/gated", gated(&gate)));
    let options = CallOptions::new().with_timeout(Duration::from_millis(20));
    let error = node.client().call_with::<u64, u64>("/gated", 1, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    gate.open();
}

#[test]
fn an_endless_stream_is_an_iterator_that_may_be_dropped() {
    let node = start(App::new().route("/echo", echo()));
    let pulled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pulled);
    let inputs = (0u64..).inspect(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let halve = |n: &u64| if *n == 3 { Err(Failure::invalid_input("three")) } else { Ok(n * 2) };
    let doubled = node.client().stream::<_, u64>("/echo", inputs).unwrap();
    let pairs: Vec<_> = doubled.look_ahead(4).preprocess(halve).with_inputs().take(10).collect();
    for (input, outcome) in pairs {
        match outcome {
            Ok(double) => assert_eq!(double, input * 2),
            Err(error) => assert_eq!((input, error.message()), (3, "three")),
        }
    }
    assert!(pulled.load(Ordering::SeqCst) <= 10 + 5);
    wait_until("everything is released", || node.node().describe().in_flight == 0);

    let failed = node.client().stream::<_, u64>("/echo", 0..10u64).unwrap().preprocess(halve).stop_at_error();
    let outcomes: Vec<_> = failed.map(|outcome| outcome.map_err(|error| error.message().to_owned())).collect();
    assert_eq!(outcomes, [Ok(0), Ok(2), Ok(4), Err("input 3 of the stream: three".to_owned())]);
}

#[test]
fn dropping_the_node_answers_the_threads_that_wait() {
    let gate = Gate::default();
    let node = start(App::new().route("/gated", gated(&gate)));
    let callers: Vec<_> = (0..3u64)
        .map(|n| {
            let client = node.client();
            std::thread::spawn(move || client.call::<u64, u64>("/gated", n))
        })
        .collect();
    wait_until("all are in flight", || node.node().describe().in_flight == 3);
    wait_until("the worker is busy", || gate.arrived() == 1);
    drop(node);
    gate.open();
    for caller in callers {
        // Calls that were already running may still have an outcome.
        if let Err(error) = caller.join().expect("nobody panics") {
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::WorkerFailed), "{error}");
        }
    }
}

#[test]
fn a_stage_that_cannot_be_built_is_reported() {
    let broken = Stage::worker("broken", |_: &callboard_core::Replica| Err::<Never, _>(Failure::new("no model")));
    let error = App::new().route("/broken", broken).start_blocking().unwrap_err();
    assert!(matches!(&error, StartError::Stage { message, .. } if message.contains("no model")), "{error}");
}

struct Never;

impl callboard_core::Worker for Never {
    type In = u64;
    type Out = u64;

    fn call(&mut self, _: callboard_core::Batch<u64>) -> Vec<Result<u64, Failure>> {
        unreachable!("it is never built")
    }
}

fn panic_text(attempt: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(attempt)).expect_err("it must not block here");
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn it_panics_in_an_async_context_before_any_call() {
    let node = serve(echo()).await;
    let client = node.client().blocking();
    let message = "Cannot start a runtime from within a runtime";
    assert!(panic_text(|| drop(client.call::<u64, u64>("/route", 1))).contains(message));
    assert!(panic_text(|| drop(client.send("route", [1], Map::new()))).contains(message));
    assert!(panic_text(|| drop(client.stream::<_, u64>("/route", 0..3u64).unwrap().next())).contains(message));
    assert!(panic_text(|| drop(App::new().route("/echo", echo()).start_blocking())).contains(message));
    assert_eq!(node.describe().admitted, 0);

    // Calls that do not wait are allowed, and so is blocking on threads for blocking code.
    client.call_detached("/route", 1u64).unwrap();
    let called = tokio::task::spawn_blocking(move || client.call::<u64, u64>("/route", 2)).await.unwrap();
    assert_eq!(called.unwrap(), 2);
}

#[test]
fn a_node_with_its_own_runtime_may_be_dropped_in_an_async_context() {
    let node = start(App::new().route("/echo", echo()));
    let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
    other.block_on(async move { drop(node) });
}
