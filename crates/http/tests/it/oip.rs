//! The Open Inference Protocol by hand: its answers and formats. `tests/external/triton.rs` tests it with an independent
//! client; the refusals are in `oip_errors.rs`.

use std::io::Write as _;

use callboard_codec::{DType, DataType, Tensor, TensorField, TensorFields, Value};
use callboard_core::{App, Failure, Limits, RouteSpec, Stage, StreamStage};
use callboard_http::HttpConfig;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use futures_util::stream;
use serde_json::{Value as Json, json};

use crate::support::{Answer, Server, config};

pub(crate) const HEADER: &str = "inference-header-content-length";

/// `/x`: an array `[-1, 2]` of FP32, returned as it is; `/rows`: many arrays `[2]` of FP32, an error if the first number
/// is negative; `/where`: the alignment and length of its array.
pub(crate) fn app() -> App {
    let tensors = |name: &str, shape: Vec<Option<usize>>, stackable| {
        let field =
            TensorField { name: name.to_owned(), dtype: Some(DType::F32), shape: Some(shape), is_required: true };
        DataType::value().with_tensors(TensorFields { fields: vec![field], stackable })
    };
    let x = || tensors("x", vec![None, Some(2)], false);
    let row = || tensors("x", vec![Some(2)], true);
    let rows = Stage::each("rows", |value: &Value| {
        let tensor = value.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::new("no tensor"))?;
        match tensor.as_slice::<f32>()?[0] {
            ..0.0 => Err(Failure::invalid_input("below zero")),
            _ => Ok(value.clone()),
        }
    });
    let alignment = Stage::each("where", |value: &Value| {
        let tensor = value.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::new("no tensor"))?;
        let remainder = tensor.data().as_ptr().addr() as i64;
        Ok(Value::Tensor(Tensor::from_vec(&[2], vec![remainder % 16, tensor.data().len() as i64])?))
    });
    let output = TensorField {
        name: "place".to_owned(),
        dtype: Some(DType::I64),
        shape: Some(vec![Some(2)]),
        is_required: true,
    };
    let output = DataType::value().with_tensors(TensorFields { fields: vec![output], stackable: false });
    App::new()
        .mount(RouteSpec::described("/x", Stage::each("x", |value: &Value| Ok(value.clone())), x(), x()))
        .mount(RouteSpec::described("/rows", rows, row(), row()))
        .mount(RouteSpec::described("/where", alignment, x(), output))
        .route("/explode", Stage::each("explode", |_: &f64| -> Result<f64, Failure> { panic!("the worker panics") }))
}

pub(crate) async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

/// The text of `{"error": …}`, after a check of the common parts of all errors.
pub(crate) fn error(answer: &Answer) -> String {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    assert!(answer.header("x-request-id").is_some());
    let json = answer.json();
    assert_eq!(json.as_object().map(serde_json::Map::len), Some(1), "{json}");
    json["error"].as_str().unwrap_or_else(|| panic!("no text: {json}")).to_owned()
}

pub(crate) fn input(members: Json) -> Json {
    let mut input = json!({ "name": "x", "datatype": "FP32", "shape": [1, 2] });
    input.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    json!({ "inputs": [input] })
}

pub(crate) fn two(first: f32, second: f32) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

#[tokio::test]
async fn a_body_is_read_by_the_protocols_header_and_not_by_its_content_type() {
    let server = server().await;
    let mut client = server.connect().await;
    let body = input(json!({ "data": [1, 2] })).to_string();
    for content_type in [None, Some("application/octet-stream"), Some("text/html"), Some("\u{a0}")] {
        let headers: Vec<_> = content_type.iter().map(|content_type| ("content-type", *content_type)).collect();
        let answer = client.post("/v2/models/x/infer", &headers, &body).await;
        assert_eq!(answer.status, 200, "{content_type:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header(HEADER), None, "JSON alone has no such header");
        assert!(answer.header("server-timing").is_some());
        let expected = json!({ "model_name": "x", "model_version": "1",
            "outputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0] }] });
        assert_eq!(answer.json(), expected);
    }
}

/// The JSON of a binary answer, and the arrays after it.
fn parts(answer: &Answer) -> (Json, &[u8]) {
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")), "{answer:?}");
    let length: usize = answer.header(HEADER).unwrap().parse().unwrap();
    let (json, arrays) = answer.body.split_at(length);
    (serde_json::from_slice(json).unwrap(), arrays)
}

#[tokio::test]
async fn an_answer_is_binary_on_request_for_any_form_of_input() {
    let server = server().await;
    let mut client = server.connect().await;
    let expected = [two(1.0, 2.0), two(3.0, 4.0)].concat();
    let described =
        json!([{ "name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": { "binary_data_size": 16 } }]);

    // The array alone, without any JSON.
    let raw = client.post("/v2/models/x/infer", &[(HEADER, "0")], &expected).await;
    let (json, arrays) = parts(&raw);
    assert_eq!((&json["outputs"], arrays), (&described, &expected[..]));

    // Numbers as JSON, from a client that names no outputs.
    let mut body = input(json!({ "shape": [2, 2], "data": [[1, 2], [3, 4]] }));
    body["parameters"] = json!({ "binary_data_output": true });
    let answer = client.post("/v2/models/x/infer", &[], body.to_string()).await;
    let (json, arrays) = parts(&answer);
    assert_eq!((&json["outputs"], arrays), (&described, &expected[..]));

    // A parameter of an output overrides that of the request.
    body["outputs"] = json!([{ "name": "x", "parameters": { "binary_data": false } }]);
    let answer = client.post("/v2/models/x/infer", &[], body.to_string()).await;
    assert_eq!((answer.header(HEADER), &answer.json()["outputs"][0]["data"]), (None, &json!([1.0, 2.0, 3.0, 4.0])));
}

#[tokio::test]
async fn a_nonempty_id_is_returned_and_unknown_members_are_ignored() {
    let server = server().await;
    let mut client = server.connect().await;
    for (id, expected) in [(json!("7"), json!("7")), (json!(""), Json::Null), (Json::Null, Json::Null)] {
        let mut body = input(json!({ "data": [1, 2] }));
        body["id"] = id.clone();
        body["model_name"] = json!("x");
        let answer = client.post("/v2/models/x/infer", &[], body.to_string()).await;
        assert_eq!((answer.status, answer.json().get("id").unwrap_or(&Json::Null)), (200, &expected), "{id}");
    }
}

#[tokio::test]
async fn arrays_are_aligned_after_json_of_any_length() {
    let server = server().await;
    let mut client = server.connect().await;
    let numbers = vec![0_u8; 512 * 1024];
    for padding in 0..17 {
        let input = json!({ "name": "x", "datatype": "FP32", "shape": [numbers.len() / 8, 2],
            "parameters": { "binary_data_size": numbers.len() } });
        let json = json!({ "inputs": [input], "padding": " ".repeat(padding) }).to_string();
        let head = format!(
            "POST /v2/models/where/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n{HEADER}: {}\r\n\r\n",
            json.len() + numbers.len(),
            json.len()
        );
        // In several pieces, because bytes in one piece are used without a copy.
        client.send(head + &json[..10]).await;
        client.send(&json[10..]).await;
        for piece in numbers.chunks(100_000) {
            client.send(piece).await;
        }
        let answer = client.answer().await.json();
        assert_eq!(answer["outputs"][0]["data"], json!([0, numbers.len()]), "{padding}: {answer}");
    }
}

#[tokio::test]
async fn a_body_of_many_items_holds_its_bytes_until_the_last_item_ends() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let stage = Stage::each("gate", move |value: &Value| {
        let tensor = value.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::new("no tensor"))?;
        if tensor.as_slice::<f32>()?[0] > 0.0 {
            _ = released.lock().unwrap().recv();
        }
        Ok(value.clone())
    });
    let field =
        TensorField { name: "x".to_owned(), dtype: Some(DType::F32), shape: Some(vec![None]), is_required: true };
    let row = || DataType::value().with_tensors(TensorFields { fields: vec![field.clone()], stackable: true });
    let stage = stage.on_threads().replicas(2).max_batch_size(1);
    let app = App::new().mount(RouteSpec::described("/gate", stage, row(), row()));
    let server = Server::for_app(app, HttpConfig::default()).await;

    // An item that ends at once, and an item that waits.
    let numbers = [vec![0.0_f32; 10_000], vec![1.0; 10_000]].concat();
    let body =
        json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2, 10_000], "data": numbers }] }).to_string();
    let length = body.len();
    let mut client = server.connect().await;
    client
        .send(format!("POST /v2/models/gate/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}"))
        .await;
    server.metric_becomes("callboard_requests_total{route=\"/gate\",outcome=\"ok\"}", 1.0).await;
    let held = server.metric("callboard_in_flight_bytes").await.unwrap();
    assert!(held >= length as f64, "{held} of {length} bytes are held");
    release.send(()).unwrap();
    assert_eq!(client.answer().await.status, 200);
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_client_that_leaves_its_events_cancels_its_call() {
    let endless = StreamStage::each("endless", |from: &u64| stream::iter((*from..).map(Ok)));
    let server = Server::for_app(App::new().route_streaming("/endless", endless), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let body = r#"{"input":7}"#;
    let length = body.len();
    client
        .send(format!(
            "POST /v2/models/endless/generate_stream HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(r#""output":9}"#) {
        let read = tokio::io::AsyncReadExt::read_buf(&mut client.socket, &mut received).await.unwrap();
        assert!(read > 0, "ended: {}", String::from_utf8_lossy(&received));
    }
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(
        received.contains("text/event-stream") && received.contains("data: {\"model_name\":\"endless\""),
        "{received}"
    );
    drop(client);
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
}

#[tokio::test]
async fn an_answer_of_generate_is_charged_while_it_is_written() {
    let words = |n: &u64| vec!["word".to_owned(); usize::try_from(*n).unwrap()];
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let app = App::new()
        .limits(limits)
        .route("/words", Stage::each("words", move |n: &u64| Ok(words(n))))
        .route_streaming("/events", StreamStage::each("events", move |n: &u64| stream::iter([Ok(words(n))])));
    let server = Server::for_app(app, HttpConfig::default()).await;
    for path in ["/v2/models/words/generate", "/v2/models/events/generate_stream"] {
        let answer = server.post_json(path, r#"{"input": 2}"#).await;
        assert_eq!((answer.status, answer.text().contains(r#"["word","word"]"#)), (200, true), "{answer:?}");
        let answer = server.post_json(path, r#"{"input": 100000}"#).await;
        let error = error(&answer);
        assert!(error.contains("max_in_flight_bytes"), "{path}: {error}");
        server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
    }
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn compressed_bodies_are_accepted_with_their_decompressed_lengths() {
    let server = Server::for_app(app(), config(|config| config.max_body_bytes = 100_000)).await;
    let mut client = server.connect().await;
    let numbers: Vec<u8> = (0..2000_u16).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    let json = input(json!({ "shape": [1000, 2], "parameters": { "binary_data_size": numbers.len() } })).to_string();
    let body = [json.as_bytes(), &numbers].concat();
    let compressed = zlib(&body);
    assert!(compressed.len() < json.len() + numbers.len());
    let length = json.len().to_string();
    let headers = [("content-encoding", "deflate"), (HEADER, length.as_str())];
    let answer = client.post("/v2/models/x/infer", &headers, &compressed).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"][1999], json!(1999.0));

    let headers = [("content-encoding", "deflate"), (HEADER, "999999")];
    let too_short = client.post("/v2/models/x/infer", &headers, &compressed).await;
    assert_eq!(too_short.status, 400);
    assert!(error(&too_short).contains("more bytes"), "{too_short:?}");

    let bomb = zlib(&[0; 10_000_000]);
    let refused = client.post("/v2/models/x/infer", &[("content-encoding", "deflate")], &bomb).await;
    assert_eq!(refused.status, 413);
    error(&refused);
}

/// `/flag`: a BOOL of any length; `/one`: a scalar; `/want`: a text or any JSON; `/blob`: bytes, described as a text.
/// All return their input.
fn lenient() -> App {
    let echo = |name: &str| Stage::each(name, |value: &Value| Ok(value.clone()));
    let tensor = |name: &str, dtype, shape| {
        let field = TensorField { name: name.to_owned(), dtype: Some(dtype), shape: Some(shape), is_required: true };
        DataType::value().with_tensors(TensorFields { fields: vec![field], stackable: false })
    };
    let route = |path: &str, input: DataType| RouteSpec::described(path, echo(&path[1..]), input.clone(), input);
    let schema = |schema| DataType::value().with_schema(schema);
    let want =
        schema(json!({ "type": "object", "required": ["want"], "properties": { "want": { "enum": ["logits", 1] } } }));
    let blob = json!({ "type": "object", "required": ["blob"],
                       "properties": { "blob": { "type": "string", "contentEncoding": "base64" } } });
    App::new()
        .mount(route("/flag", tensor("x", DType::Bool, vec![None])))
        .mount(route("/one", tensor("x", DType::I32, vec![])))
        .mount(route("/want", want))
        .mount(route("/blob", schema(blob)))
}

#[tokio::test]
async fn lenient_inputs_of_other_servers_are_accepted() {
    let server = Server::for_app(lenient(), HttpConfig::default()).await;
    let infer = async |model: &str, input: Json| {
        let answer =
            server.post_json(&format!("/v2/models/{model}/infer"), &json!({ "inputs": [input] }).to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["outputs"][0].clone()
    };
    let scalar = |data: Json, shape: Json| json!({ "name": "x", "datatype": "INT32", "shape": shape, "data": data });
    for (data, shape) in [(json!([1.0]), json!([])), (json!([1]), json!([1])), (json!([1.0]), json!([1]))] {
        let output = infer("one", scalar(data, shape)).await;
        assert_eq!((&output["data"], &output["shape"]), (&json!([1]), &json!([])));
    }
    assert_eq!(
        infer("one", serde_json::from_str(r#"{"name":"x","datatype":"INT32","shape":[],"data":[-0]}"#).unwrap()).await
            ["data"],
        json!([0])
    );

    let parameters = json!({ "binary_data_size": 3 });
    let head = json!({ "inputs": [{ "name": "x", "datatype": "BOOL", "shape": [3], "parameters": parameters }] });
    let head = head.to_string();
    let body = [head.as_bytes(), &[0, 1, 255]].concat();
    let answer =
        server.connect().await.post("/v2/models/flag/infer", &[(HEADER, &head.len().to_string())], &body).await;
    assert_eq!(answer.json()["outputs"][0]["data"], json!([false, true, true]), "{answer:?}");

    let want = |text: &str| json!({ "name": "want", "datatype": "BYTES", "shape": [1], "data": [text] });
    for (text, returned) in [("logits", "\"logits\""), ("\"logits\"", "\"logits\""), ("1", "1")] {
        assert_eq!(infer("want", want(text)).await["data"], json!([returned]), "{text}");
    }

    let parameters = json!({ "content_type": "base64" });
    let blob = json!({ "name": "blob", "datatype": "BYTES", "shape": [1], "data": ["aGk="], "parameters": parameters });
    assert_eq!(infer("blob", blob).await["data"], json!(["hi"]));
    let invalid = json!({ "inputs": [{ "name": "blob", "datatype": "BYTES", "shape": [1], "data": ["no base64!"],
                                      "parameters": { "content_type": "base64" } }] });
    let refused = server.post_json("/v2/models/blob/infer", &invalid.to_string()).await;
    assert_eq!((refused.status, error(&refused).contains("base64")), (400, true));

    let index = server.post_json("/v2/repository/index", "").await.json();
    assert_eq!(index[0], json!({ "name": "flag", "version": "1", "state": "READY", "reason": "" }));
}
