//! Ordered streams: order, bounds, errors in their place, and an early stop without leftovers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use callboard_codec::{Map, Value};
use callboard_core::{
    App, CallOptions, Caller, ErrorKind, Failure, FunctionCall, Instant, Limits, Node, Pipeline, RetryPolicy,
    RouteSpec, Stage,
};
use futures_util::{FutureExt, StreamExt, stream};

use super::support::{Gate, PATIENCE, gated, serve, until};

/// Whether the node is empty.
fn is_quiet(node: &Node) -> bool {
    let description = node.describe();
    description.in_flight == 0
        && description.in_flight_bytes == 0
        && description.outcomes == description.admitted
        && description.stages.iter().all(|stage| stage.queued == 0 && stage.replicas.iter().all(|r| !r.busy))
}

/// Counts the pulls from an endless producer.
fn counted(pulled: &Arc<AtomicUsize>) -> impl Iterator<Item = u64> + use<> {
    let pulled = Arc::clone(pulled);
    (0u64..).inspect(move |_| {
        pulled.fetch_add(1, Ordering::SeqCst);
    })
}

#[tokio::test]
async fn results_keep_the_order_of_the_inputs() {
    // Each even item waits until the next odd one is done.
    let done = Arc::new((Mutex::new(HashSet::new()), Condvar::new()));
    let stage = Stage::each("swap", move |n: &u64| {
        let (numbers, changed) = &*done;
        let mut numbers = numbers.lock().unwrap();
        if n.is_multiple_of(2) {
            let waited = changed.wait_timeout_while(numbers, PATIENCE, |done| !done.contains(&(n + 1))).unwrap();
            assert!(!waited.1.timed_out(), "{n} was never overtaken");
            numbers = waited.0;
        }
        numbers.insert(*n);
        changed.notify_all();
        Ok(n * 10)
    });
    let node = serve(stage.on_threads().replicas(2)).await;
    let tens = node.client().stream::<_, u64>("/route", 0..100u64).unwrap();
    let tens: Vec<u64> = tens.map(Result::unwrap).collect().await;
    assert_eq!(tens, (0..100).map(|n| n * 10).collect::<Vec<_>>());
    // A worker answers its callers before it is free.
    until("nothing is left", || is_quiet(&node)).await;
}

/// A stage whose own code refuses each input this many times.
fn refusing(times: u64) -> Stage<u64, u64> {
    let tries = Mutex::new(std::collections::HashMap::<u64, u64>::new());
    // A future, not a closure: a closure that a busy machine makes slow moves to a thread, and a paused clock does not
    // wait for threads.
    Stage::each_async("refusing", move |n: Arc<u64>| {
        let tried = {
            let mut tries = tries.lock().unwrap();
            let tried = tries.entry(*n).or_default();
            *tried += 1;
            *tried
        };
        let refusal = Failure::overloaded("busy").with_retry_after(Duration::from_millis(20));
        std::future::ready(if tried > times { Ok(*n + 1) } else { Err(refusal) })
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_stage_refuses_is_made_again_within_the_deadline() {
    let node = serve(refusing(5)).await;
    let sums = node.client().stream::<_, u64>("/route", 0..50u64).unwrap().timeout(Duration::from_secs(30));
    let sums: Vec<u64> = sums.map(Result::unwrap).collect().await;
    assert_eq!(sums, (1..=50).collect::<Vec<_>>());
    // The stage asks for 20 ms.
    let late = node.client().stream::<_, u64>("/route", 100..101u64).unwrap().timeout(Duration::from_millis(10));
    let refused = node
        .client()
        .stream::<_, u64>("/route", 200..201u64)
        .unwrap()
        .options(CallOptions::new().with_retry(RetryPolicy::never()));
    for mut stream in [late, refused] {
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Overloaded, true), "{error}");
    }
    until("nothing is left", || is_quiet(&node)).await;
}

/// The value is the same for single calls, functions, prepared calls and streams.
#[tokio::test(start_paused = true)]
async fn a_policy_in_the_options_holds_for_every_form_of_a_call() {
    let node = serve(refusing(2)).await;
    let (client, options) = (node.client(), CallOptions::new().with_retry(RetryPolicy::default()));
    assert_eq!(client.call_with::<u64, u64>("/route", 1, options.clone()).await.unwrap(), 2);
    assert_eq!(client.typed::<u64, u64>("/route").unwrap().call_with(2, options.clone()).await.unwrap(), 3);
    let prepared = client.prepare("/route", 3_u64).unwrap();
    assert_eq!(client.call_prepared::<u64>(prepared, options.clone()).await.unwrap(), 4);
    let function = FunctionCall::new([4_u64], Map::new());
    assert_eq!(client.send_with("route", function, options.clone()).await.unwrap(), Value::from(5_u64));
    let mut stream = client.stream::<_, u64>("/route", [5_u64]).unwrap().options(options.clone());
    assert_eq!(stream.next().await.unwrap().unwrap(), 6);

    // Its attempts, its deadline, and no policy.
    let two = CallOptions::new().with_retry(RetryPolicy::default().attempts(2));
    let short = options.with_timeout(Duration::from_millis(30));
    for (input, options) in [(10, two), (20, short), (30, CallOptions::new())] {
        let error = client.call_with::<u64, u64>("/route", input, options).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Overloaded, true), "{input}: {error}");
    }
    until("nothing is left", || is_quiet(&node)).await;
}

#[tokio::test(start_paused = true)]
async fn the_attempts_of_a_call_end_by_the_longest_timeout_of_its_route() {
    let route = RouteSpec::new("/route", refusing(u64::MAX)).max_timeout(Duration::from_secs(1));
    let node = App::new().mount(route).start().await.unwrap();
    let options = CallOptions::new().with_timeout(Duration::from_secs(60));
    let options = options.with_retry(RetryPolicy::default().attempts(u32::MAX));
    let began = Instant::now();
    let error = node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn order_holds_under_random_service_times_and_batches() {
    let random = |name: &str, max: usize| {
        let stage = Stage::each(name, |n: &u64| {
            let started = std::time::Instant::now();
            let work = Duration::from_micros(fastrand::u64(0..200));
            while started.elapsed() < work {
                std::hint::spin_loop();
            }
            Ok(*n)
        });
        stage.max_batch_size(max).on_threads().replicas(3)
    };
    let node = serve(Pipeline::from(random("one", 1)).then(random("four", 4))).await;
    let numbers = node.client().stream::<_, u64>("/route", 0..500u64).unwrap().look_ahead(40);
    let numbers: Vec<u64> = numbers.map(Result::unwrap).collect().await;
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_producer_is_never_pulled_further_ahead_than_allowed() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let pulled = Arc::new(AtomicUsize::new(0));
    let mut numbers = node.client().stream::<_, u64>("/route", counted(&pulled)).unwrap().look_ahead(5);
    assert_eq!(pulled.load(Ordering::SeqCst), 0, "nothing is pulled before the first poll");
    for expected in 0..50 {
        assert_eq!(numbers.next().await.unwrap().unwrap(), expected);
        let received = expected as usize + 1;
        assert!(pulled.load(Ordering::SeqCst) <= received + 5, "{pulled:?} after {received}");
        assert!(node.describe().in_flight <= 5);
    }
    // A busy consumer holds the producer back, while the calls finish.
    until("the pulled inputs are done", || node.describe().in_flight == 0).await;
    assert_eq!(pulled.load(Ordering::SeqCst), 55);
    assert_eq!(node.describe().outcomes, 55);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_cancels_outstanding_calls_and_drops_the_producer() {
    // The batch never fills, so all calls wait in the queue.
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let stage = Stage::each("echo", move |n: &u64| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(*n)
    });
    let node = serve(stage.max_batch_size(100).max_delay(Duration::from_secs(10))).await;
    let pulled = Arc::new(AtomicUsize::new(0));
    let mut numbers = node.client().stream::<_, u64>("/route", counted(&pulled)).unwrap().look_ahead(8);
    let waited = tokio::time::timeout(Duration::from_secs(1), numbers.next()).await;
    assert!(waited.is_err());
    let description = node.describe();
    assert_eq!((description.in_flight, description.stages[0].queued), (8, 8));

    drop(numbers);
    assert_eq!(Arc::strong_count(&pulled), 1, "the producer still exists");
    until("everything is released", || is_quiet(&node)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((ran.load(Ordering::SeqCst), pulled.load(Ordering::SeqCst)), (0, 8));
    let metrics = node.metrics();
    assert!(metrics.contains(r#"callboard_requests_total{route="/route",outcome="cancelled"} 8"#), "{metrics}");
}

#[tokio::test]
async fn an_early_stop_leaks_nothing() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let mut numbers = node.client().stream::<_, u64>("/route", 0u64..).unwrap().look_ahead(8);
    gate.open();
    for expected in 0..34 {
        assert_eq!(numbers.next().await.unwrap().unwrap(), expected);
    }
    drop(numbers);
    until("everything is released", || is_quiet(&node)).await;
    assert!(gate.arrived() <= 34 + 8);
}

fn parse() -> Stage<String, i64> {
    Stage::each("parse", |text: &String| Ok(text.parse::<i64>()?))
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn an_error_answers_its_own_input_and_the_stream_continues() {
    let node = serve(parse()).await;
    let numbers = node.client().stream::<_, i64>("/route", texts(&["1", "two", "3", "", "5"])).unwrap();
    let kinds: Vec<_> = numbers.map(|outcome| outcome.map_err(|error| error.kind())).collect().await;
    assert_eq!(kinds, [Ok(1), Err(ErrorKind::Failed), Ok(3), Err(ErrorKind::Failed), Ok(5)]);
}

#[tokio::test]
async fn a_stream_that_stops_at_errors_names_the_index_and_ends_there() {
    let node = serve(parse()).await;
    let inputs = (0..).map(|n| if n == 22 { "a".to_owned() } else { n.to_string() });
    let mut numbers = node.client().stream::<_, i64>("/route", inputs).unwrap().stop_at_error();
    for expected in 0..22 {
        assert_eq!(numbers.next().await.unwrap().unwrap(), expected);
    }
    let error = numbers.next().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "input 22 of the stream: invalid digit found in string");
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Failed, Some("parse")));
    assert!(numbers.next().await.is_none());
    until("the later inputs are cancelled", || is_quiet(&node)).await;
}

#[tokio::test]
async fn inputs_are_returned_with_their_results() {
    let node = serve(parse()).await;
    let pairs = node.client().stream::<_, i64>("/route", texts(&["8", "x", "7"])).unwrap().with_inputs();
    let pairs: Vec<_> = pairs.map(|(text, outcome)| (text, outcome.ok())).collect().await;
    assert_eq!(pairs, [("8".to_owned(), Some(8)), ("x".to_owned(), None), ("7".to_owned(), Some(7))]);
}

#[tokio::test]
async fn preprocessing_fails_its_own_input_only_and_the_original_is_returned() {
    let double = Stage::each("double", |n: &i64| Ok(n * 2));
    let node = serve(double).await;
    let mut calls = 0;
    let inputs = vec![Some(8), None, Some(7)];
    let pairs = node
        .client()
        .stream::<_, i64>("/route", inputs)
        .unwrap()
        .preprocess(|value: &Option<i64>| {
            calls += 1;
            value.ok_or_else(|| Failure::invalid_input("`value` is missing"))
        })
        .with_inputs();
    let pairs: Vec<_> = pairs.collect().await;
    assert_eq!(calls, 3);
    let outcomes: Vec<_> = pairs.iter().map(|(input, outcome)| (*input, outcome.as_ref().ok().copied())).collect();
    assert_eq!(outcomes, [(Some(8), Some(16)), (None, None), (Some(7), Some(14))]);
    let error = pairs[1].1.as_ref().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, "`value` is missing"));
    // It never became a call.
    assert_eq!(node.describe().admitted, 2);
}

#[tokio::test]
async fn a_stream_waits_for_room_in_a_queue_that_is_shorter_than_its_look_ahead() {
    let first = Stage::each("first", |n: &u64| Ok(*n)).queue(2);
    let second = Stage::each("second", |n: &u64| Ok(*n)).queue(1).on_threads();
    let node = serve(Pipeline::from(first).then(second)).await;
    let numbers = node.client().stream::<_, u64>("/route", 0..2000u64).unwrap().look_ahead(64);
    let numbers: Vec<u64> = numbers.map(Result::unwrap).collect().await;
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
    // A worker answers its callers before it is free.
    until("nothing is left", || is_quiet(&node)).await;
    let metrics = node.metrics();
    let refusals: Vec<_> = metrics.lines().filter(|line| line.starts_with("callboard_stage_refused_total")).collect();
    assert!(!refusals.is_empty() && refusals.iter().all(|line| line.ends_with(" 0")), "{refusals:?}");
}

#[tokio::test]
async fn several_streams_share_one_short_queue_with_plain_calls() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n)).queue(3).on_threads()).await;
    let client = node.client();
    let streams: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let numbers = client.stream::<_, u64>("/route", 0..500u64).unwrap().look_ahead(16);
                numbers.map(Result::unwrap).collect::<Vec<_>>().await
            })
        })
        .collect();
    // Plain calls are refused at the bound; that must not stop a waiting stream for good.
    let caller = tokio::spawn(async move {
        for n in 0..2000u64 {
            let _ = client.call::<u64, u64>("/route", n).await;
        }
    });
    for numbers in streams {
        let numbers = tokio::time::timeout(PATIENCE, numbers).await.expect("nobody waits for ever").unwrap();
        assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    }
    caller.await.unwrap();
    until("everything is released", || is_quiet(&node)).await;
}

#[tokio::test]
async fn a_stream_waits_for_room_on_a_node_that_admits_fewer_calls_than_its_look_ahead() {
    let limits = Limits { max_in_flight: 3, ..Limits::default() };
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let node = App::new().route("/route", echo).limits(limits).start().await.unwrap();
    let numbers = node.client().stream::<_, u64>("/route", 0..500u64).unwrap().look_ahead(64);
    let numbers: Vec<u64> = numbers.map(Result::unwrap).collect().await;
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    assert_eq!(node.describe().refused, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_waits_until_its_timeout_for_room_that_other_calls_occupy() {
    let limits = Limits { max_in_flight: 1, max_in_flight_bytes: 10_000, ..Limits::default() };
    let echo = Stage::each("echo", |n: &String| Ok(n.len() as u64));
    let node = App::new().route("/route", echo).limits(limits).start().await.unwrap();
    let client = node.client();
    let other = client.edge().admit(&client.route("/route").unwrap(), 0).unwrap();

    let mut lengths = client.stream::<_, u64>("/route", texts(&["a", "bb"])).unwrap().timeout(Duration::from_secs(3));
    let started = Instant::now();
    let error = lengths.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert_eq!(started.elapsed().as_secs(), 3);
    assert_eq!(node.describe().refused, 1, "a repeated check counts no refusal");
    drop(other);
    assert_eq!(lengths.next().await.unwrap().unwrap(), 2);

    // An input that fits no empty node does not wait.
    let started = Instant::now();
    let mut lengths = client.stream::<_, u64>("/route", vec!["x".repeat(20_000)]).unwrap();
    assert_eq!(lengths.next().await.unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_result_starts_when_its_reader_waits_for_it() {
    let stage = Stage::each("echo", |n: &u64| Ok(*n)).max_batch_size(100).max_delay(Duration::from_secs(1000));
    let node = serve(stage).await;
    let mut numbers = node.client().stream::<_, u64>("/route", 0..3u64).unwrap().timeout(Duration::from_secs(5));
    let started = Instant::now();
    for nth in 1..=2 {
        let error = numbers.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert_eq!(started.elapsed().as_secs(), 5 * nth, "each result has its own time");
    }
    drop(numbers);
    until("everything is released", || is_quiet(&node)).await;
    let metrics = node.metrics();
    assert!(metrics.contains(r#"callboard_requests_total{route="/route",outcome="deadline_exceeded"} 2"#), "{metrics}");
    assert!(metrics.contains(r#"callboard_requests_total{route="/route",outcome="cancelled"} 1"#), "{metrics}");

    // The deadline of the whole stream ends all missing results.
    let options = CallOptions::new().with_timeout(Duration::from_secs(2));
    let numbers = node.client().stream::<_, u64>("/route", 0..3u64).unwrap().options(options);
    let started = Instant::now();
    let kinds: Vec<_> = numbers.map(|outcome| outcome.unwrap_err().kind()).collect().await;
    assert_eq!(kinds, [ErrorKind::DeadlineExceeded; 3]);
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn inputs_may_arrive_slowly() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let ticks = stream::unfold(0u64, |n| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (n < 5).then_some((n, n + 1))
    });
    let mut numbers = node.client().stream_from::<_, u64>("/route", ticks).unwrap();
    let started = Instant::now();
    for expected in 0..5 {
        assert_eq!(numbers.next().await.unwrap().unwrap(), expected);
        assert_eq!(started.elapsed().as_secs(), expected + 1, "a result waits for no later input");
    }
    assert!(numbers.next().await.is_none());
    assert!(numbers.next().await.is_none());
}

#[tokio::test]
async fn every_input_is_answered_while_the_node_drains() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let mut numbers = node.client().stream::<_, u64>("/route", 0..1000u64).unwrap().look_ahead(4);
    assert_eq!(numbers.next().await.unwrap().unwrap(), 0);
    let drained = node.drain(PATIENCE).await;
    assert_eq!(drained, callboard_core::Drained::Completely, "started calls finish without a poll");
    let rest: Vec<_> = numbers.map(|outcome| outcome.map_err(|error| error.kind())).collect().await;
    assert_eq!(rest.len(), 999);
    assert_eq!(rest[..4], [Ok(1), Ok(2), Ok(3), Ok(4)]);
    assert!(rest[4..].iter().all(|outcome| *outcome == Err(ErrorKind::Unavailable)));
}

#[tokio::test]
async fn an_unknown_route_is_reported_before_any_input_is_pulled() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let error = node.client().stream::<_, u64>("/other", 0..10u64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_stream_may_have_the_largest_timeout() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let mut results = client.stream::<_, u64>("/route", [1u64, 2]).unwrap().timeout(Duration::MAX);
    let first = tokio::spawn(async move { results.next().await });
    until("the first is waited for", || gate.arrived() == 1).await;
    gate.open();
    assert_eq!(first.await.unwrap().unwrap().unwrap(), 1);

    let limits = Limits { default_timeout: Duration::MAX, ..Limits::default() };
    let gate = Gate::default();
    let node = App::new().limits(limits).route("/gated", gated(&gate)).start().await.unwrap();
    let mut results = node.client().stream::<_, u64>("/gated", [1u64]).unwrap();
    let first = tokio::spawn(async move { results.next().await });
    until("the first is waited for", || gate.arrived() == 1).await;
    gate.open();
    assert_eq!(first.await.unwrap().unwrap().unwrap(), 1);
}

#[tokio::test]
async fn a_stream_waits_for_bytes_that_uploads_hold_as_for_those_of_calls() {
    let limits = Limits { max_in_flight_bytes: 1000, ..Limits::default() };
    let echo = Stage::each("echo", |text: &String| Ok(text.clone()));
    let node = App::new().limits(limits).route("/echo", echo).start().await.unwrap();
    let client = node.client();
    let upload = client.edge().held_bytes();
    assert!(upload.try_grow(1000));
    let mut results = client.stream::<_, String>("/echo", ["hello".to_owned()]).unwrap();
    assert!(results.next().now_or_never().is_none(), "there is no room yet");
    drop(upload);
    assert_eq!(results.next().await.unwrap().unwrap(), "hello");

    let mut too_large = client.stream::<_, String>("/echo", ["x".repeat(5000)]).unwrap();
    assert_eq!(too_large.next().await.unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
}
