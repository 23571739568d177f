//! The Open Inference Protocol by hand: refused requests, limits, and nodes that cannot answer.

use std::sync::Arc;

use axum::http::Request;
use callboard_core::{App, Stage};
use callboard_http::{ApiInfo, ApiKeys, HttpConfig, HttpEdge};
use callboard_oip::InferenceProtocol;
use serde_json::{Value as Json, json};
use tower::Service as _;

use crate::oip::{HEADER, app, error, input, server, two};
use crate::support::app::Hold;
use crate::support::{Server, config};

#[tokio::test]
async fn false_lengths_are_refused_and_hold_no_bytes() {
    let server = server().await;
    let mut client = server.connect().await;
    let sized = |bytes: i64| input(json!({ "parameters": { "binary_data_size": bytes } }));
    let shaped = |shape: Json| input(json!({ "shape": shape, "parameters": { "binary_data_size": 8 } }));
    let repeated = json!({ "inputs": [sized(8)["inputs"][0], sized(8)["inputs"][0]] });
    let two_sources = input(json!({ "data": [1, 2], "parameters": { "binary_data_size": 8 } }));
    let cases = [
        (sized(9), 8, "expecting 1 additional bytes"),
        (sized(i64::MAX), 8, "additional bytes"),
        (sized(4), 4, "unexpected byte size 4, expecting 8"),
        (sized(8), 12, "unexpected additional input data for model 'x'"),
        (sized(-8), 8, "binary_data_size"),
        (shaped(json!([-1, 2])), 8, "axis"),
        (shaped(json!([2, 2])), 8, "expecting 16 bytes"),
        (shaped(json!([i64::MAX, 2])), 8, "too large"),
        (shaped(json!([2])), 8, "shape"),
        (shaped(json!([1, 2, 1])), 8, "shape"),
        (shaped(json!([1, 3])), 8, "shape"),
        (shaped(json!(["1", 2])), 8, "JSON"),
        (repeated, 16, "twice"),
        (two_sources, 8, "both"),
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
    for (json, binary_bytes, expected) in cases {
        let json = json.to_string();
        let body = [json.as_bytes(), &vec![0; binary_bytes]].concat();
        let answer = client.post("/v2/models/x/infer", &[(HEADER, &json.len().to_string())], &body).await;
        let message = error(&answer);
        assert_eq!(answer.status, 400, "{json}: {message}");
        assert!(message.contains(expected), "{json}: {message}");
    }

    let json = sized(8).to_string();
    let body = [json.as_bytes(), &two(1.0, 2.0)].concat();
    let one_more = (body.len() + 1).to_string();
    let huge = u64::MAX.to_string();
    for (header, expected) in [
        (one_more.as_str(), "expecting 1 more bytes"),
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
        assert!(error(&answer).contains(expected), "{header}: {}", error(&answer));
    }
    let length = json.len().to_string();
    let repeated_header = client.post("/v2/models/x/infer", &[(HEADER, &length), (HEADER, &length)], &body).await;
    assert!(error(&repeated_header).contains("one whole number"), "two headers are refused");

    let good = client.post("/v2/models/x/infer", &[(HEADER, &length)], &body).await;
    assert_eq!(good.json()["outputs"][0]["data"], json!([1.0, 2.0]), "the connection still works");
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn a_request_with_an_invalid_head_is_refused_before_its_body_arrives() {
    let server = server().await;
    for (line, status, message) in [
        (format!("{HEADER}: 100\r\ncontent-length: 99"), 400, "expecting 1 more bytes"),
        ("content-length: 99999999999".to_owned(), 413, "limit"),
        ("content-length: 10\r\ncontent-encoding: br".to_owned(), 415, "gzip"),
        ("content-length: 10\r\nx-request-timeout-ms: soon".to_owned(), 400, "x-request-timeout-ms"),
    ] {
        let mut client = server.connect().await;
        client.send(format!("POST /v2/models/x/infer HTTP/1.1\r\nhost: test\r\n{line}\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{line}");
        assert!(error(&answer).contains(message), "{line}: {}", error(&answer));
    }
    // Without permission to load models, the server does not wait for the body either.
    let mut client = server.connect().await;
    client.send("POST /v2/repository/models/x/load HTTP/1.1\r\nhost: test\r\ncontent-length: 70000\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert!(error(&answer).contains("model control"), "{answer:?}");
}

#[tokio::test]
async fn nested_arrays_have_a_maximum_depth() {
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
    let empty = client.post("/v2/models/rows/infer", &[], body(&[])).await;
    assert!(error(&empty).contains("empty"), "{empty:?}");
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn every_error_has_the_form_of_the_protocol() {
    let server = server().await;
    let mut client = server.connect().await;
    for (path, status) in [
        ("/v2/nothing", 404),
        ("/v2/models/none", 404),
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
    let post = client.post("/v2/models/x", &[], "").await;
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    for path in ["/v2/repository/models/x/unload", "/v2/repository/models/x/load"] {
        let refused = client.post(path, &[], "{}").await;
        assert_eq!(refused.status, 400);
        assert!(error(&refused).contains("model control"), "{refused:?}");
    }
    let number = r#"{"inputs":[{"name":"input","datatype":"FP64","shape":[1],"data":[1]}]}"#;
    let panicked = client.post("/v2/models/explode/infer", &[], number).await;
    assert_eq!(panicked.status, 500);
    assert!(error(&panicked).contains("the worker panics"), "{panicked:?}");
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
async fn a_full_or_draining_node_answers_with_errors_of_the_protocol() {
    let (app, holding) = Hold::with_queue(1).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let text = r#"{"inputs":[{"name":"input","datatype":"BYTES","shape":[1],"data":["a"]}]}"#;
    let head = format!("POST /v2/models/hold/infer HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", text.len());
    let mut held = server.connect().await;
    held.send(format!("{head}{text}")).await;
    holding.wait_until_held().await;
    let mut queued = server.connect().await;
    queued.send(format!("{head}{text}")).await;
    server.metric_becomes("callboard_stage_queued{stage=\"hold\"}", 1.0).await;

    let refused = server.connect().await.post("/v2/models/hold/infer", &[], text).await;
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    error(&refused);

    holding.release();
    holding.release();
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
    let mut edge =
        HttpEdge::starting(HttpConfig::default(), ApiInfo::default(), vec![Arc::new(InferenceProtocol::new())])
            .unwrap();
    let request = Request::get("/v2/health/ready").body(axum::body::Body::empty()).unwrap();
    let answer = edge.call(request).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let request = Request::get("/v2/health/live").body(axum::body::Body::empty()).unwrap();
    assert_eq!(edge.call(request).await.unwrap().status(), 200, "it is live, so that it is not restarted");
}

#[tokio::test]
async fn the_count_of_variable_length_elements_is_bounded() {
    let tags = Stage::each("tags", |tags: &Vec<String>| Ok(tags.len() as u64));
    let app = App::new().route("/tags", tags).route("/name", Stage::each("name", |name: &String| Ok(name.clone())));
    let server = Server::for_app(app, config(|config| config.decode.max_elements = 1000)).await;
    let mut client = server.connect().await;
    for (model, shape, message) in [
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
        assert!(error(&answer).contains(message), "{}", error(&answer));
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
async fn each_item_of_a_request_counts_against_the_limit_of_its_key() {
    let keys = ApiKeys::parse("few a-key-for-a-few-items-only 4/h").unwrap();
    let server = Server::for_app(app(), config(|c| c.api_keys = Some(keys))).await;
    let mut client = server.connect().await;
    let mut infer = async |items: usize| {
        let body = input(json!({ "shape": [items, 2], "data": vec![1.0; items * 2] })).to_string();
        client.post("/v2/models/rows/infer", &[("x-api-key", "a-key-for-a-few-items-only")], body).await
    };
    let too_many = infer(6).await;
    assert_eq!((too_many.status, too_many.header("retry-after")), (429, None));
    assert!(error(&too_many).contains("send fewer at a time"), "{too_many:?}");
    assert_eq!(infer(3).await.status, 200);
    let over_limit = infer(1).await;
    assert_eq!((over_limit.status, over_limit.header("retry-after").is_some()), (429, true));
}

/// Extensions that the server does not support answer 501, unlike a mistyped path.
#[tokio::test]
async fn unsupported_extensions_are_501() {
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
            let message = error(&answer);
            assert_eq!(answer.status, 501, "{path}: {message}");
            assert!(message.contains("does not offer"), "{path}: {message}");
        }
    }
}
