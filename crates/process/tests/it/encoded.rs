//! What is encoded for a child: who pays for it, where it is done, and a `Serialize` that panics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use callboard_codec::{DecodeLimits, Encoded, Format, Map, Payload, Value};
use callboard_core::{App, CallOptions, ErrorKind, Limits, Stage};
use callboard_process::{Isolate as _, stage};
use schemars::JsonSchema;
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::Notify;

use crate::isolate::only_this_test;
use crate::{config, restarts};

/// A call of `route` by the child of `config("calls")`.
fn asks(route: &str) -> Value {
    let entries = [("route", Value::from(route)), ("input", Value::Null), ("count", Value::from(1))];
    Value::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map>())
}

#[tokio::test]
async fn what_is_encoded_for_a_child_is_charged_to_its_call() {
    let long = |bytes: usize| Value::from("x".repeat(bytes));
    let text = Stage::each("text", move |bytes: &i64| Ok(long(usize::try_from(*bytes).unwrap())));
    let app = App::new().limits(Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() });
    let read = callboard_core::Pipeline::from(text.clone()).then(crate::worker());
    let node = app.route("/read", read).route("/text", text).route("/asks", stage("asks", &config("calls")));
    let node = node.start().await.unwrap();
    assert!(node.client().call::<i64, Value>("/read", 300_000).await.is_ok());
    let error = node.client().call::<i64, Value>("/read", 2_000_000).await.unwrap_err();
    assert!(error.message().contains("max_in_flight_bytes"), "{error}");

    let mut asks = asks("/text");
    let Value::Map(entries) = &mut asks else { unreachable!() };
    entries.insert("input".to_owned(), Value::from(2_000_000));
    let answers: Value = node.client().call("/asks", asks).await.unwrap();
    let message = answers.as_list().unwrap()[0].get("message").and_then(Value::as_str).unwrap();
    assert!(message.contains("max_in_flight_bytes"), "{message}");
    assert_eq!(node.describe().in_flight_bytes, 0);
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Bomb {
    ticks: bool,
}

impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.ticks, "it ticks");
        serializer.collect_map([("ticks", self.ticks)])
    }
}

#[tokio::test]
async fn a_serialize_that_panics_is_an_error_of_its_call_alone() {
    let ticks = Stage::each("ticks", |bomb: &Bomb| Ok(bomb.ticks)).isolate_with(only_this_test);
    let bomb = Stage::each("bomb", |_: &Value| Ok(Bomb { ticks: true }));
    let app = App::new().route("/ticks", ticks).route("/bomb", bomb).route("/asks", stage("asks", &config("calls")));
    let node = app.start().await.unwrap();
    let client = node.client();
    let call = |ticks| client.call::<_, bool>("/ticks", Bomb { ticks });
    assert!(!call(false).await.unwrap());
    let error = call(true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(error.message().ends_with("it ticks"), "{error}");

    let asked = tokio::time::timeout(Duration::from_secs(20), client.call::<_, Value>("/asks", asks("/bomb")));
    let answers = asked.await.expect("it is answered").unwrap();
    let message = answers.as_list().unwrap()[0].get("message").and_then(Value::as_str).unwrap();
    assert!(message.ends_with("it ticks"), "{message}");
    assert_eq!(restarts(&node), 0);
}

static IS_WRITTEN: Notify = Notify::const_new();
static HAVE_OTHERS_RUN: AtomicBool = AtomicBool::new(false);

/// Waits while it is written until another task of the runtime has run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Patient(String, bool);

impl Serialize for Patient {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&self.0)?;
        IS_WRITTEN.notify_one();
        let have_run = (0..10_000).any(|_| {
            thread::park_timeout(Duration::from_millis(1));
            HAVE_OTHERS_RUN.load(Ordering::SeqCst)
        });
        pair.serialize_element(&have_run)?;
        pair.end()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_large_input_for_a_child_is_encoded_off_the_runtime() {
    let stage = Stage::each("patient", |Patient(_, have_run): &Patient| Ok(*have_run)).isolate_with(only_this_test);
    let node = App::new().route("/patient", stage).start().await.unwrap();
    tokio::spawn(async {
        IS_WRITTEN.notified().await;
        HAVE_OTHERS_RUN.store(true, Ordering::SeqCst);
    });
    let input = Patient("x".repeat(1 << 20), false);
    assert!(node.client().call::<_, bool>("/patient", input).await.unwrap());
}

#[tokio::test]
async fn a_body_goes_to_a_child_and_back_without_a_tree() {
    let node = crate::started(crate::worker()).await;
    let client = node.client();
    let route = client.route("/child").unwrap();
    let item = Value::List(vec![Value::from("a"), Value::Bytes(vec![7; 5000].into())]);
    let bytes = item.encode(Format::Envelope).unwrap();
    let input = route.input().decode(Format::Envelope, &bytes, &DecodeLimits::default()).unwrap();
    assert!(input.is::<Encoded>());
    let admission = client.edge().admit(&route, bytes.len() as u64).unwrap();
    let output: Payload = client.edge().submit(admission, input, CallOptions::new()).await.unwrap().payload;
    assert!(output.is::<Encoded>());
    assert_eq!(output.into_inner::<Value>().unwrap(), item);
    for (format, body) in [(Format::Json, r#"["a", {"\u0062": -0}]"#), (Format::Msgpack, "\u{2}")] {
        let limits = DecodeLimits::default();
        let (sent, input) = (body.into(), |bytes| route.input().decode(format, bytes, &limits).unwrap());
        assert!(input(&sent).is::<Encoded>(), "{format}");
        let admission = client.edge().admit(&route, body.len() as u64).unwrap();
        let output = client.edge().submit(admission, input(&sent), CallOptions::new()).await.unwrap().payload;
        assert_eq!(output.into_inner::<Value>().unwrap(), Value::decode(format, &sent, &limits).unwrap());
    }
    let broken = bytes.slice(..bytes.len() - 1);
    assert!(route.input().decode(Format::Envelope, &broken, &DecodeLimits::default()).is_err(), "it is checked here");
}
