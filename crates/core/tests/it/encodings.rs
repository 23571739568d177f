//! How often a typed value is encoded: never between stages of one process, once at a border.

use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::{DataType, DecodeLimits, Encoded, Format, Local, Payload, Value};
use callboard_core::{App, CacheSettings, CallError, CallOptions, Limits, Node, Pipeline, RouteSpec, Stage};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::support::serve;

static ENCODED: AtomicUsize = AtomicUsize::new(0);
static DECODED: AtomicUsize = AtomicUsize::new(0);

/// Counts how often it is written or read.
#[derive(Debug, Clone, PartialEq)]
struct Counted(u64);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ENCODED.fetch_add(1, Ordering::SeqCst);
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::SeqCst);
        u64::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Counted {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Counted".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        u64::json_schema(generator)
    }
}

fn counts() -> (usize, usize) {
    (ENCODED.load(Ordering::SeqCst), DECODED.load(Ordering::SeqCst))
}

/// One test, because the counts are shared.
#[tokio::test]
async fn a_typed_value_is_encoded_only_at_a_border() {
    let add = |name: &str| Stage::each(name, |n: &Counted| Ok(Counted(n.0 + 1)));
    let pipeline = Pipeline::from(add("task")).then(add("threads").on_threads()).then(add("batches").max_batch_size(8));
    let node = serve(pipeline).await;
    let out: Counted = node.client().call("/route", Counted(1)).await.unwrap();
    assert_eq!((out.0, counts()), (4, (0, 0)), "stages of one process pass Rust values");

    let envelope = Payload::new(out).to_envelope().unwrap().into_bytes();
    assert_eq!(counts(), (1, 0), "a border encodes once");
    let kind = DataType::for_type::<Counted>();
    let received = kind.decode(Format::Envelope, &envelope, &DecodeLimits::default()).unwrap();
    assert_eq!(counts(), (1, 1), "and the other side decodes once");
    assert_eq!(received.downcast_ref::<Counted>(), Some(&Counted(4)));
}

/// Neither serde nor a clone.
struct Opened(std::sync::Mutex<u64>);

#[tokio::test]
async fn a_type_between_stages_needs_no_serde() {
    let open = Stage::each("open", |n: &u64| Ok(Local(Opened((*n).into())))).on_threads();
    let take = Stage::each("take", |opened: &Local<Opened>| Ok(*opened.0.0.lock().unwrap() + 1));
    let node = serve(Pipeline::from(open).then(take.max_batch_size(4))).await;
    assert_eq!(node.client().call::<u64, u64>("/route", 4).await.unwrap(), 5);
}

/// A stage whose worker takes and gives encoded values, as a worker in another process does.
fn encoded_echo(name: &str) -> Stage<Value, Value> {
    Stage::<Encoded, Encoded>::each(name, |encoded: &Encoded| Ok(encoded.clone())).of_types()
}

fn envelope_of(value: &Value) -> bytes::Bytes {
    value.encode(Format::Envelope).unwrap()
}

/// What an edge does with an envelope: whether it was kept encoded, and the output.
async fn send(node: &Node, route: &str, bytes: bytes::Bytes) -> (bool, Result<Payload, CallError>) {
    send_as(Format::Envelope, node, route, bytes).await
}

async fn send_as(format: Format, node: &Node, route: &str, bytes: bytes::Bytes) -> (bool, Result<Payload, CallError>) {
    let client = node.client();
    let route = client.route(route).unwrap();
    let input = route.input().decode(format, &bytes, &DecodeLimits::default()).unwrap();
    let is_encoded = input.is::<Encoded>();
    let admission = client.edge().admit(&route, bytes.len() as u64).unwrap();
    let outcome = client.edge().submit(admission, input, CallOptions::new()).await;
    (is_encoded, outcome.map(|reply| reply.payload))
}

#[tokio::test]
async fn a_body_stays_encoded_until_something_here_reads_it() {
    let length = || Stage::each("length", |text: &Value| Ok(Value::from(text.as_str().map_or(0, str::len) as u64)));
    let read = || Pipeline::from(encoded_echo("echo")).then(Pipeline::from(length()));
    let both = Pipeline::ensemble((encoded_echo("left"), encoded_echo("right")))
        .map("join", |(left, right): &(Value, Value)| Ok(Value::List(vec![left.clone(), right.clone()])));
    let same = encoded_echo("same").pure().cache(CacheSettings::new(1 << 20));
    let costly = encoded_echo("costly").cost(|value: &Value| value.resident_bytes() as u64);
    let any = DataType::value;
    let app = App::new()
        .route("/echo", encoded_echo("first"))
        .route("/costly", costly)
        .route("/same", same)
        .mount(RouteSpec::described("/both", both, any(), any()))
        .mount(RouteSpec::described("/read", read(), any(), any()));
    let node = app.start().await.unwrap();

    let text = Value::from("four");
    let bytes = envelope_of(&text);
    let (is_encoded, output) = send(&node, "/echo", bytes.clone()).await;
    let output = output.unwrap();
    assert!(is_encoded && output.is::<Encoded>());
    assert_eq!(output.encode(Format::Envelope).unwrap(), bytes);
    for (route, keeps, expected) in [
        ("/read", true, Value::from(4)),
        ("/both", true, Value::List(vec![text.clone(), text.clone()])),
        ("/costly", false, text.clone()),
        ("/same", false, text.clone()),
    ] {
        for format in [Format::Envelope, Format::Json, Format::Msgpack] {
            let (is_encoded, output) = send_as(format, &node, route, text.encode(format).unwrap()).await;
            let output = output.unwrap().into_inner::<Value>().unwrap();
            assert_eq!((is_encoded, &output), (keeps, &expected), "{route} {format}");
        }
    }
    let called: String = node.client().call("/echo", "four".to_owned()).await.unwrap();
    assert_eq!(called, "four");
}

/// A list of nulls takes 32 times as much as its envelope.
#[tokio::test]
async fn what_is_read_out_of_an_envelope_is_charged_to_its_call() {
    let length = Stage::each("length", |list: &Value| Ok(Value::from(list.as_list().map_or(0, <[_]>::len) as u64)));
    let map = Pipeline::from(encoded_echo("echo"))
        .map("count", |list: &Value| Ok(Value::from(list.as_list().map_or(0, <[_]>::len) as u64)));
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let (any, app) = (DataType::value, App::new().limits(limits));
    let app = app.route("/echo", encoded_echo("other")).mount(RouteSpec::described("/map", map, any(), any()));
    let read = Pipeline::from(encoded_echo("before")).then(Pipeline::from(length));
    let node = app.mount(RouteSpec::described("/read", read, any(), any())).start().await.unwrap();
    let nulls = |count: usize| envelope_of(&Value::List(vec![Value::Null; count]));
    assert!(send(&node, "/echo", nulls(200_000)).await.1.is_ok(), "nothing is read");
    for route in ["/read", "/map"] {
        assert_eq!(send(&node, route, nulls(5_000)).await.1.unwrap().into_inner::<u64>().unwrap(), 5_000, "{route}");
        let error = send(&node, route, nulls(200_000)).await.1.unwrap_err();
        assert!(error.message().contains("max_in_flight_bytes"), "{route}: {error}");
    }
}

#[tokio::test]
async fn equal_inputs_share_a_kept_answer_however_they_are_encoded() {
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&runs);
    let count = Stage::each("count", move |_: &Value| Ok(Value::from(counted.fetch_add(1, Ordering::SeqCst) as u64)));
    let count = count.pure().cache(CacheSettings::new(1 << 20));
    let pipeline = Pipeline::from(encoded_echo("echo")).then(Pipeline::from(count));
    let app = App::new().mount(RouteSpec::described("/count", pipeline, DataType::value(), DataType::value()));
    let node = app.start().await.unwrap();
    let mut long = envelope_of(&Value::from(7)).to_vec();
    // The same number in 32 bits.
    long.truncate(24);
    long.extend_from_slice(&[0xce, 0, 0, 0, 7]);
    (long[8], long[16]) = (5, 29);
    for bytes in [envelope_of(&Value::from(7)), long.into()] {
        assert_eq!(send(&node, "/count", bytes).await.1.unwrap().into_inner::<u64>().unwrap(), 0);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
