//! Every format as request and answer, with real requests; and bodies or outcomes that do not fit a format.

use bytes::Bytes;
use callboard_codec::{DataFrame, DataType, DecodeLimits, Encoded, Format, Map, StrTensor, Tensor, Value};
use callboard_core::{App, Failure, Stage, StreamStage};
use callboard_http::HttpConfig;
use futures_util::stream;

use crate::support::app::app;
use crate::support::{Answer, Server};

async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

/// Sends a value to `/mirror` and reads the answer, both in this format.
async fn mirrored(server: &Server, value: &Value, format: Format) -> Answer {
    let headers = [("content-type", format.media_type()), ("accept", exact_media_type(format))];
    let body = value.encode(format).unwrap();
    server.connect().await.post("/mirror", &headers, body).await
}

/// The exact media type of this format.
fn exact_media_type(format: Format) -> &'static str {
    match format {
        Format::Msgpack => "application/msgpack; extensions=callboard",
        format => format.media_type(),
    }
}

fn decoded(answer: Answer, format: Format) -> Value {
    assert_eq!(answer.header("content-type"), Some(exact_media_type(format)), "{answer:?}");
    Value::decode(format, &answer.body.into(), &DecodeLimits::default()).unwrap()
}

fn tensor() -> Value {
    Tensor::from_vec(&[50, 100], (0..5000_u16).map(f32::from).collect()).unwrap().into()
}

fn fields() -> Value {
    let texts = StrTensor::from_texts(&[2], ["one", "two"]).unwrap();
    Map::from_iter([("image", tensor()), ("labels", Value::StrTensor(texts))]).into()
}

fn list<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
    Value::List(items.into_iter().map(Into::into).collect())
}

fn frame() -> Value {
    let columns = Map::from_iter([("n", list([1_i64, 2])), ("t", list(["a", "b"]))]);
    Value::DataFrame(DataFrame::from_value(&columns.into()).unwrap())
}

/// A value with large and small leaves that only lossless formats preserve.
fn mixed_value() -> Value {
    let tuple = Value::Tuple(vec![Value::Bytes(Bytes::from(vec![7; 5000])), Value::Null, frame()]);
    Map::from_iter([("tensor", tensor()), ("tuple", tuple), ("float", Value::Float(f64::INFINITY))]).into()
}

/// A client without our extension types reads arrays as plain MessagePack, and sends them in that form.
#[tokio::test]
async fn messagepack_is_plain_unless_the_client_requests_extensions() {
    let server = server().await;
    let array = Tensor::from_vec(&[1, 2], vec![1.5_f32, -2.0]).unwrap();
    let plain = Value::Map(Map::from_iter([
        ("dtype", Value::from("float32")),
        ("shape", list([1_i64, 2])),
        ("data", Value::Bytes(Bytes::copy_from_slice(array.data()))),
    ]));
    let value = Value::Tuple(vec![Value::Tensor(array.clone()), Value::from("x")]);
    let msgpack = "application/msgpack";
    let ask = async |path: &str, content_type: &str, accept: &str, body: &Value| {
        let headers = [("content-type", content_type), ("accept", accept)];
        let body = body.encode(Format::Msgpack).unwrap();
        let answer = server.connect().await.post(path, &headers, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let content_type = answer.header("content-type").unwrap().to_owned();
        (content_type, Value::decode(Format::Msgpack, &answer.body.into(), &DecodeLimits::default()).unwrap())
    };
    let expected = Value::List(vec![plain.clone(), Value::from("x")]);
    assert_eq!(ask("/mirror", msgpack, msgpack, &value).await, (msgpack.to_owned(), expected));
    let exact = exact_media_type(Format::Msgpack);
    assert_eq!(ask("/mirror", msgpack, exact, &value).await, (exact.to_owned(), value.clone()));

    // Without `accept`, the answer has the format of the request.
    let call = Value::Map(Map::from_iter([("args", Value::List(vec![value.clone()]))]));
    let expected = Value::List(vec![plain.clone(), Value::from("x")]);
    assert_eq!(ask("/v1/call/mirror", msgpack, "*/*", &call).await, (msgpack.to_owned(), expected));
    assert_eq!(ask("/v1/call/mirror", exact, "*/*", &call).await, (exact.to_owned(), value));

    // A route over arrays reads the form that it writes.
    let app = App::new().route("/double", Stage::each("double", |tensor: &Tensor| Ok(tensor.clone())));
    let server = Server::for_app(app, HttpConfig::default()).await;
    let headers = [("content-type", msgpack), ("accept", "application/x-npy")];
    let answer = server.connect().await.post("/double", &headers, plain.encode(Format::Msgpack).unwrap()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let value = Value::decode(Format::Npy, &answer.body.into(), &DecodeLimits::default()).unwrap();
    assert_eq!(value, Value::Tensor(array));
}

#[tokio::test]
async fn every_format_preserves_a_value() {
    let server = server().await;
    let cases = [
        (Format::Msgpack, mixed_value()),
        (Format::Envelope, mixed_value()),
        (Format::Npy, tensor()),
        (Format::Npz, fields()),
        (Format::ArrowStream, frame()),
        (Format::ArrowFile, frame()),
    ];
    assert_eq!(cases.len() + 1, Format::all().count(), "all formats but JSON, which other tests cover");
    for (format, value) in cases {
        let answer = mirrored(&server, &value, format).await;
        assert_eq!(answer.status, 200, "{format}: {}", String::from_utf8_lossy(&answer.body));
        assert_eq!(decoded(answer, format), value, "{format}");
    }
}

#[tokio::test]
async fn texts_and_bytes_are_sent_without_an_encoding() {
    let server = server().await;
    let mut client = server.connect().await;
    for (content_type, expected_type) in
        [("text/plain", "text/plain; charset=utf-8"), ("application/octet-stream", "application/octet-stream")]
    {
        for body in ["grüß dich", ""] {
            let headers = [("content-type", content_type), ("accept", content_type)];
            let answer = client.post("/mirror", &headers, body).await;
            assert_eq!((answer.status, answer.header("content-type"), answer.text()), (200, Some(expected_type), body));
        }
    }
    let invalid = client.post("/mirror", &[("content-type", "text/plain")], b"abc\xff").await;
    assert_eq!(
        (invalid.status, invalid.problem()["message"].as_str()),
        (400, Some("the body is text but not UTF-8 (byte 3)"))
    );
}

#[tokio::test]
async fn a_typed_route_accepts_each_format_of_its_type() {
    let server = server().await;
    let mut client = server.connect().await;
    let tensor = tensor();
    let headers = [("content-type", "application/x-npy"), ("accept", "application/vnd.callboard.envelope")];
    let answer = client.post("/negate", &headers, tensor.encode(Format::Npy).unwrap()).await;
    let Value::Tensor(negative) = decoded(answer, Format::Envelope) else { panic!("no tensor") };
    assert_eq!(negative.as_slice::<f32>().unwrap()[..3], [0.0, -1.0, -2.0]);

    let refused = client.post("/negate", &[("content-type", "text/plain")], "1").await;
    assert_eq!(refused.status, 415);
    let message = refused.problem()["message"].to_string();
    assert!(message.contains("application/x-npy") && !message.contains("arrow"), "{message}");
}

/// The answer has the format with the highest quality, for every format of the body.
#[tokio::test]
async fn every_body_format_combines_with_every_answer_format() {
    let echo = Stage::each("same", |tensor: &Tensor| Ok(tensor.clone()));
    let server = Server::for_app(App::new().route("/same", echo), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let forms = DataType::for_type::<Tensor>().formats();
    assert!(forms.len() >= 4, "{forms:?}");
    let numbers = tensor().encode(Format::Json).unwrap();
    for body_format in &forms {
        let body = tensor().encode(*body_format).unwrap();
        for answer_format in &forms {
            let media_type = exact_media_type(*answer_format);
            let accept = format!("*/*;q=0.1, application/json;q=0.2, text/html, {media_type};q=0.9, image/png;q=0.95");
            let headers = [("content-type", body_format.media_type()), ("accept", &accept)];
            let answer = client.post("/same", &headers, &body).await;
            assert_eq!(answer.status, 200, "{body_format} to {answer_format}: {answer:?}");
            assert_eq!(
                decoded(answer, *answer_format).encode(Format::Json).unwrap(),
                numbers,
                "{body_format} to {answer_format}"
            );
        }
    }
}

#[tokio::test]
async fn a_stream_has_the_preferred_format() {
    let count = StreamStage::each("count", |n: &i64| stream::iter((0..*n).map(Ok::<_, Failure>)));
    let server = Server::for_app(App::new().route_streaming("/count", count), HttpConfig::default()).await;
    let mut client = server.connect().await;
    for (accept, form) in [
        ("text/event-stream;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson;q=0.1, application/*;q=0.2, text/event-stream;q=0.3", "text/event-stream"),
        ("application/vnd.callboard.envelope-stream, */*;q=0.9", "application/vnd.callboard.envelope-stream"),
        ("text/event-stream;q=0, */*", "application/x-ndjson"),
        ("application/json, */*;q=0.1", "text/event-stream"),
    ] {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        let answer = client.post("/count", &headers, "2").await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(form)), "{accept}");
    }
}

#[tokio::test]
async fn the_next_format_is_sent_if_the_outcome_does_not_fit_the_preferred_one() {
    let server = server().await;
    let mut client = server.connect().await;
    let mut post = async |accept: &str, body: &str| {
        client.post("/mirror", &[("content-type", "application/json"), ("accept", accept)], body).await
    };
    let answer = post("application/x-npy, text/plain;q=0.9, application/json;q=0.5", r#"{"a": 1}"#).await;
    assert_eq!((answer.header("content-type"), answer.text()), (Some("application/json"), r#"{"a":1}"#));
    let answer = post("application/octet-stream, text/plain;q=0.9", r#""a text""#).await;
    assert_eq!((answer.header("content-type"), answer.text()), (Some("text/plain; charset=utf-8"), "a text"));

    let refused = post("application/x-npy", r#"{"a": 1}"#).await;
    assert_eq!((refused.status, refused.problem()["error_type"].as_str()), (406, Some("not_acceptable")));
    let message = refused.problem()["message"].to_string();
    assert!(message.contains("`application/x-npy`") && message.contains("map"), "{message}");
}

/// As `.npy` each text is padded to the longest. A form with such a limit is the choice of the caller.
#[tokio::test]
async fn an_outcome_beyond_the_limit_of_a_form_is_sent_in_the_next_one() {
    let server = server().await;
    let texts = std::iter::once("x".repeat(5000)).chain(std::iter::repeat_n(String::new(), 20_000));
    let body = Value::StrTensor(StrTensor::from_texts(&[20_001], texts).unwrap()).encode(Format::Msgpack).unwrap();
    let mut client = server.connect().await;
    let mut post = async |accept: &str| {
        let headers = [("content-type", Format::Msgpack.media_type()), ("accept", accept)];
        client.post("/mirror", &headers, &body).await
    };
    let refused = post("application/x-npy").await;
    assert_eq!((refused.status, refused.problem()["error_type"].as_str()), (406, Some("not_acceptable")));
    let message = refused.problem()["message"].to_string();
    assert!(message.contains("`application/x-npy`") && message.contains("padded to the longest"), "{message}");
    let sent = post("application/x-npy, application/msgpack;q=0.5").await;
    assert_eq!((sent.status, sent.header("content-type")), (200, Some(Format::Msgpack.media_type())));
}

#[tokio::test]
async fn an_outcome_that_json_cannot_express_is_an_error() {
    let server = server().await;
    let body = list([0.5, f64::NAN]).encode(Format::Msgpack).unwrap();
    let mut client = server.connect().await;
    let refused = client.post("/mirror", &[("content-type", "application/msgpack"), ("accept", "*/*")], &body).await;
    assert_eq!((refused.status, refused.problem()["kind"].as_str()), (500, Some("failed")));
    assert!(refused.problem()["message"].as_str().unwrap().contains("$[1]"), "{refused:?}");
}

#[tokio::test]
async fn a_malformed_body_is_400_in_every_format() {
    let server = server().await;
    let mut client = server.connect().await;
    for format in Format::all() {
        let valid = match format {
            Format::Npy => tensor(),
            Format::Npz => fields(),
            Format::ArrowStream | Format::ArrowFile => frame(),
            _ => mixed_value(),
        };
        let valid = valid.encode(format).unwrap_or_else(|_| Bytes::from_static(b"[1, 2]"));
        let truncated = valid.slice(..valid.len() / 2);
        for body in [Bytes::new(), Bytes::from_static(b"\xc1\xff\x00 nonsense"), truncated] {
            let answer = client.post("/mirror", &[("content-type", format.media_type())], &body).await;
            assert_eq!(answer.status, 400, "{format} {} bytes: {answer:?}", body.len());
            assert_eq!(answer.problem()["kind"], "invalid_input");
            let message = answer.problem()["message"].to_string();
            assert_eq!(message.contains("the body is empty: expected a value as"), body.is_empty(), "{message}");
        }
    }
    for (path, body, message) in [
        ("/mirror", "", "the body is empty: expected a value as `application/json`; send `null` for no value"),
        ("/v1/call/mirror", "", "the body is empty: expected a value as `application/json`; send `null` for no value"),
        ("/mirror", " ", "the input is empty: expected a JSON value (byte 1)"),
        ("/greet", r#"{"name": "#, "the input ends where a value is expected at $.name (byte 9)"),
        ("/greet", "Ada", "expected a JSON value, found `Ada`: write a text in double quotes (byte 0)"),
    ] {
        let answer = client.post(path, &[("content-type", "application/json")], body).await;
        assert_eq!((answer.status, answer.problem()["message"].as_str()), (400, Some(message)), "{path} {body}");
    }
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn a_part_of_a_form_may_be_in_any_format() {
    let array = Value::from(Tensor::from_vec(&[3], vec![1_i32, 2, 3]).unwrap()).encode(Format::Npy).unwrap();
    let head = "--xyz\r\nContent-Disposition: form-data; name=\"array\"; filename=\"a.npy\"\r\n\
                Content-Type: application/x-npy\r\n\r\n";
    let body = [head.as_bytes(), &array, b"\r\n--xyz--\r\n"].concat();
    let headers = [("content-type", "multipart/form-data; boundary=xyz")];
    let answer = server().await.connect().await.post("/mirror", &headers, body).await;
    assert_eq!(answer.text(), r#"{"array":[1,2,3]}"#);
}

/// A stage in another process takes and gives encoded values: no format tells the difference.
#[tokio::test]
async fn a_stage_of_encoded_values_answers_in_every_format_as_one_of_values_does() {
    let values = Stage::each("values", |value: &Value| Ok(value.clone()));
    let encoded = Stage::<Encoded, Encoded>::each("encoded", |value: &Encoded| Ok(value.clone()));
    let app = App::new().route("/values", values).route("/encoded", encoded.of_types::<Value, Value>());
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    let broken = {
        let mut bytes = list(["a", "b"]).encode(Format::Envelope).unwrap().to_vec();
        *bytes.last_mut().unwrap() = 0xff;
        bytes
    };
    let bodies = [Value::from("text"), Value::Bytes(vec![7; 5000].into()), mixed_value(), fields(), frame(), tensor()];
    let formats = [Format::Envelope, Format::Json, Format::Msgpack];
    // JSON has no form for some of them.
    let encoded = |value: &Value| formats.map(|format| Some((format, value.encode(format).ok()?.to_vec())));
    let bodies = bodies.iter().flat_map(encoded).flatten().chain([(Format::Envelope, broken)]);
    let texts =
        [r#"{"a": [1, 2.5, -0, {"b": "\u00e9\n"}], "c": 1e3}"#, r#"{"a": [1, {"b": x}]}"#, r#"{"a": 1, "a": 2}"#, ""];
    let bodies = bodies.chain(texts.map(|text| (Format::Json, text.into())));
    let nonsense = [&b"\x92\x01"[..], b"\x82\xa1a\x01\xa1a\x02", b"\xc7\x01\x63\0"];
    let bodies = bodies.chain(nonsense.map(|bytes| (Format::Msgpack, bytes.into())));
    let forms = Format::all().map(Format::media_type).chain(["text/plain", "application/octet-stream", "image/png"]);
    let forms: Vec<_> = forms.collect();
    for (format, body) in bodies {
        for form in &forms {
            let headers = [("content-type", format.media_type()), ("accept", *form)];
            let expected = client.post("/values", &headers, &body).await;
            let answer = client.post("/encoded", &headers, &body).await;
            let (kind, expected_kind) = (answer.header("content-type"), expected.header("content-type"));
            assert_eq!((answer.status, kind), (expected.status, expected_kind), "{form}: {answer:?} {expected:?}");
            if answer.status == 200 {
                assert_eq!(answer.body, expected.body, "{form}");
            } else {
                assert_eq!(answer.problem()["message"], expected.problem()["message"], "{form}");
            }
        }
    }
}
