//! Outcomes that cannot be encoded: an error of the stage's author, reported and counted as such.

use std::collections::BTreeMap;

use callboard_core::edge::MAX_ERROR_CHARS;
use callboard_core::{App, Failure, RouteSpec, Stage};
use callboard_http::HttpConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::time::Duration;

use crate::access::LogText;
use crate::support::Server;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Figures {
    mean: f32,
    by_name: BTreeMap<String, Option<f64>>,
}

#[derive(Clone, Deserialize, JsonSchema)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("the picture is locked"))
    }
}

fn app() -> App {
    let number = Stage::each("number", |_: &u8| Ok(f64::NAN));
    let figures = Stage::each("figures", |_: &u8| {
        Ok(Figures { mean: 0.5, by_name: BTreeMap::from([("x".to_owned(), Some(f64::INFINITY))]) })
    });
    let pending = Stage::each_async("pending", |_: std::sync::Arc<u8>| std::future::pending::<Result<u8, Failure>>());
    App::new()
        .route("/number", number)
        .route("/figures", figures)
        .route("/unwritable", Stage::each("unwritable", |_: &u8| Ok(Unwritable)))
        .route(
            "/long",
            Stage::each("long", |length: &usize| -> Result<u8, Failure> { Err(Failure::new("x".repeat(*length))) }),
        )
        .mount(RouteSpec::new("/pending", pending).max_timeout(Duration::from_millis(50)))
}

async fn requests(server: &Server, route: &str, outcome: &str) -> Option<f64> {
    server.metric(&format!("callboard_requests_total{{route=\"{route}\",outcome=\"{outcome}\"}}")).await
}

#[tokio::test]
async fn an_outcome_that_cannot_be_encoded_is_counted_as_a_failure_of_its_stage() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    for (route, message) in [("/number", "NaN"), ("/figures", "$.by_name.x"), ("/unwritable", "the picture is locked")]
    {
        let answer = server.post_json(route, "1").await;
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(answer.text().contains("\"kind\":\"failed\"") && answer.text().contains(message), "{}", answer.text());
        assert_eq!(requests(&server, route, "failed").await, Some(1.0), "{route}");
        assert_eq!(requests(&server, route, "ok").await.unwrap_or_default(), 0.0, "{route}");
    }
    // MessagePack can express NaN.
    let headers = [("content-type", "application/json"), ("accept", "application/msgpack")];
    let answer = server.connect().await.post("/number", &headers, "1").await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(requests(&server, "/number", "ok").await, Some(1.0));
    server.drain().await;
}

#[tokio::test]
async fn the_error_of_a_call_made_by_a_stage_is_reported_as_the_error_of_the_stage() {
    let inner = Stage::each("inner", |busy: &bool| -> Result<u8, Failure> {
        Err(if *busy {
            Failure::overloaded("busy").with_retry_after(Duration::from_millis(4_200))
        } else {
            Failure::new("pay").with_status(402).with_type("Unpaid").with_details(7_i64)
        })
    });
    let node = App::new().route("/inner", inner).start().await.unwrap();
    let client = node.client();
    let outer = Stage::each_async("outer", move |busy: std::sync::Arc<bool>| {
        let client = client.clone();
        async move { Ok(client.call::<bool, u8>("/inner", *busy).await?) }
    });
    let server = Server::for_app(App::new().route("/outer", outer), HttpConfig::default()).await;
    let answer = server.post_json("/outer", "false").await;
    let problem: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!((answer.status, &problem["error_type"], &problem["details"]), (402, &"Unpaid".into(), &7.into()));
    assert_eq!((&problem["message"], &problem["stage"]), (&"pay".into(), &"outer > inner".into()));
    let answer = server.post_json("/outer", "true").await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("5")), "{answer:?}");
}

#[tokio::test]
async fn a_long_message_is_truncated_at_the_common_limit() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let answer = server.post_json("/long", "20000").await;
    let problem: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    let message = problem["message"].as_str().unwrap();
    assert!(message.len() <= MAX_ERROR_CHARS + 2 && message.ends_with(" more characters)"), "{}", message.len());
}

/// On one thread, and the test gets all of its log lines.
#[tokio::test]
async fn the_log_line_of_a_failed_call_has_the_begin_of_a_long_message() {
    let words = LogText::default();
    let _here = tracing::subscriber::set_default(words.clone());
    let server = Server::for_app(app(), HttpConfig::default()).await;
    assert_eq!(server.post_json("/long", "20000").await.status, 500);
    assert_eq!(words.count(" more characters)\n"), 1, "one line about it");
    let longest = words.longest_text();
    assert!((500..=1000).contains(&longest), "{longest} characters");
}

#[tokio::test]
async fn a_caller_gets_no_more_time_than_its_route_allows() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let headers = [("content-type", "application/json"), ("x-request-timeout-ms", "60000")];
    let answer = server.connect().await.post("/pending", &headers, "1").await;
    assert_eq!(answer.status, 504, "{answer:?}");
}
