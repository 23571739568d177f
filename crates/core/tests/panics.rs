//! A panic of user code reports its location, and the time of its printing counts for no call. A separate binary,
//! because a panic hook is global to the process.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

use std::time::{Duration, Instant};

use callboard_core::{App, CallError, Failure, Node, Stage};

/// A hook as slow as the printing of a backtrace, set before the node starts and again when it runs.
fn set_slow_hook() {
    std::panic::set_hook(Box::new(|_| {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(100) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }));
}

async fn panic_of(node: &Node) -> CallError {
    node.client().call::<u64, u64>("/panics", 1).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_reports_its_location_and_the_time_of_its_hook_is_not_the_stages() {
    set_slow_hook();
    let panics = Stage::each("panics", |_: &u64| -> Result<u64, Failure> { panic!("no such number") });
    let node = App::new().route("/panics", panics).start().await.unwrap();
    let line = line!() - 2;
    let reports_its_location = |error: CallError| {
        let trace = error.remote_trace().unwrap().to_owned();
        let place = format!("panicked at {}:{line}:", file!());
        assert!(trace.starts_with(&place) && trace.ends_with(":\nno such number"), "{trace:?}, not {place:?}");
        assert_eq!(error.message(), "the worker panicked: no such number");
    };
    for _ in 0..3 {
        reports_its_location(panic_of(&node).await);
    }
    let metrics = node.metrics();
    assert!(!metrics.contains("callboard_stage_moved_to_threads_total{stage=\"panics\"} 1"), "{metrics}");

    // A program may set its own hook at any time. Only the first panic after that is not covered.
    set_slow_hook();
    let _ = panic_of(&node).await;
    reports_its_location(panic_of(&node).await);
}
