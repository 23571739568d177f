//! Bounds hold, and callers learn the truth at them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_codec::{ChargeError, Payload};
use callboard_core::edge::RequestBytes;
use callboard_core::{
    App, CallError, CallOptions, ErrorKind, ErrorReason, Limits, Pipeline, Priority, RouteSpec, Stage,
};

use super::support::{Gate, gated, serve, until};

#[tokio::test]
async fn a_full_queue_refuses_at_once_with_a_retry_after() {
    let gate = Gate::default();
    let node = serve(gated(&gate).queue(2)).await;
    let client = node.client();
    let mut waiting = Vec::new();
    let mut send = |n: u64| {
        let client = client.clone();
        waiting.push(tokio::spawn(async move { client.call::<u64, u64>("/route", n).await }));
    };
    send(0);
    until("the worker is busy", || gate.arrived() == 1).await;
    send(1);
    send(2);
    until("the queue is full", || node.describe().stages[0].queued == 2).await;

    let error = client.call::<u64, u64>("/route", 3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert_eq!(error.message(), "the queue of stage `gated` is full: 2 entries wait already");
    assert!(error.retry_after().is_some() && error.is_retryable());
    assert_eq!(node.describe().in_flight, 3, "the refused call holds no permit");

    gate.open();
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_gateway_bounds_calls_and_bytes() {
    let gate = Gate::default();
    let limits = Limits { max_in_flight: 1, max_in_flight_bytes: 1000, ..Limits::default() };
    let node = App::new().route("/route", gated(&gate)).limits(limits).start().await.unwrap();
    let client = node.client();
    let route = client.route("/route").unwrap();

    let admission = client.edge().admit(&route, 600).unwrap();
    assert!(admission.grow(400).is_ok());
    let too_large = admission.grow(1).unwrap_err();
    assert_eq!((too_large.kind(), too_large.reason()), (ErrorKind::InvalidInput, Some(ErrorReason::TooLarge)));
    assert_eq!(too_large.message(), "the call needs 1001 bytes, more than max_in_flight_bytes = 1000");
    assert!(!too_large.is_retryable());
    admission.shrink(1);
    let others = client.edge().held_bytes();
    others.grow(1).unwrap();
    let full = admission.grow(1).unwrap_err();
    assert_eq!((full.kind(), full.is_retryable()), (ErrorKind::Overloaded, true));
    assert_eq!(full.message(), "1 more bytes in flight would exceed max_in_flight_bytes = 1000");
    drop(others);
    let too_many_calls = client.edge().admit(&route, 0).unwrap_err();
    assert_eq!(too_many_calls.message(), "1 calls are in flight already");
    drop(admission);
    assert_eq!((node.describe().in_flight, node.describe().in_flight_bytes), (0, 0));
    assert!(client.edge().admit(&route, 0).is_ok());
    gate.open();
}

#[tokio::test]
async fn a_request_is_too_large_by_all_its_accounts_together() {
    let limits = Limits { max_in_flight_bytes: 1000, ..Limits::default() };
    let node = App::new().route("/route", gated(&Gate::default())).limits(limits).start().await.unwrap();
    let client = node.client();
    let route = client.route("/route").unwrap();
    let is_too_large = |error: CallError| error.reason() == Some(ErrorReason::TooLarge);

    let request = RequestBytes::default();
    let admission = client.edge().admit(&route, 500).unwrap();
    let beside = admission.beside();
    beside.grow(400).unwrap();
    assert!(!is_too_large(admission.grow(101).unwrap_err()), "they are not of one request");
    beside.join(&request);
    admission.join(&request);
    assert!(is_too_large(admission.grow(101).unwrap_err()));
    assert!(is_too_large(beside.grow(101).unwrap_err()));
    let decoded = admission.account().charge(101);
    assert!(matches!(decoded, Err(ChargeError::TooLarge(_))), "what is decoded counts as well: {decoded:?}");

    // What one gives back, the other may take; what was never charged is not given back.
    admission.shrink(200);
    beside.grow(300).unwrap();
    admission.shrink(u64::MAX);
    let others = client.edge().held_bytes();
    others.grow(300).unwrap();
    assert!(!is_too_large(beside.grow(1).unwrap_err()), "others leave no room");
    assert_eq!(node.describe().in_flight_bytes, 1000);
}

#[tokio::test]
async fn a_route_has_limits_and_defaults_of_its_own() {
    let gate = Gate::default();
    let order: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (passed, seen) = (gate.clone(), Arc::clone(&order));
    let stage = Stage::each("noted", move |n: &u64| {
        passed.pass();
        seen.lock().unwrap().push(*n);
        Ok(*n)
    });
    let stage = stage.on_threads();
    let quick = RouteSpec::new("/quick", stage.clone()).default_timeout(Duration::from_millis(50));
    let small = RouteSpec::new("/small", stage.clone()).max_in_flight(2).default_priority(Priority::Low);
    let node = App::new().mount(quick).mount(small).route("/open", stage).start().await.unwrap();
    let client = node.client();
    let spawn = |route: &'static str, n: u64, options: CallOptions| {
        let client = client.clone();
        tokio::spawn(async move { client.call_with::<u64, u64>(route, n, options).await })
    };
    let mut calls = vec![spawn("/small", 0, CallOptions::new())];
    until("the worker is busy", || gate.arrived() == 1).await;
    calls.push(spawn("/small", 1, CallOptions::new()));
    until("the limit is reached", || node.describe().in_flight == 2).await;

    let error = client.call::<u64, u64>("/small", 9).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert_eq!(error.message(), "2 calls of route `/small` are in flight already, which is its limit");
    let late = client.call::<u64, u64>("/quick", 9).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "the route's own timeout");
    until("it has left the queue", || node.describe().stages[0].queued == 1).await;
    calls.push(spawn("/open", 2, CallOptions::new()));
    until("it also waits", || node.describe().stages[0].queued == 2).await;
    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 2, 1], "the low route's call came first and runs last");
    client.call::<u64, u64>("/small", 3).await.unwrap();
    assert_eq!(node.describe().in_flight, 0);
}

#[tokio::test]
async fn five_times_the_capacity_is_served_at_capacity_and_other_calls_are_refused_quickly() {
    let work = Duration::from_millis(1);
    let stage = Stage::each("slow", move |n: &u64| {
        let started = std::time::Instant::now();
        while started.elapsed() < work {
            std::hint::spin_loop();
        }
        Ok(*n)
    })
    .on_threads()
    .queue(8);
    let node = serve(stage).await;
    let client = node.client();
    // A closed loop of 50 callers against one worker and eight places.
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let (mut served, mut refused) = (0u32, 0u32);
                for n in 0..20u64 {
                    match client.call::<u64, u64>("/route", n).await {
                        Ok(_) => served += 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
                            refused += 1;
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                }
                (served, refused)
            })
        })
        .collect();
    let (mut served, mut refused) = (0, 0);
    for caller in callers {
        let (s, r) = caller.await.unwrap();
        (served, refused) = (served + s, refused + r);
    }
    assert_eq!(served + refused, 1000);
    assert!(served > 0 && refused > 0, "served {served}, refused {refused}");
    let description = node.describe();
    assert_eq!((description.in_flight, description.stages[0].queued), (0, 0));
}

#[tokio::test]
async fn an_input_that_can_never_fit_is_not_offered_for_a_retry() {
    let limits = Limits { max_in_flight_bytes: 10, ..Limits::default() };
    let echo = Stage::each("echo", |text: &String| Ok(text.len()));
    let node = App::new().route("/echo", echo).limits(limits).start().await.unwrap();
    let error = node.client().call::<String, usize>("/echo", "x".repeat(1000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().ends_with("more than max_in_flight_bytes = 10"), "{error}");
}

#[tokio::test]
async fn a_refusal_of_a_later_stage_returns_the_output_of_the_earlier_stages() {
    let gate = Gate::default();
    let stage = gated(&gate).queue(1);
    let first = Stage::each("first", |n: &u64| Ok(n + 1)).pure();
    let node = App::new()
        .route("/both", Pipeline::from(first).then(stage.clone()))
        .route("/plain", stage)
        .start()
        .await
        .unwrap();
    let client = node.client();
    let call = |n: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>("/plain", n).await })
    };
    let working = call(1);
    until("the worker is busy", || gate.arrived() == 1).await;
    let waiting = call(2);
    until("the queue is full", || node.describe().stages.iter().any(|stage| stage.queued == 1)).await;
    let admission = client.edge().admit_stages(&["first", "gated"], 0).unwrap();
    let reply = client.edge().submit_stages(admission, Payload::new(4_u64), CallOptions::new()).await.unwrap();
    let refusal = reply.refused.unwrap();
    assert_eq!((reply.stages, refusal.kind(), refusal.stage()), (1, ErrorKind::Overloaded, Some("gated")));
    assert!(refusal.was_started() && refusal.is_retryable(), "{refusal:?}");
    gate.open();
    assert_eq!((working.await.unwrap().unwrap(), waiting.await.unwrap().unwrap()), (1, 2));
}
