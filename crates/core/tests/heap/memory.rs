//! The memory of a waiting call.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use callboard_codec::Payload;
use callboard_core::{App, Limits, Stage};

use crate::{block_on, heap};

const CALLS: usize = 100_000;

/// One batch is in the worker, the rest waits.
const BATCH: usize = 1000;

/// Each call has its own task, as with real callers: its future, the flight, the entry, the permit and the reply port.
#[test]
fn a_hundred_thousand_waiting_calls_take_less_than_a_kibibyte_each() {
    let _turn = heap::turn();
    block_on(measure_waiting_calls());
}

async fn measure_waiting_calls() {
    let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let passed = Arc::clone(&gate);
    let stage = Stage::each("gated", move |n: &u64| {
        let (open, changed) = &*passed;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        Ok(*n)
    });
    let stage = stage.on_threads().queue(2 * CALLS).max_batch_size(BATCH);
    let limits = Limits { max_in_flight: 2 * CALLS, ..Limits::default() };
    let node = App::new().route("/gated", stage).limits(limits).start().await.unwrap();
    let (_payload, payload, _) = heap::measured(|| Payload::new(0u64));

    // The list of handles belongs to the test.
    let mut calls = Vec::with_capacity(CALLS);
    let before = heap::live();
    for n in 0..CALLS as u64 {
        let client = node.client();
        calls.push(tokio::spawn(
            async move { client.call::<u64, u64>("/gated", n).await.map_err(|error| error.kind()) },
        ));
    }
    while node.describe().stages[0].queued != CALLS - BATCH {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The runtime's one thread runs ready tasks in order: the batcher runs first, and queues the last calls.
    tokio::task::yield_now().await;
    let each = (heap::live() - before) / CALLS - payload;
    println!("{each} bytes per waiting call, and {payload} for its payload");

    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let left = heap::live().saturating_sub(before) / CALLS;
    println!("{left} bytes per call remain for the next calls");
    assert!(each <= 1024, "{each} bytes per waiting call");
    assert!(left <= 256, "{left} bytes per call remain");
}
