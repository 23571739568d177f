//! The evaluation relay: its messages are declared here by their numbers, and written and read by prost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use callboard_codec::{Format, Tensor, Value};
use callboard_core::{App, CallContext, Failure, FunctionCall, Instant, Stage};
use prost::{Message, Oneof};
use tokio::sync::Semaphore;

use crate::client::{Client, Server, config, framed};

const SEND: &str = "/kaggle_evaluation_client.KaggleEvaluationService/Send";

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    args: Vec<Payload>,
    #[prost(map = "string, message", tag = "3")]
    kwargs: HashMap<String, Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct Reply {
    #[prost(message, optional, tag = "1")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19")]
    value: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "1")]
    Str(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(sint64, tag = "3")]
    Int(i64),
    #[prost(float, tag = "4")]
    Float(f32),
    #[prost(bool, tag = "5")]
    None(bool),
    #[prost(message, tag = "6")]
    List(List),
    #[prost(message, tag = "7")]
    Tuple(List),
    #[prost(message, tag = "8")]
    Dict(Dict),
    #[prost(bytes = "bytes", tag = "9")]
    PandasFrame(Bytes),
    #[prost(bytes = "bytes", tag = "10")]
    PolarsFrame(Bytes),
    #[prost(bytes = "bytes", tag = "11")]
    PandasSeries(Bytes),
    #[prost(bytes = "bytes", tag = "12")]
    PolarsSeries(Bytes),
    #[prost(bytes = "bytes", tag = "13")]
    Array(Bytes),
    #[prost(bytes = "bytes", tag = "14")]
    Scalar(Bytes),
    #[prost(bytes = "bytes", tag = "15")]
    BytesIo(Bytes),
    #[prost(message, tag = "17")]
    Enum(Model),
    #[prost(message, tag = "18")]
    Dataclass(Model),
    #[prost(message, tag = "19")]
    Pydantic(Model),
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    payloads: Vec<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct Dict {
    #[prost(map = "string, message", tag = "1")]
    payload_map: HashMap<String, Payload>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Model {
    #[prost(string, tag = "1")]
    module: String,
    #[prost(string, tag = "2")]
    class_name: String,
    #[prost(string, tag = "3")]
    data: String,
}

impl From<Kind> for Payload {
    fn from(kind: Kind) -> Self {
        Self { value: Some(kind) }
    }
}

fn list(items: impl IntoIterator<Item = Kind>) -> List {
    List { payloads: items.into_iter().map(Payload::from).collect() }
}

fn dict(entries: impl IntoIterator<Item = (&'static str, Kind)>) -> Dict {
    Dict { payload_map: entries.into_iter().map(|(key, kind)| (key.to_owned(), kind.into())).collect() }
}

fn request(name: &str, args: impl IntoIterator<Item = Kind>) -> Request {
    let args = args.into_iter().map(Payload::from).collect();
    Request { name: name.to_owned(), args, ..Request::default() }
}

fn echo() -> Stage<FunctionCall, Value> {
    Stage::each("echo", |call: &FunctionCall| call.arg::<Value>(0, "value"))
}

async fn served(app: App) -> Server {
    Server::with(app, config(|config| config.relay = true)).await
}

async fn sent(client: &Client, request: &Request) -> Kind {
    client.call(SEND, request).await.message::<Reply>().payload.unwrap().value.unwrap()
}

/// The text of a failed function.
async fn raised(client: &Client, request: &Request) -> String {
    client.call(SEND, request).await.refused(2)
}

#[tokio::test]
async fn every_type_of_value_comes_back_as_it_was_sent() {
    let server = served(App::new().route("/echo", echo())).await;
    let client = server.connect().await;
    let model = Model { module: "shapes".into(), class_name: "A.B".into(), data: "\"x\"".into() };
    let kinds = [
        Kind::Str("é".to_owned()),
        Kind::Str(String::new()),
        Kind::Bool(false),
        Kind::Bool(true),
        Kind::Int(0),
        Kind::Int(i64::MAX),
        Kind::Int(i64::MIN),
        Kind::Float(0.1),
        Kind::Float(f32::NEG_INFINITY),
        Kind::None(true),
        Kind::List(list([])),
        Kind::List(list([Kind::Int(1), Kind::Tuple(list([Kind::Str("a".into()), Kind::None(true)]))])),
        Kind::Tuple(list([Kind::Bool(true)])),
        Kind::Dict(dict([])),
        Kind::Dict(dict([("a", Kind::Int(-1)), ("", Kind::List(list([Kind::Dict(dict([("b", Kind::Float(2.0))]))])))])),
        Kind::PandasFrame(Bytes::from_static(b"PAR1 a frame")),
        Kind::PandasSeries(Bytes::from_static(b"PAR1 a series")),
        Kind::PolarsSeries(Bytes::from(vec![7; 1 << 20])),
        Kind::BytesIo(Bytes::from_static(b"\0\x01")),
        Kind::Enum(model.clone()),
        Kind::Dataclass(model.clone()),
        Kind::Pydantic(model),
    ];
    for kind in kinds {
        assert_eq!(sent(&client, &request("echo", [kind.clone()])).await, kind);
    }
    // All of them at once are one message.
    let all = Kind::List(list([Kind::Int(1), Kind::BytesIo(Bytes::from(vec![1; 100_000])), Kind::Str("end".into())]));
    assert_eq!(sent(&client, &request("echo", [all.clone()])).await, all);
}

#[tokio::test]
async fn arrays_and_frames_are_those_of_the_codec() {
    let shapes = Stage::each("shapes", |call: &FunctionCall| {
        let array: Value = call.arg(0, "array")?;
        let numbers = array.as_tensor().expect("an array");
        assert_eq!((numbers.shape(), numbers.as_slice::<f64>().unwrap()), (&[2, 1][..], &[0.5, 1.5][..]));
        let frame: Value = call.kwarg("frame")?;
        let frame = frame.as_data_frame().expect("a frame").clone();
        assert_eq!(frame.schema().metadata()["callboard"], r#"{"library":"polars"}"#);
        Ok(Value::List(vec![array, Value::DataFrame(frame), call.arg::<Value>(1, "scalar")?]))
    });
    let server = served(App::new().route("/shapes", shapes)).await;
    let client = server.connect().await;
    let tensor = Tensor::from_vec(&[2, 1], vec![0.5, 1.5]).unwrap();
    let array = Value::Tensor(tensor).encode(Format::Npy).unwrap();
    let scalar = Value::Tensor(callboard_codec::Scalar::from(1.25_f64).to_tensor()).encode(Format::Npy).unwrap();
    let seed = format!("{}/../../fuzz/seeds/arrow_stream/polars-lz4", env!("CARGO_MANIFEST_DIR"));
    let frame = Bytes::from(std::fs::read(seed).unwrap());
    let mut call = request("shapes", [Kind::Array(array.clone()), Kind::Scalar(scalar.clone())]);
    call.kwargs.insert("frame".to_owned(), Kind::PolarsFrame(frame.clone()).into());
    let Kind::List(answer) = sent(&client, &call).await else { panic!("a list") };
    let kinds: Vec<Kind> = answer.payloads.into_iter().map(|payload| payload.value.unwrap()).collect();
    let [Kind::Array(answered), Kind::PolarsFrame(stream), Kind::Scalar(number)] = &kinds[..] else {
        panic!("{kinds:?}")
    };
    assert_eq!((answered, number), (&array, &scalar));
    let read = |bytes: &Bytes| Value::decode(Format::ArrowStream, bytes, &Default::default()).unwrap();
    let (before, after) = (read(&frame), read(stream));
    let (before, after) = (before.as_data_frame().unwrap(), after.as_data_frame().unwrap());
    assert_eq!(before.to_batch().unwrap().columns(), after.to_batch().unwrap().columns());
}

#[tokio::test]
async fn the_texts_of_a_status_say_who_is_to_blame() {
    let raise = Stage::each("raise", |call: &FunctionCall| match call.args.len() {
        0 => Err::<Value, _>(Failure::new("no\nmodel").with_status(503)),
        1 => Err(Failure::unavailable("not me")),
        _ => Ok(Value::UInt(u64::MAX)),
    });
    let fit = Stage::each("fit", |call: &FunctionCall| call.arg::<Value>(0, "value"));
    let app = App::new().route("/raise", raise).route("/text-model/fit", fit);
    let server = served(app).await;
    let client = server.connect().await;
    let missing = raised(&client, &request("predict", [])).await;
    assert_eq!(missing, "Exception calling application: No listener for predict was registered.");
    // One line, whatever status the code chooses.
    assert_eq!(raised(&client, &request("raise", [])).await, "Exception calling application: no model");
    let chosen = raised(&client, &request("raise", [Kind::Int(1)])).await;
    assert_eq!(chosen, "Exception calling application: not me");
    let unsendable = raised(&client, &request("raise", [Kind::Int(1), Kind::Int(2)])).await;
    assert!(unsendable.starts_with("Exception calling application: the output cannot be sent: the integer"));
    let argument = raised(&client, &request("fit", [])).await;
    assert!(argument.contains("argument `value` is missing"), "{argument}");
    // A method by its own name, and with that of its class.
    for name in ["fit", "TextModel.fit", "text-model/fit"] {
        assert_eq!(sent(&client, &request(name, [Kind::Int(7)])).await, Kind::Int(7), "{name}");
    }
    for other in ["Text.fit", "TextModel.predict", "text-model", ""] {
        let text = raised(&client, &request(other, [])).await;
        assert!(text.contains(&format!("No listener for {other} was registered.")), "{text}");
    }
}

#[tokio::test]
async fn the_service_is_off_unless_it_is_asked_for() {
    let server = Server::start(App::new().route("/echo", echo())).await;
    let client = server.connect().await;
    let text = client.call(SEND, &request("echo", [Kind::Int(1)])).await.refused(12);
    assert!(text.contains("there is no method"), "{text}");
}

#[tokio::test]
async fn a_call_without_a_deadline_has_the_longest_time() {
    let remaining = Stage::each_with_context("remaining", |_: &FunctionCall, context: &CallContext| {
        Ok(context.deadline().remaining(Instant::now()).as_secs())
    });
    let server = served(App::new().route("/remaining", remaining)).await;
    let client = server.connect().await;
    let Kind::Int(seconds) = sent(&client, &request("remaining", [])).await else { panic!("a number") };
    assert!((3590..=3600).contains(&seconds), "{seconds}");
    let client = client.with("grpc-timeout", "20S");
    let Kind::Int(seconds) = sent(&client, &request("remaining", [])).await else { panic!("a number") };
    assert!((10..=20).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_function_has_one_call_at_a_time() {
    let (entered, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, waiting) = (Arc::clone(&entered), Arc::clone(&gate));
    let hold = Stage::each_async("hold", move |_: Arc<FunctionCall>| {
        let (count, waiting) = (Arc::clone(&count), Arc::clone(&waiting));
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            waiting.acquire().await.expect("open").forget();
            Ok(Value::Null)
        }
    });
    let server = served(App::new().route("/hold", hold.concurrency(8)).route("/echo", echo())).await;
    let calls: Vec<_> = (0..3).map(|_| async { sent(&server.connect().await, &request("hold", [])).await }).collect();
    let watch = async {
        server.in_flight_becomes(3).await;
        // Others do not wait for it.
        assert_eq!(sent(&server.connect().await, &request("echo", [Kind::Int(1)])).await, Kind::Int(1));
        assert_eq!(entered.load(Ordering::SeqCst), 1);
        let late = server.connect().await.with("grpc-timeout", "50m");
        assert!(late.call(SEND, &request("hold", [])).await.refused(4).contains("an earlier call"));
        gate.add_permits(3);
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), watch);
    assert_eq!((answers.len(), entered.load(Ordering::SeqCst)), (3, 3));
}

#[tokio::test]
async fn values_that_are_too_deep_or_too_many_are_refused_before_they_are_made() {
    let server = served(App::new().route("/echo", echo())).await;
    let client = server.connect().await;
    let nested = |levels: usize, wrap: fn(Kind) -> Kind, inner: Kind| (1..levels).fold(inner, |kind, _| wrap(kind));
    let in_list: fn(Kind) -> Kind = |kind| Kind::List(list([kind]));
    let in_dict: fn(Kind) -> Kind = |kind| Kind::Dict(dict([("k", kind)]));
    for (levels, wrap, inner) in [(50, in_list, Kind::List(list([]))), (33, in_dict, Kind::Dict(dict([])))] {
        let deepest = nested(levels, wrap, inner.clone());
        assert_eq!(sent(&client, &request("echo", [deepest.clone()])).await, deepest);
        let refused = client.call(SEND, &request("echo", [wrap(deepest)])).await.refused(3);
        assert!(refused.contains("100 messages"), "{refused}");
    }
    // The head of a request, then many values of two bytes.
    let named = b"\x0a\x04echo".to_vec();
    let many = [named.clone(), b"\x12\x00".repeat(2 << 20)].concat();
    let refused = client.send(SEND, framed(&many)).await.refused(3);
    assert!(refused.contains("max_elements") || refused.contains("max_tree_bytes"), "{refused}");
    let entries = [b"\x42".to_vec(), varint(2 << 20), b"\x0a\x00".repeat(1 << 20)].concat();
    let map = [named.clone(), b"\x12".to_vec(), varint(entries.len()), entries].concat();
    let refused = client.send(SEND, framed(&map)).await.refused(3);
    assert!(refused.contains("max_elements") || refused.contains("max_tree_bytes"), "{refused}");
    for (broken, words) in [
        (&b"\x12\x00"[..], "no type"),
        (b"\x12\x03\x80\x01\x01", "no type"),
        (b"\x12\x05\x18\x02\x0a\x01a", "two types"),
        (b"\x12\x02\x6a\x00", "npy"),
        (b"\x12\x05\x0a\xff\xff\xff\x7f", "ends within a field"),
        (b"\x1a\x03\x0a\x01a", "no value"),
    ] {
        let refused = client.send(SEND, framed(&[&named[..], broken].concat())).await.refused(3);
        assert!(refused.contains(words), "{broken:?}: {refused}");
    }
    // By the prefix alone: no byte of it is waited for.
    let announced = client.stall(SEND, Bytes::from_static(b"\0\xff\xff\xff\xff")).await;
    assert_eq!(announced.grpc().0, 8);
    assert_eq!(sent(&client, &request("echo", [Kind::Int(1)])).await, Kind::Int(1));
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
