//! The Open Inference Protocol by hand: the mistakes of clients, and the answers to them. `tests/external/triton.rs`
//! tests correct calls with an independent client.

use std::io::Write as _;

use axum::http::Request;
use callboard_codec::{DType, DataType, Tensor, TensorField, TensorFields, Value};
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage};
use callboard_http::{ApiInfo, ApiKeys, HttpConfig, HttpEdge};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use futures_util::stream;
use serde_json::{Value as Json, json};
use tower::Service as _;

use crate::support::app::Hold;
use crate::support::{Answer, Server, config};

const HEADER: &str = "inference-header-content-length";

/// `/x`: an array `[-1, 2]` of FP32, returned as it is; `/rows`: many arrays `[2]` of FP32, an error for those that
/// begin with a negative number; `/where`: the address of the bytes of its array.
fn app() -> App {
    let tensors = |name: &str, shape: Vec<Option<usize>>, stackable| {
        let field = TensorField { name: name.to_owned(), dtype: Some(DType::F32), shape: Some(shape) };
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
    let lies = Stage::each("where", |value: &Value| {
        let tensor = value.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::new("no tensor"))?;
        let place = tensor.data().as_ptr().addr() as i64;
        Ok(Value::Tensor(Tensor::from_vec(&[2], vec![place % 16, tensor.data().len() as i64])?))
    });
    let place = TensorField { name: "place".to_owned(), dtype: Some(DType::I64), shape: Some(vec![Some(2)]) };
    let place = DataType::value().with_tensors(TensorFields { fields: vec![place], stackable: false });
    App::new()
        .mount(RouteSpec::described("/x", Stage::each("x", |value: &Value| Ok(value.clone())), x(), x()))
        .mount(RouteSpec::described("/rows", rows, row(), row()))
        .mount(RouteSpec::described("/where", lies, x(), place))
        .route("/explode", Stage::each("explode", |_: &f64| -> Result<f64, Failure> { panic!("the worker panics") }))
}

async fn server() -> Server {
    Server::of_app(app(), HttpConfig::default()).await
}

/// The text of `{"error": …}`, after a check of what all errors have in common.
fn error(answer: &Answer) -> String {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    assert!(answer.header("x-request-id").is_some());
    let json = answer.json();
    assert_eq!(json.as_object().map(serde_json::Map::len), Some(1), "{json}");
    json["error"].as_str().unwrap_or_else(|| panic!("no text: {json}")).to_owned()
}

fn input(more: Json) -> Json {
    let mut input = json!({ "name": "x", "datatype": "FP32", "shape": [1, 2] });
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "inputs": [input] })
}

fn two(first: f32, second: f32) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

#[tokio::test]
async fn lengths_that_lie_are_refused_and_cost_nothing() {
    let server = server().await;
    let mut client = server.connect().await;
    let sized = |bytes: i64| input(json!({ "parameters": { "binary_data_size": bytes } }));
    let of = |shape: Json| input(json!({ "shape": shape, "parameters": { "binary_data_size": 8 } }));
    let twice = json!({ "inputs": [sized(8)["inputs"][0], sized(8)["inputs"][0]] });
    let both = input(json!({ "data": [1, 2], "parameters": { "binary_data_size": 8 } }));
    let cases = [
        (sized(9), 8, "expecting 1 additional bytes"),
        (sized(i64::MAX), 8, "additional bytes"),
        (sized(4), 4, "unexpected byte size 4, expecting 8"),
        (sized(8), 12, "unexpected additional input data for model 'x'"),
        (sized(-8), 8, "binary_data_size"),
        (of(json!([-1, 2])), 8, "axis"),
        (of(json!([2, 2])), 8, "expecting 16 bytes"),
        (of(json!([i64::MAX, 2])), 8, "too large"),
        (of(json!([2])), 8, "shape"),
        (of(json!([1, 2, 1])), 8, "shape"),
        (of(json!([1, 3])), 8, "shape"),
        (of(json!(["1", 2])), 8, "JSON"),
        (twice, 16, "twice"),
        (both, 8, "both"),
        (input(json!({})), 0, "binary_data_size"),
        (input(json!({ "data": [1] })), 0, "expecting 2"),
        (input(json!({ "data": [1, 2, 3] })), 0, "more than 2"),
        (input(json!({ "data": [1, "2"] })), 0, "a text does not fit FP32"),
        (input(json!({ "data": [1, 2], "datatype": "FP64" })), 0, "'FP64'"),
        (input(json!({ "data": [1, 2], "datatype": "WORDS" })), 0, "'WORDS'"),
        (input(json!({ "data": [1, 2], "name": "y" })), 0, "'y'"),
        (json!({ "inputs": [] }), 0, "got 0 inputs"),
        (json!({}), 0, "inputs"),
        (json!([]), 0, "JSON"),
    ];
    for (json, binary, words) in cases {
        let json = json.to_string();
        let body = [json.as_bytes(), &vec![0; binary]].concat();
        let answer = client.post("/v2/models/x/infer", &[(HEADER, &json.len().to_string())], &body).await;
        let told = error(&answer);
        assert_eq!(answer.status, 400, "{json}: {told}");
        assert!(told.contains(words), "{json}: {told}");
    }

    let json = sized(8).to_string();
    let body = [json.as_bytes(), &two(1.0, 2.0)].concat();
    let beyond = (body.len() + 1).to_string();
    let huge = u64::MAX.to_string();
    for (header, words) in [
        (beyond.as_str(), "expecting 1 more bytes"),
        (huge.as_str(), "more bytes"),
        ("99999999999999999999999", "one whole number"),
        ("-1", "one whole number"),
        ("1e2", "one whole number"),
        ("", "one whole number"),
        ("1, 2", "one whole number"),
        ("10", "JSON"),
        ("0", "does not follow"),
    ] {
        let answer = client.post("/v2/models/x/infer", &[(HEADER, header)], &body).await;
        assert_eq!(answer.status, 400, "{header}");
        assert!(error(&answer).contains(words), "{header}: {}", error(&answer));
    }
    let length = json.len().to_string();
    let again = client.post("/v2/models/x/infer", &[(HEADER, &length), (HEADER, &length)], &body).await;
    assert!(error(&again).contains("one whole number"), "two headers are no header");

    let good = client.post("/v2/models/x/infer", &[(HEADER, &length)], &body).await;
    assert_eq!(good.json()["outputs"][0]["data"], json!([1.0, 2.0]), "and the connection is as good as before");
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn what_can_be_refused_by_the_head_is_refused_before_the_body_comes() {
    let server = server().await;
    for (line, status, words) in [
        (format!("{HEADER}: 100\r\ncontent-length: 99"), 400, "expecting 1 more bytes"),
        ("content-length: 99999999999".to_owned(), 413, "limit"),
        ("content-length: 10\r\ncontent-encoding: br".to_owned(), 415, "gzip"),
        ("content-length: 10\r\nx-request-timeout-ms: soon".to_owned(), 400, "x-request-timeout-ms"),
    ] {
        let mut client = server.connect().await;
        client.send(format!("POST /v2/models/x/infer HTTP/1.1\r\nhost: test\r\n{line}\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{line}");
        assert!(error(&answer).contains(words), "{line}: {}", error(&answer));
    }
    // Without permission to load models, the body is not waited for either.
    let mut client = server.connect().await;
    client.send("POST /v2/repository/models/x/load HTTP/1.1\r\nhost: test\r\ncontent-length: 60000\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert!(error(&answer).contains("model control"), "{answer:?}");
}

#[tokio::test]
async fn a_body_is_read_by_its_own_headers_and_not_by_its_type() {
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
async fn an_answer_is_binary_where_that_is_asked_for_whatever_its_request_was() {
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
async fn an_id_comes_back_unless_it_is_empty_and_unknown_members_are_passed_over() {
    let server = server().await;
    let mut client = server.connect().await;
    for (id, told) in [(json!("7"), json!("7")), (json!(""), Json::Null), (Json::Null, Json::Null)] {
        let mut body = input(json!({ "data": [1, 2] }));
        body["id"] = id.clone();
        body["model_name"] = json!("x");
        let answer = client.post("/v2/models/x/infer", &[], body.to_string()).await;
        assert_eq!((answer.status, answer.json().get("id").unwrap_or(&Json::Null)), (200, &told), "{id}");
    }
}

#[tokio::test]
async fn arrays_in_arrays_have_an_end() {
    let server = server().await;
    let mut client = server.connect().await;
    // Unused members are skipped at any depth.
    for (member, status) in [("data", 400), ("shape", 400), ("parameters", 400), ("more", 200)] {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let rest =
            r#""name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]"#.replace(&format!("\"{member}\""), "\"_\"");
        let body = format!("{{\"inputs\":[{{{rest},\"{member}\":{deep}}}]}}");
        let answer = client.post("/v2/models/x/infer", &[], body).await;
        assert_eq!(answer.status, status, "{member}: {answer:?}");
    }
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn arrays_behind_json_of_any_length_lie_aligned() {
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
        // In pieces, as a network delivers them: bytes in one piece are used without a copy.
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
async fn one_bad_item_of_many_fails_the_request_and_no_other() {
    let server = server().await;
    let mut client = server.connect().await;
    let body = |rows: &[[f32; 2]]| {
        json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [rows.len(), 2], "data": rows }] }).to_string()
    };
    let bad = client.post("/v2/models/rows/infer", &[], body(&[[1.0, 2.0], [-1.0, 0.0], [3.0, 4.0]])).await;
    assert_eq!((bad.status, error(&bad).as_str()), (400, "below zero"));
    let good = client.post("/v2/models/rows/infer", &[], body(&[[1.0, 2.0], [3.0, 4.0]])).await.json();
    assert_eq!(good["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));
    assert_eq!(good["outputs"][0]["shape"], json!([2, 2]));
    let none = client.post("/v2/models/rows/infer", &[], body(&[])).await;
    assert!(error(&none).contains("empty"), "{none:?}");
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn every_error_is_the_protocols_own() {
    let server = server().await;
    let mut client = server.connect().await;
    for (path, status) in [
        ("/v2/nothing", 404),
        ("/v2/models/nobody", 404),
        ("/v2/models/x/versions/9", 404),
        ("/v2/models/x/infer", 405),
        ("/v2/models/../metrics", 404),
        ("/v2/models/%2e%2e%2fmetrics", 404),
        ("/v2/models/x/trace/setting", 501),
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        error(&answer);
    }
    let wrong = client.post("/v2/models/x", &[], "").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD")));
    for path in ["/v2/repository/models/x/unload", "/v2/repository/models/x/load"] {
        let refused = client.post(path, &[], "{}").await;
        assert_eq!(refused.status, 400);
        assert!(error(&refused).contains("model control"), "{refused:?}");
    }
    let number = r#"{"inputs":[{"name":"input","datatype":"FP64","shape":[1],"data":[1]}]}"#;
    let died = client.post("/v2/models/explode/infer", &[], number).await;
    assert_eq!(died.status, 500);
    assert!(error(&died).contains("the worker panics"), "{died:?}");
    let shared =
        r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"parameters":{"shared_memory_region":"r"}}]}"#;
    let shared = client.post("/v2/models/x/infer", &[], shared).await;
    assert_eq!((shared.status, error(&shared).contains("shared memory")), (501, true));
    let long = client.post("/v2/repository/index", &[], vec![b' '; 100_000]).await;
    assert_eq!(long.status, 413);
    let next = server.connect().await.post("/v2/repository/index", &[], "{}").await;
    assert_eq!(next.json().as_array().map(Vec::len), Some(4), "{next:?}");
}

#[tokio::test]
async fn a_full_or_draining_node_says_so_in_the_protocols_words() {
    let (app, holding) = Hold::with_queue(1).split();
    let server = Server::of_app(app, HttpConfig::default()).await;
    let text = r#"{"inputs":[{"name":"input","datatype":"BYTES","shape":[1],"data":["a"]}]}"#;
    let head = format!("POST /v2/models/hold/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", text.len());
    let mut held = server.connect().await;
    held.send(format!("{head}{text}")).await;
    holding.one_is_held().await;
    let mut queued = server.connect().await;
    queued.send(format!("{head}{text}")).await;
    server.metric_becomes("callboard_stage_queued{stage=\"hold\"}", 1.0).await;

    let refused = server.connect().await.post("/v2/models/hold/infer", &[], text).await;
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    error(&refused);

    holding.release_one();
    holding.release_one();
    assert_eq!(held.answer().await.status, 200);
    assert_eq!(queued.answer().await.status, 200);

    assert_eq!(server.get("/v2/health/ready").await.status, 200);
    server.drain().await;
    for path in ["/v2/health/ready", "/v2/models/hold/ready"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 503, "{path}");
        error(&answer);
    }
    assert_eq!(server.get("/v2/health/live").await.status, 200);
    let index = server.connect().await.post("/v2/repository/index", &[], "").await.json();
    assert_eq!(index[0]["state"], "UNAVAILABLE");
    let late = server.connect().await.post("/v2/models/hold/infer", &[], text).await;
    assert_eq!(late.status, 503, "{late:?}");
}

#[tokio::test]
async fn a_node_that_is_starting_is_not_ready() {
    let mut edge = HttpEdge::starting(HttpConfig::default(), ApiInfo::default()).unwrap();
    crate::support::add_inference(&edge);
    let request = Request::get("/v2/health/ready").body(axum::body::Body::empty()).unwrap();
    let answer = edge.call(request).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let request = Request::get("/v2/health/live").body(axum::body::Body::empty()).unwrap();
    assert_eq!(edge.call(request).await.unwrap().status(), 200, "but it lives: nobody should restart it");
}

#[tokio::test]
async fn elements_of_any_length_are_bounded_by_their_number() {
    let tags = Stage::each("tags", |tags: &Vec<String>| Ok(tags.len() as u64));
    let app = App::new().route("/tags", tags).route("/name", Stage::each("name", |name: &String| Ok(name.clone())));
    let server = Server::of_app(app, config(|config| config.decode.max_elements = 1000)).await;
    let mut client = server.connect().await;
    for (model, shape, words) in [
        ("tags", 1001, "1001 elements of BYTES, more than max_elements = 1000"),
        ("tags", 500, "501 elements, expecting 500"),
        ("name", 1, "2 elements, expecting 1"),
    ] {
        let binary = vec![0; 1001 * 4];
        let json = json!({ "inputs": [{ "name": "input", "datatype": "BYTES", "shape": [shape],
            "parameters": { "binary_data_size": binary.len() } }] });
        let json = json.to_string();
        let path = format!("/v2/models/{model}/infer");
        let body = [json.as_bytes(), &binary].concat();
        let answer = client.post(&path, &[(HEADER, &json.len().to_string())], &body).await;
        assert_eq!(answer.status, 400);
        assert!(error(&answer).contains(words), "{}", error(&answer));
    }
    let texts = vec![""; 1001];
    let json = json!({ "inputs": [{ "name": "input", "datatype": "BYTES", "shape": [1001], "data": texts }] });
    let answer = client.post("/v2/models/tags/infer", &[], json.to_string()).await;
    assert!(error(&answer).contains("max_elements"), "{answer:?}");
    let json = json!({ "inputs": [{ "name": "input", "datatype": "BYTES", "shape": [1000], "data": texts[1..] }] });
    let answer = client.post("/v2/models/tags/infer", &[], json.to_string()).await;
    assert_eq!(answer.json()["outputs"][0]["data"], json!([1000]));
}

#[tokio::test]
async fn a_body_of_many_items_holds_its_bytes_until_the_last_is_over() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let stage = Stage::each("gate", move |value: &Value| {
        let tensor = value.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::new("no tensor"))?;
        if tensor.as_slice::<f32>()?[0] > 0.0 {
            _ = released.lock().unwrap().recv();
        }
        Ok(value.clone())
    });
    let field = TensorField { name: "x".to_owned(), dtype: Some(DType::F32), shape: Some(vec![None]) };
    let row = || DataType::value().with_tensors(TensorFields { fields: vec![field.clone()], stackable: true });
    let stage = stage.on_threads().replicas(2).max_batch_size(1);
    let app = App::new().mount(RouteSpec::described("/gate", stage, row(), row()));
    let server = Server::of_app(app, HttpConfig::default()).await;

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
async fn a_reader_of_events_that_leaves_cancels_its_call() {
    let endless = StreamStage::each("endless", |from: &u64| stream::iter((*from..).map(Ok)));
    let server = Server::of_app(App::new().route_streaming("/endless", endless), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let body = r#"{"input":7}"#;
    let length = body.len();
    client
        .send(format!(
            "POST /v2/models/endless/generate_stream HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(r#""output":9}"#) {
        let read = tokio::io::AsyncReadExt::read_buf(&mut client.socket, &mut seen).await.unwrap();
        assert!(read > 0, "ended: {}", String::from_utf8_lossy(&seen));
    }
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(seen.contains("text/event-stream") && seen.contains("data: {\"model_name\":\"endless\""), "{seen}");
    drop(client);
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_http_abandoned_requests_total", 1.0).await;
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn packed_bodies_are_taken_and_their_lengths_are_those_of_what_is_in_them() {
    let server = Server::of_app(app(), config(|config| config.max_body_bytes = 100_000)).await;
    let mut client = server.connect().await;
    let numbers: Vec<u8> = (0..2000_u16).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    let json = input(json!({ "shape": [1000, 2], "parameters": { "binary_data_size": numbers.len() } })).to_string();
    let body = [json.as_bytes(), &numbers].concat();
    let packed = zlib(&body);
    assert!(packed.len() < json.len() + numbers.len());
    let length = json.len().to_string();
    let headers = [("content-encoding", "deflate"), (HEADER, length.as_str())];
    let answer = client.post("/v2/models/x/infer", &headers, &packed).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"][1999], json!(1999.0));

    let headers = [("content-encoding", "deflate"), (HEADER, "999999")];
    let lying = client.post("/v2/models/x/infer", &headers, &packed).await;
    assert_eq!(lying.status, 400);
    assert!(error(&lying).contains("more bytes"), "{lying:?}");

    let bomb = zlib(&[0; 10_000_000]);
    let refused = client.post("/v2/models/x/infer", &[("content-encoding", "deflate")], &bomb).await;
    assert_eq!(refused.status, 413);
    error(&refused);
}

#[tokio::test]
async fn each_item_of_a_request_counts_against_the_limit_of_its_key() {
    let keys = ApiKeys::parse("few a-key-for-a-few-items-only 4/h").unwrap();
    let server = Server::of_app(app(), config(|c| c.api_keys = Some(keys))).await;
    let mut client = server.connect().await;
    let mut ask = async |items: usize| {
        let body = input(json!({ "shape": [items, 2], "data": vec![1.0; items * 2] })).to_string();
        client.post("/v2/models/rows/infer", &[("x-api-key", "a-key-for-a-few-items-only")], body).await
    };
    let never = ask(6).await;
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert!(error(&never).contains("send fewer at a time"), "{never:?}");
    assert_eq!(ask(3).await.status, 200);
    let later = ask(1).await;
    assert_eq!((later.status, later.header("retry-after").is_some()), (429, true));
}

/// Extensions that the server does not support answer 501, unlike a mistyped path.
#[tokio::test]
async fn extensions_that_are_not_offered_are_501() {
    let server = server().await;
    for path in [
        "/v2/systemsharedmemory/status",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/cudasharedmemory/unregister",
        "/v2/models/x/trace/setting",
        "/v2/trace/setting",
        "/v2/logging",
    ] {
        for answer in [server.get(path).await, server.post_json(path, "{}").await] {
            let told = error(&answer);
            assert_eq!(answer.status, 501, "{path}: {told}");
            assert!(told.contains("does not offer"), "{path}: {told}");
        }
    }
}

/// `/flag`: a BOOL of any length; `/one`: a scalar; `/want`: a text or any JSON; `/blob`: bytes, described as a text.
/// All return their input.
fn lenient() -> App {
    let echo = |name: &str| Stage::each(name, |value: &Value| Ok(value.clone()));
    let tensor = |name: &str, dtype, shape| {
        let field = TensorField { name: name.to_owned(), dtype: Some(dtype), shape: Some(shape) };
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
async fn what_other_servers_take_is_taken() {
    let server = Server::of_app(lenient(), HttpConfig::default()).await;
    let infer = async |model: &str, input: Json| {
        let answer =
            server.post_json(&format!("/v2/models/{model}/infer"), &json!({ "inputs": [input] }).to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["outputs"][0].clone()
    };
    let one = |data: Json, shape: Json| json!({ "name": "x", "datatype": "INT32", "shape": shape, "data": data });
    for (data, shape) in [(json!([1.0]), json!([])), (json!([1]), json!([1])), (json!([1.0]), json!([1]))] {
        let output = infer("one", one(data, shape)).await;
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
    for (sent, came) in [("logits", "\"logits\""), ("\"logits\"", "\"logits\""), ("1", "1")] {
        assert_eq!(infer("want", want(sent)).await["data"], json!([came]), "{sent}");
    }

    let parameters = json!({ "content_type": "base64" });
    let blob = json!({ "name": "blob", "datatype": "BYTES", "shape": [1], "data": ["aGk="], "parameters": parameters });
    assert_eq!(infer("blob", blob).await["data"], json!(["hi"]));
    let broken = json!({ "inputs": [{ "name": "blob", "datatype": "BYTES", "shape": [1], "data": ["no base64!"],
                                      "parameters": { "content_type": "base64" } }] });
    let refused = server.post_json("/v2/models/blob/infer", &broken.to_string()).await;
    assert_eq!((refused.status, error(&refused).contains("base64")), (400, true));

    let index = server.post_json("/v2/repository/index", "").await.json();
    assert_eq!(index[0], json!({ "name": "flag", "version": "1", "state": "READY", "reason": "" }));
}
