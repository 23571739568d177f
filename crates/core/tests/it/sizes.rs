//! Inputs of different sizes: batches bounded by cost, and inputs that are too large for one batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_codec::{Tensor, Value};
use callboard_core::{App, Batch, CallOptions, ErrorKind, Failure, Node, RouteSpec, Stage};
use ndarray::Array2;

use super::support::{Gate, serve, until};

type Record<T> = Arc<Mutex<Vec<T>>>;

/// Returns its input numbers, and records their batches. The first batch waits at the gate.
fn recorded(gate: &Gate) -> (Stage<u64, u64>, Record<Vec<u64>>) {
    let batches = Record::default();
    let (gate, seen) = (gate.clone(), Arc::clone(&batches));
    let stage = Stage::batch("recorded", move |batch: Batch<u64>| {
        gate.pass();
        seen.lock().unwrap().push(batch.iter().copied().collect());
        batch.iter().map(|n| Ok(*n)).collect()
    });
    (stage.on_threads().max_batch_size(8), batches)
}

#[tokio::test]
async fn a_batch_takes_entries_up_to_its_maximum_cost() {
    let gate = Gate::default();
    let (stage, batches) = recorded(&gate);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let stage = stage.max_cost(100).cost(move |n: &u64| {
        count.fetch_add(1, Ordering::SeqCst);
        *n
    });
    let node = serve(stage).await;
    let client = node.client();
    let mut calls = Vec::new();
    for (position, n) in [1u64, 60, 30, 10, 50, 100, 1].into_iter().enumerate() {
        let client = client.clone();
        calls.push(tokio::spawn(async move { client.call::<u64, u64>("/route", n).await }));
        until("the first runs", || gate.arrived() == 1).await;
        until("the others wait in order", || node.describe().stages[0].queued == position).await;
    }
    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(*batches.lock().unwrap(), [vec![1], vec![60, 30, 10], vec![50], vec![100], vec![1]]);
    assert_eq!(asked.load(Ordering::SeqCst), 7, "each input is measured once");
    let metrics = node.metrics();
    assert!(metrics.contains(r#"stage_batches_total{stage="recorded",reason="full"} 3"#), "{metrics}");
    assert!(metrics.contains(r#"stage_batches_total{stage="recorded",reason="idle"} 2"#), "{metrics}");
}

#[tokio::test]
async fn an_input_that_no_batch_can_take_is_refused_before_it_queues() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n)).cost(|n| *n).max_cost(10);
    let node = serve(echo).await;
    let error = node.client().call::<u64, u64>("/route", 11).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.message(), "the input costs 11, and stage `echo` takes at most max_cost = 10 in a batch");
    assert_eq!(node.client().call::<u64, u64>("/route", 10).await.unwrap(), 10);
    assert!(node.metrics().contains(r#"stage_refused_total{stage="echo",reason="large"} 1"#));
    assert_eq!(node.describe().stages[0].batches, 1);
}

#[tokio::test]
async fn a_panic_in_the_cost_function_fails_its_own_item() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n)).cost(|n| 10 / *n);
    let node = serve(echo).await;
    let error = node.client().call::<u64, u64>("/route", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert!(error.message().starts_with("the cost function of stage `echo` panicked"), "{error}");
    assert_eq!(node.client().call::<u64, u64>("/route", 5).await.unwrap(), 5);
    assert_eq!(node.describe().stages[0].restarts, 0);
}

#[tokio::test]
async fn an_input_of_another_type_is_converted_to_be_measured() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n)).cost(|n| *n).max_cost(10);
    let node = serve(echo).await;
    let client = node.client();
    assert_eq!(client.call::<Value, u64>("/route", Value::from(7)).await.unwrap(), 7);
    let error = client.call::<Value, u64>("/route", Value::from("seven")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn an_oversize_tensor_is_split_between_rows_and_joined_in_order() {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let negate = Stage::each("negate", move |tensor: &Tensor| {
        seen.fetch_max(tensor.shape()[0], Ordering::SeqCst);
        let array = tensor.to_array::<i64>()?;
        Ok(Tensor::from_array(array.mapv(|x| -x)))
    })
    .on_threads()
    .replicas(3)
    .max_batch_size(4)
    .by_rows()
    .max_cost(7);
    let node = serve(negate).await;
    let input = Array2::from_shape_fn((100, 3), |(row, column)| (row * 3 + column) as i64);
    let client = node.client();
    let output: Tensor = client.call("/route", Tensor::from_array(input.clone())).await.unwrap();
    assert_eq!(output, Tensor::from_array(input.mapv(|x| -x)));
    assert_eq!(most.load(Ordering::SeqCst), 7, "no part exceeds the batch size");
    let description = node.describe();
    assert_eq!((description.admitted, description.outcomes, description.in_flight), (1, 1, 0));
    assert_eq!(description.stages[0].queued, 0);
    let empty = Tensor::from_array(Array2::<i64>::zeros((0, 3)));
    assert_eq!(client.call::<_, Tensor>("/route", empty.clone()).await.unwrap(), empty);
}

/// Runs each digit of a number as a separate part; a 7 fails.
fn digits(gate: &Gate) -> (Stage<Vec<u64>, Vec<u64>>, Record<u64>) {
    let ran = Record::default();
    let (gate, seen) = (gate.clone(), Arc::clone(&ran));
    let stage = Stage::each("digits", move |digits: &Vec<u64>| {
        gate.pass();
        seen.lock().unwrap().extend(digits);
        if digits.contains(&7) { Err(Failure::new("seven")) } else { Ok(digits.clone()) }
    });
    (stage.on_threads().by_rows().max_cost(1), ran)
}

#[tokio::test]
async fn the_first_part_that_fails_fails_the_call_and_cancels_the_rest() {
    let gate = Gate::default();
    gate.open();
    let (stage, ran) = digits(&gate);
    let node = serve(stage).await;
    let input: Vec<u64> = vec![1, 2, 7, 4, 5, 6, 8, 9];
    let error = node.client().call::<_, Vec<u64>>("/route", input).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Failed, "seven"));
    until("nothing is left", || node.describe().stages[0].queued == 0).await;
    let ran = ran.lock().unwrap().clone();
    assert!(ran.starts_with(&[1, 2, 7]) && ran.len() <= 4, "{ran:?}");
    let description = node.describe();
    assert_eq!((description.in_flight, description.outcomes), (0, 1));
}

#[tokio::test]
async fn a_failed_part_is_reported_while_an_earlier_part_still_runs() {
    let gate = Gate::default();
    let passed = gate.clone();
    let stage = Stage::each("digits", move |digits: &Vec<u64>| match digits[0] {
        7 => Err(Failure::new("seven")),
        _ => {
            passed.pass();
            Ok(digits.clone())
        }
    });
    let node = serve(stage.on_threads().replicas(2).by_rows().max_cost(1)).await;
    let error = node.client().call::<_, Vec<u64>>("/route", vec![1u64, 7]).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Failed, "seven"));
    gate.open();
}

#[tokio::test]
async fn a_split_call_that_is_lost_after_a_part_ran_reports_that_it_was_started() {
    let (parts, other) = (Gate::default(), Gate::default());
    let (parts_pass, other_passes) = (parts.clone(), other.clone());
    let stage = Stage::each("digits", move |digits: &Vec<u64>| {
        if *digits == [9] {
            other_passes.pass()
        } else {
            parts_pass.pass()
        }
        Ok(digits.clone())
    });
    let node = serve(stage.on_threads().by_rows().max_cost(1)).await;
    let client = node.client();
    let split = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, Vec<u64>>("/route", vec![1u64, 2, 3]).await }
    });
    until("the first part runs", || parts.arrived() == 1 && node.describe().stages[0].queued == 1).await;
    // More urgent: it runs before the second part.
    let urgent = tokio::spawn({
        let options = CallOptions::new().with_timeout(Duration::from_secs(10));
        async move { client.call_with::<_, Vec<u64>>("/route", vec![9u64], options).await }
    });
    until("the urgent call waits", || node.describe().stages[0].queued == 2).await;
    parts.open();
    until("the other parts wait", || other.arrived() == 1 && node.describe().stages[0].queued == 2).await;
    drop(node);
    let error = split.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, true), "{error}");
    assert!(!error.is_retryable());
    other.open();
    let _ = urgent.await.unwrap();
}

#[tokio::test]
async fn a_split_call_is_one_call_whose_parts_leave_room_for_others() {
    let gate = Gate::default();
    let (stage, ran) = digits(&gate);
    // Room for two: the ninety parts of the long call never fill the queue alone.
    let node = serve(stage.queue(2)).await;
    let client = node.client();
    let long = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, Vec<u64>>("/route", vec![1; 90]).await }
    });
    until("the first part runs", || gate.arrived() == 1).await;
    until("the next part waits", || node.describe().stages[0].queued == 1).await;
    assert_eq!(node.describe().in_flight, 1);
    let short = tokio::spawn({
        let client = client.clone();
        // More urgent: the parts have the deadline of their call, which came first.
        let options = CallOptions::new().with_timeout(Duration::from_secs(10));
        async move { client.call_with::<_, Vec<u64>>("/route", vec![2], options).await }
    });
    until("the short call waits", || node.describe().stages[0].queued == 2).await;
    gate.open();
    assert_eq!(short.await.unwrap().unwrap(), [2]);
    assert_eq!(long.await.unwrap().unwrap(), vec![1; 90]);
    let place = ran.lock().unwrap().iter().position(|digit| *digit == 2).unwrap();
    assert!(place <= 1, "the short call waited for {place} parts of the long one");
}

#[tokio::test]
async fn dropping_a_split_call_abandons_all_its_parts() {
    let gate = Gate::default();
    let (stage, ran) = digits(&gate);
    let node = serve(stage).await;
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<_, Vec<u64>>("/route", vec![1; 50]).await });
    until("the first part runs", || gate.arrived() == 1).await;
    call.abort();
    until("the other parts have left", || node.describe().stages[0].queued == 0).await;
    gate.open();
    until("the worker is free", || !node.describe().stages[0].replicas[0].busy).await;
    assert_eq!(ran.lock().unwrap().len(), 1);
    assert_eq!(node.describe().in_flight, 0);
}

#[tokio::test]
async fn the_timing_of_a_split_call_adds_up_to_the_time_of_its_caller() {
    let stage = Stage::each("slow", |numbers: &Vec<u64>| {
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        Ok(numbers.clone())
    });
    let node: Node =
        App::new().mount(RouteSpec::new("/route", stage.on_threads().by_rows().max_cost(1))).start().await.unwrap();
    let client = node.client();
    let route = client.route("/route").unwrap();
    let started = std::time::Instant::now();
    let admission = client.edge().admit(&route, 0).unwrap();
    let payload = callboard_codec::Payload::new(vec![1u64, 2, 3, 4]);
    let reply = client.edge().submit(admission, payload, CallOptions::new()).await.unwrap();
    let (total, timing) = (started.elapsed(), reply.timing);
    assert!(timing.compute >= Duration::from_millis(20), "{timing:?}");
    assert!(timing.total() <= total, "{timing:?} in {total:?}");
}

#[tokio::test]
async fn a_refusal_reports_the_time_that_the_cost_of_the_queue_takes() {
    let gate = Gate::default();
    let passed = gate.clone();
    // One millisecond per unit.
    let stage = Stage::each("units", move |n: &u64| {
        if *n == 13 {
            passed.pass();
            return Ok(*n);
        }
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_millis(*n) {
            std::thread::yield_now();
        }
        Ok(*n)
    });
    let node = serve(stage.on_threads().cost(|n| *n).queue(2)).await;
    let client = node.client();
    for n in [10u64, 100, 20, 80, 40, 60] {
        client.call::<u64, u64>("/route", n).await.unwrap();
    }
    let call = |n: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
    };
    let mut calls = vec![call(13)];
    until("the worker is busy", || gate.arrived() == 1).await;
    calls.extend([call(400), call(500)]);
    until("the queue is full", || node.describe().stages[0].queued == 2).await;
    let error = client.call::<u64, u64>("/route", 1).await.unwrap_err();
    let retry_after = error.retry_after().unwrap();
    assert!(retry_after > Duration::from_millis(300), "two entries, but nine hundred units: {retry_after:?}");
    for call in calls.drain(1..) {
        call.abort();
    }
    gate.open();
    calls.pop().unwrap().await.unwrap().unwrap();
}
