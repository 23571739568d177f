//! KServe's version 1. `tests/external/grpc.rs` tests it with KServe's own client.

use callboard_core::{App, Limits, Stage, StreamStage};
use callboard_http::{ApiKeys, HttpConfig, RateLimit};
use futures_util::stream;
use serde_json::{Value as Json, json};

use crate::oip::{app, error, server};
use crate::support::{Server, config};

async fn predictions(server: &Server, model: &str, instances: Json) -> Json {
    let body = json!({ "instances": instances }).to_string();
    let answer = server.post_json(&format!("/v1/models/{model}:predict"), &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.header("server-timing").is_some());
    answer.json()["predictions"].clone()
}

#[tokio::test]
async fn each_instance_is_a_call_and_its_output_a_prediction() {
    let server = server().await;
    // A row, alone and by the name of its input.
    let rows = predictions(&server, "rows", json!([[1, 2], { "x": [3, 4.5] }])).await;
    assert_eq!(rows, json!([[1.0, 2.0], [3.0, 4.5]]));
    assert_eq!(server.metric("callboard_requests_total{route=\"/rows\",outcome=\"ok\"}").await, Some(2.0));
    // A model without an axis of items gets all of it.
    assert_eq!(predictions(&server, "x", json!([[[1, 2], [3, 4]]])).await, json!([[[1.0, 2.0], [3.0, 4.0]]]));
    assert_eq!(predictions(&server, "x/versions/1", json!([])).await, json!([]));
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn what_cannot_be_predicted_is_refused_with_its_reason() {
    let count = StreamStage::each("count", |n: &u64| stream::iter((0..*n).map(Ok)));
    let server = Server::for_app(app().route_streaming("/count", count), HttpConfig::default()).await;
    for (model, body, status, words) in [
        ("rows", r#"{"instances":[[1,2],[-1,2]]}"#, 400, "below zero"),
        ("rows", r#"{"instances":[[1,2,3]]}"#, 400, "unexpected shape [3] for input 'x'"),
        ("rows", r#"{"instances":1}"#, 400, "a list 'instances'"),
        ("rows", r#"{"inputs":{"x":[[1,2]]}}"#, 400, "columns"),
        ("rows", "[]", 400, "must be an object"),
        ("nobody", r#"{"instances":[1]}"#, 404, "nobody"),
        ("x/versions/7", r#"{"instances":[1]}"#, 404, "version 7"),
        ("count", r#"{"instances":[1]}"#, 400, "a stream"),
    ] {
        let answer = server.post_json(&format!("/v1/models/{model}:predict"), body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(error(&answer).contains(words), "{answer:?}");
    }
    let read = server.get("/v1/models/rows:predict").await;
    assert_eq!((read.status, read.header("allow")), (405, Some("POST")));
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

/// A request of many instances has no more room, and no higher rate, than as many requests.
#[tokio::test]
async fn instances_are_admitted_and_limited_one_by_one() {
    let double = || App::new().route("/double", Stage::each("double", |n: &i64| Ok(n * 2)));
    let body = json!({ "instances": [1, 2, 3] }).to_string();
    let few = Server::for_app(double().limits(Limits { max_in_flight: 3, ..Limits::default() }), HttpConfig::default());
    let few = few.await;
    assert_eq!(few.post_json("/v1/models/double:predict", &body).await.status, 429);
    assert_eq!(predictions(&few, "double", json!([1, 2])).await, json!([2, 4]));
    few.metric_becomes("callboard_in_flight", 0.0).await;

    let limited = config(|config| {
        config.api_keys = Some(ApiKeys::parse("ann a-key-that-is-long-enough-for-it").unwrap());
        config.rate_limit = Some(RateLimit::parse("2/h").unwrap());
    });
    let limited = Server::for_app(double(), limited).await;
    let mut client = limited.connect().await;
    let headers = [("content-type", "application/json"), ("x-api-key", "a-key-that-is-long-enough-for-it")];
    let answer = client.post("/v1/models/double:predict", &headers, body).await;
    assert_eq!(answer.status, 429, "{answer:?}");
}
