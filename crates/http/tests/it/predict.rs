//! KServe's version 1. `tests/external/grpc.rs` tests it with KServe's own client.

use callboard_core::{App, Contract, Failure, Limits, RouteSpec, Stage, StreamStage};
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
    let document = server.get("/openapi.json").await.json();
    assert!(document["paths"]["/v1/models/{model}:predict"]["post"].is_object());
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
    let body = json!({ "instances": [1, 2, 3, 4] }).to_string();
    let few = Server::for_app(double().limits(Limits { max_in_flight: 3, ..Limits::default() }), HttpConfig::default());
    let few = few.await;
    let refused = few.post_json("/v1/models/double:predict", &body).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "nothing has run");
    assert_eq!(predictions(&few, "double", json!([1, 2, 3])).await, json!([2, 4, 6]));
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

#[tokio::test]
async fn the_instances_of_a_request_do_not_take_each_others_places() {
    let double = RouteSpec::new("/double", Stage::each("double", |n: &i64| Ok(n * 2))).max_in_flight(1);
    let server = Server::for_app(App::new().mount(double), HttpConfig::default()).await;
    assert_eq!(predictions(&server, "double", json!([1, 2, 3])).await, json!([2, 4, 6]));
    server.metric_becomes("callboard_in_flight", 0.0).await;
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

/// One instance fails as if its stage were full, after others ran that may not run again.
#[tokio::test]
async fn a_request_whose_calls_ran_is_not_to_be_repeated() {
    let full = |n: &i64| match n {
        1 => Ok(*n),
        _ => Err(Failure::overloaded("full")),
    };
    for (contract, repeats) in [(Contract::AtMostOnce, false), (Contract::Pure, true)] {
        let server = Server::for_app(
            App::new().route("/full", Stage::each("full", full).contract(contract)),
            HttpConfig::default(),
        );
        let server = server.await;
        let answer = server.post_json("/v1/models/full:predict", "{\"instances\":[1,2]}").await;
        assert_eq!((answer.status, answer.header("retry-after").is_some()), (429, repeats), "{answer:?}");
    }
}
