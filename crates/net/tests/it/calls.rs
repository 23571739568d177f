//! One call, one outcome: values, errors, deadlines, cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::wire::{Call, Fail, FrameKind, Hello, VERSION, frame_head};
use callboard_codec::{DecodeLimits, Map, Tensor, Value};
use callboard_core::edge::{DeclaredResponse, ErrorParts};
use callboard_core::{
    App, CallContext, CallError, CallOptions, Caller, ErrorKind, Failure, FunctionCall, Limits, Priority,
    ResponseFields, RetryPolicy, RouteSpec, Stage,
};
use callboard_net::testing::RawPeer;
use callboard_net::{CallFailure, Prepared};
use futures_util::StreamExt;
use tokio::sync::Semaphore;

use crate::common::{IDENTITY, LONG, ServingNode, builder, until};

fn app() -> App {
    let shout = Stage::each("shout", |text: &String| match text.as_str() {
        "" => Err(Failure::invalid_input("nothing to shout")),
        "tea" => Err(Failure::new("a teapot").with_status(418).with_type("Teapot").with_details(Value::from(7))),
        "die" => panic!("last words"),
        text => Ok(text.to_uppercase()),
    });
    let echo = Stage::each("echo", |value: &Value| Ok(value.clone()));
    let scale = Stage::each("scale", |call: &FunctionCall| {
        let (x, factor): (f64, f64) = (call.arg(0, "x")?, call.optional_arg(1, "factor")?.unwrap_or(2.0));
        Ok(x * factor)
    });
    let full = || Failure::overloaded("full").with_retry_after(Duration::from_secs(60)).with_type("Crowded");
    let refuse = Stage::each("refuse", move |hand_on: &bool| -> Result<String, Failure> {
        if !hand_on {
            return Err(full());
        }
        // Like the error of a call made by this stage.
        Err(CallError::from(ErrorParts {
            error_type: Some("Crowded".to_owned()),
            retry_after: Some(Duration::from_secs(60)),
            ..ErrorParts::new(ErrorKind::Overloaded, "full")
        }))?
    });
    App::new().route("/shout", shout).route("/echo", echo).route("/scale", scale).route("/refuse", refuse)
}

/// The same code, for both kinds of client.
async fn check_calls(caller: &impl Caller) {
    assert_eq!(caller.call::<_, String>("/shout", "ada".to_owned()).await.unwrap(), "ADA");
    assert_eq!(caller.send("scale", [3.0], Map::new()).await.unwrap(), Value::Float(6.0));
    let keyword = FunctionCall::default().with_arg(3.0).with_kwarg("factor", 3.0);
    assert_eq!(caller.send_with("/scale", keyword, CallOptions::new()).await.unwrap(), Value::Float(9.0));
    assert_eq!(caller.send("shout", ["hey"], Map::new()).await.unwrap(), Value::from("HEY"));

    let error = caller.call::<_, String>("/shout", "tea".to_owned()).await.unwrap_err();
    assert_eq!((error.kind(), error.message(), error.status()), (ErrorKind::Failed, "a teapot", Some(418)));
    assert_eq!((error.error_type(), error.stage()), (Some("Teapot"), Some("shout")));
    assert_eq!(error.details(), Some(&Value::from(7)));
    assert_eq!(CallFailure::classify(&error), CallFailure::Function);

    for hand_on in [true, false] {
        let error = caller.call::<_, String>("/refuse", hand_on).await.unwrap_err();
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Overloaded, Some(Duration::from_secs(60))));
        assert_eq!((error.was_started(), error.is_retryable()), (true, !hand_on), "{error:?}");
        assert_eq!(error.error_type(), Some("Crowded"));
    }

    let error = caller.call::<_, String>("/shout", "die".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert!(error.remote_trace().is_some_and(|trace| trace.contains("last words")), "{error:?}");

    let error = caller.call::<_, String>("/shout", 7).await.unwrap_err();
    assert_eq!((error.kind(), CallFailure::classify(&error)), (ErrorKind::InvalidInput, CallFailure::Request));
    let error = caller.call::<_, String>("/nowhere", 7).await.unwrap_err();
    assert_eq!((error.kind(), CallFailure::classify(&error)), (ErrorKind::NotFound, CallFailure::NoSuchRoute));
    let error = caller.send("scale", FunctionCall::NO_ARGS, Map::new()).await.unwrap_err();
    assert_eq!(error.message(), "argument `x` is missing: give it as positional argument 1 or by name");
    let error = caller.call::<_, u64>("/shout", "ada".to_owned()).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Internal, true), "{error}");
    for part in ["route `/shout` gives ", " cannot be read as `u64`: ", "string \"ADA\", expected u64"] {
        assert!(error.message().contains(part), "{error}");
    }

    let prepared = caller.prepare("/shout", "ada".to_owned()).unwrap();
    for _ in 0..2 {
        let again = caller.call_prepared::<String>(prepared.clone(), CallOptions::new()).await;
        assert_eq!(again.unwrap(), "ADA");
    }

    let words = ["a", "", "b", "tea", "c"].map(str::to_owned);
    let outcomes: Vec<Result<String, CallError>> = caller.stream("/shout", words).unwrap().collect().await;
    let outcomes: Vec<String> =
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|error| error.message().to_owned())).collect();
    assert_eq!(outcomes, ["A", "nothing to shout", "B", "a teapot", "C"]);

    // Endless: the node stops when the reader stops.
    let taken = Arc::new(AtomicUsize::new(0));
    let numbers = (0_i64..).inspect({
        let taken = Arc::clone(&taken);
        move |_| {
            taken.fetch_add(1, Ordering::SeqCst);
        }
    });
    let first: Vec<Result<i64, CallError>> =
        caller.stream("/echo", numbers).unwrap().look_ahead(64).take(100).collect().await;
    assert_eq!(first.into_iter().map(Result::unwrap).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert!(taken.load(Ordering::SeqCst) <= 100 + 64, "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_quic_gets_the_same_as_one_in_process() {
    let served = ServingNode::start(app()).await;
    check_calls(&served.node.client()).await;
    served.until_idle().await;
    check_calls(&served.client().await).await;
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_route_is_there_for_its_own_process_only() {
    let secret = Stage::each("secret", |name: &String| Ok(name.clone()));
    let served = ServingNode::start(app().route("@secret", secret)).await;
    let client = served.client().await;
    for name in ["@secret", "/@secret"] {
        let error = client.call::<_, String>(name, "x".to_owned()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}");
    }
    assert_eq!(client.send("@secret", ["x"], Map::new()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(served.node.client().call::<_, String>("@secret", "x".to_owned()).await.unwrap(), "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_every_size_round_trip() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    for elements in [0, 1, 100, 5_000, 300_000] {
        let tensor = Tensor::from_vec(&[elements], vec![0.5_f32; elements]).unwrap();
        let value = Value::from(Map::from_iter([("x", Value::from(tensor)), ("y", Value::from("z"))]));
        assert_eq!(client.call::<_, Value>("/echo", value.clone()).await.unwrap(), value, "{elements}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_the_node_refuses_is_the_callers_error() {
    let mut config = crate::common::patient();
    config.frames.max_body_bytes = 1 << 20;
    let served = ServingNode::start_with(app(), config).await;
    let client = served.client().await;
    let error = client.call::<_, Value>("/echo", "a".repeat(2 << 20)).await.unwrap_err();
    assert_eq!((error.kind(), CallFailure::classify(&error)), (ErrorKind::InvalidInput, CallFailure::Request));
    assert_eq!((error.status(), error.was_started()), (Some(413), false));
    assert!(error.message().contains("1048576 (max_body_bytes)"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_the_client_does_not_receive_is_not_the_fault_of_the_input() {
    let served = ServingNode::start(app()).await;
    let limits = DecodeLimits { max_bytes: 1 << 10, ..DecodeLimits::default() };
    let client = builder().decode_limits(limits).connect(&served.url()).await.unwrap();
    let error = client.call::<_, Value>("/echo", "a".repeat(2 << 10)).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Internal, true), "{error}");
    assert_eq!(error.error_type(), Some("reply_too_large"));
    assert_eq!(CallFailure::classify(&error), CallFailure::Infrastructure);
    assert_eq!(client.call::<_, String>("/echo", "a".to_owned()).await.unwrap(), "a");
}

/// More calls than a stage has room for, with every kind of client.
async fn waits_for_room(caller: &impl Caller) {
    let doubled = caller.stream::<_, u64>("/narrow", 0..100_u64).unwrap().look_ahead(40);
    let doubled: Vec<u64> = doubled.map(Result::unwrap).collect().await;
    assert_eq!(doubled, (0..100).map(|n| 2 * n).collect::<Vec<_>>());

    let inputs = futures_util::stream::iter(["1", "two", "3"].map(str::to_owned));
    let parsed = caller.stream_from::<_, u64>("/narrow", inputs).unwrap();
    let mut parsed = parsed.preprocess(|text: &String| Ok(text.parse::<u64>()?)).with_inputs();
    let mut failed = Vec::new();
    while let Some((text, outcome)) = parsed.next().await {
        if outcome.is_err() {
            failed.push(text);
        }
    }
    assert_eq!(failed, ["two"]);

    let late = caller.stream::<_, u64>("/never", [1_u64]).unwrap().timeout(Duration::from_millis(50)).stop_at_error();
    let late: Vec<Result<u64, CallError>> = late.collect().await;
    let [Err(late)] = late.as_slice() else { panic!("{late:?}") };
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    assert!(late.message().starts_with("input 0 of the stream: "), "{late}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_calls_waits_for_room_and_has_the_same_options_with_every_client() {
    let narrow = Stage::each_async("narrow", |n: Arc<u64>| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(2 * *n)
    });
    let never = Stage::each_async("never", |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let app = App::new().route("/narrow", narrow.concurrency(2).queue(2)).route("/never", never);
    let served = ServingNode::start(app).await;
    waits_for_room(&served.node.client()).await;
    waits_for_room(&served.client().await).await;
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_get_their_own_answers() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    let inputs = futures_util::stream::iter((0..2_000_i64).map(Value::from));
    let outputs: Vec<Result<i64, CallError>> = client.stream_from("/echo", inputs).unwrap().collect().await;
    let outputs: Vec<i64> = outputs.into_iter().map(Result::unwrap).collect();
    assert_eq!(outputs, (0..2_000).collect::<Vec<_>>());
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_call_can_be_repeated_and_reports_its_times() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    let prepared = client.prepare("/shout", "ada".to_owned()).unwrap();
    for _ in 0..2 {
        let returned = client.exchange::<String>(prepared.clone(), CallOptions::new()).await.unwrap();
        assert_eq!(returned.output, "ADA");
        assert!(returned.timing.total() > Duration::ZERO);
    }
}

/// A stage whose calls wait until they are released. It counts started and cancelled calls.
fn gate(gate: &Arc<Semaphore>, started: &Arc<AtomicUsize>) -> App {
    let (gate, started) = (Arc::clone(gate), Arc::clone(started));
    let held = Stage::each_async("held", move |n: Arc<i64>| {
        let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
        async move {
            started.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            Ok(*n)
        }
    });
    App::new().route("/held", held.concurrency(64))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_is_cancelled_where_it_runs() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::default());
    let served = ServingNode::start(gate(&open, &started)).await;
    let client = served.client().await;
    let calls: Vec<_> = (0..8_i64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, i64>("/held", n).await })
        })
        .collect();
    until(|| started.load(Ordering::SeqCst) == 8).await;
    for call in &calls {
        call.abort();
    }
    // The gate stays closed: the calls end because they were cancelled.
    served.until_idle().await;
    let line = "callboard_stage_discarded_total{stage=\"held\",place=\"worker\",reason=\"cancelled\"} 8";
    // Their workers end a moment after the calls.
    until(|| served.node.client().metrics().contains(line)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_crosses_and_ends_the_call_at_both_ends() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::default());
    let served = ServingNode::start(gate(&open, &started)).await;
    let client = served.client().await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(100));
    let error = client.call_with::<_, i64>("/held", 1, options.with_priority(Priority::High)).await.unwrap_err();
    assert_eq!((error.kind(), CallFailure::classify(&error)), (ErrorKind::DeadlineExceeded, CallFailure::Deadline));
    served.until_idle().await;

    // A caller that waits longer gets the error of the node.
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let cluster = IDENTITY.cluster().to_owned();
    peer.greet(&Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() }).await.unwrap();
    let body = Value::from(1).to_envelope().unwrap().into_bytes();
    let call = Call { route: "/held".to_owned(), millis_left: 100, ..Call::default() };
    let head = frame_head(FrameKind::Call, 0, &call, body.len()).unwrap();
    let frames = tokio::time::timeout(LONG, peer.exchange(vec![head, body])).await.unwrap().unwrap();
    assert_eq!(frames[0].0.header::<Fail>().unwrap().kind, "deadline_exceeded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_refuses_and_the_call_is_repeated() {
    let (open, started) = (Arc::new(Semaphore::new(0)), Arc::default());
    let app = gate(&open, &started).limits(Limits { max_in_flight: 1, ..Limits::default() });
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, i64>("/held", 1).await }
    });
    until(|| started.load(Ordering::SeqCst) == 1).await;

    let once = builder().attempts(1).connect(&served.url()).await.unwrap();
    let error = once.call::<_, i64>("/held", 2).await.unwrap_err();
    assert_eq!((error.kind(), CallFailure::classify(&error)), (ErrorKind::Overloaded, CallFailure::NeverStarted));
    assert!(error.retry_after().is_some());

    let refused = || {
        served
            .node
            .client()
            .metrics()
            .lines()
            .filter(|line| line.starts_with("callboard_refused_total"))
            .map(|line| line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default())
            .sum::<u64>()
    };
    let before = refused();
    let patient = tokio::spawn(async move { client.call::<_, i64>("/held", 3).await });
    until(|| refused() > before).await;
    open.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(tokio::time::timeout(LONG, patient).await.unwrap().unwrap().unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_stage_refuses_is_repeated_as_the_policy_says() {
    let tries = AtomicUsize::new(0);
    let third = Stage::each("third", move |n: &i64| match tries.fetch_add(1, Ordering::SeqCst) % 3 {
        2 => Ok(*n),
        _ => Err(Failure::overloaded("busy").with_retry_after(Duration::from_millis(1))),
    });
    let served = ServingNode::start(App::new().route("/third", third)).await;
    let client = served.client().await;
    assert_eq!(client.call::<_, i64>("/third", 1).await.unwrap(), 1);
    let never = builder().retry(RetryPolicy::never()).connect(&served.url()).await.unwrap();
    for _ in 0..2 {
        let error = never.call::<_, i64>("/third", 2).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Overloaded, true), "{error}");
    }
    assert_eq!(never.call::<_, i64>("/third", 3).await.unwrap(), 3);
    // The policy of a call counts instead, also that of each call of a stream.
    let options = CallOptions::new().with_retry(RetryPolicy::default());
    assert_eq!(never.call_with::<_, i64>("/third", 4, options.clone()).await.unwrap(), 4);
    let once = CallOptions::new().with_retry(RetryPolicy::never());
    assert!(client.call_with::<i64, i64>("/third", 5, once.clone()).await.is_err());
    let mut stream = client.stream::<_, i64>("/third", [6_i64]).unwrap().options(once);
    assert_eq!(stream.next().await.unwrap().unwrap_err().kind(), ErrorKind::Overloaded);
    let mut stream = never.stream::<_, i64>("/third", [7_i64]).unwrap().options(options);
    assert_eq!(stream.next().await.unwrap().unwrap(), 7);
}

/// A text whose serde code may panic or fail.
#[derive(Clone)]
struct Bomb(String);

impl schemars::JsonSchema for Bomb {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl serde::Serialize for Bomb {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.0.starts_with("out"), "no way out");
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Bomb {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        assert!(!text.starts_with("in"), "no way in");
        Ok(Self(text))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_serde_code_fails_only_its_own_call() {
    let echo = Stage::each("bomb", |bomb: &Bomb| Ok(bomb.clone()));
    let served = ServingNode::start(App::new().route("/bomb", echo)).await;
    let client = served.client().await;
    // Small calls share a stream, large ones are decoded on other threads.
    for length in [10, 1 << 20] {
        let call = |word: &str| client.call::<_, String>("/bomb", format!("{word}{}", ".".repeat(length)));
        let (well, read, written) = tokio::join!(call("well"), call("in"), call("out"));
        assert!(well.unwrap().starts_with("well"));
        for (outcome, words) in [(read, "no way in"), (written, "no way out")] {
            let error = outcome.unwrap_err();
            assert_eq!(
                (error.kind(), CallFailure::classify(&error)),
                (ErrorKind::Internal, CallFailure::Infrastructure)
            );
            assert!(error.message().ends_with(words), "{error}");
        }
    }
    served.until_idle().await;
}

/// An output whose destructor may panic.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct PanicsOnDrop(String);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(!self.0.starts_with("sharp") || std::thread::panicking(), "it cuts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_panics_on_drop_fails_only_its_call() {
    let make = Stage::each("sharp", |text: &String| Ok(PanicsOnDrop(text.clone())));
    let served = ServingNode::start(App::new().route("/sharp", make)).await;
    let client = served.client().await;
    for length in [10, 1 << 20] {
        let call = |word: &str| client.call::<_, String>("/sharp", format!("{word}{}", ".".repeat(length)));
        let (well, sharp, again) = tokio::join!(call("well"), call("sharp"), call("again"));
        assert!(well.unwrap().starts_with("well") && again.unwrap().starts_with("again"));
        assert_eq!(sharp.unwrap_err().kind(), ErrorKind::Internal);
    }
    served.until_idle().await;
}

/// Its connection survives, because QUIC has its own thread.
#[test]
fn a_call_without_a_deadline_has_the_nodes_also_when_the_node_is_stuck() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (node_runtime, client_runtime) = (runtime(), runtime());
    let limits = Limits { default_timeout: Duration::from_millis(300), ..Limits::default() };
    let served = node_runtime.block_on(ServingNode::start(app().limits(limits)));
    let client = client_runtime.block_on(served.client());
    let (free, stuck) = std::sync::mpsc::channel::<()>();
    let (started, is_stuck) = std::sync::mpsc::channel();
    let sticking = node_runtime.spawn(async move {
        started.send(()).unwrap();
        stuck.recv().unwrap_err();
    });
    is_stuck.recv().unwrap();
    let calling = async {
        let one = client.call::<_, String>("/shout", "ada".to_owned());
        let large = client.call::<_, Value>("/echo", "a".repeat(100_000));
        let outcomes = tokio::time::timeout(LONG, async { tokio::join!(one, large) }).await.unwrap();
        [outcomes.0.unwrap_err(), outcomes.1.unwrap_err()]
    };
    for error in client_runtime.block_on(calling) {
        assert_eq!(CallFailure::classify(&error), CallFailure::Deadline, "{error}");
    }
    drop(free);
    node_runtime.block_on(sticking).unwrap();
    node_runtime.block_on(served.until_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reads_the_status_and_headers_of_an_answer() {
    let stage = |name: &str| {
        Stage::each_with_context(name, |chooses: &bool, context: &CallContext| {
            if *chooses {
                context.set_response(ResponseFields::new().with_status(404).with_header("x-model", "m1"));
            }
            Ok(*chooses)
        })
    };
    let declared = DeclaredResponse { status: Some(201), ..DeclaredResponse::default() };
    let app = App::new()
        .route("/free", stage("free"))
        .mount(RouteSpec::new("/declared", stage("declared")).response(declared));
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let fields = async |route: &str, chooses: bool| {
        let prepared = Prepared::new(route, chooses).unwrap();
        client.exchange::<bool>(prepared, CallOptions::new()).await.unwrap().fields
    };
    let chosen = ResponseFields::new().with_status(404).with_header("x-model", "m1");
    assert_eq!((fields("/free", false).await, fields("/free", true).await), (None, Some(chosen.clone())));
    let declared = ResponseFields::new().with_status(201);
    assert_eq!((fields("/declared", false).await, fields("/declared", true).await), (Some(declared), Some(chosen)));
}
