//! A value has one form, and an error one sender, at every edge.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use callboard_codec::{Data, Value};
use callboard_core::edge::MAX_ERROR_CHARS;
use callboard_core::{App, CallError, CallOptions, Caller, ErrorKind, Failure, Instant, Limits, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::common::ServingNode;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Nothing;

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(Option<Option<char>>),
    Tuple(u8, String),
    Struct { single: f32, double: f64 },
}

#[derive(Clone, Deserialize, JsonSchema)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("the picture is locked"))
    }
}

fn app() -> App {
    App::new()
        .route("/echo", Stage::each("echo", |value: &Value| Ok(value.clone())))
        .route("/unwritable", Stage::each("unwritable", |_: &u8| Ok(Unwritable)))
        .route("/nan", Stage::each("nan", |_: &u8| Ok(f64::NAN)))
        .route(
            "/long",
            Stage::each("long", |length: &usize| -> Result<u8, Failure> { Err(Failure::new("x".repeat(*length))) }),
        )
}

/// The result of a dynamic route at both edges, as text, because a NaN is not equal to itself.
async fn echoed<T: Data + Clone + Debug>(served: &ServingNode, sent: T) -> Result<String, CallError> {
    async fn echo_with<T: Data>(caller: &impl Caller, sent: T) -> Result<String, CallError> {
        caller.call::<_, Value>("/echo", sent).await.map(|value| format!("{value:?}"))
    }
    let local = echo_with(&served.node.client(), sent.clone()).await;
    let remote = echo_with(&served.client().await, sent.clone()).await;
    let outcome = |outcome: &Result<String, CallError>| outcome.clone().map_err(|error| error.kind());
    assert_eq!(outcome(&local), outcome(&remote), "{sent:?}");
    remote
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_arrives_over_quic_as_in_process() {
    let served = ServingNode::start(app()).await;
    let keys =
        echoed(&served, HashMap::from([(7_i64, "seven")].map(|(key, text)| (key, text.to_owned())))).await.unwrap();
    assert!(keys.contains("\"7\""), "{keys}");
    let shapes = vec![
        Shape::Unit,
        Shape::Newtype(Some(Some('ä'))),
        Shape::Newtype(Some(None)),
        Shape::Tuple(1, "one".to_owned()),
        Shape::Struct { single: f32::NAN, double: f64::NEG_INFINITY },
    ];
    echoed(&served, shapes).await.unwrap();
    echoed(&served, (Nothing, 'ß', (1_u8, [2_i16, 3]))).await.unwrap();
    echoed(&served, BTreeMap::from([(true, 1), (false, 2)])).await.unwrap();
    echoed(&served, "10.0.0.1".parse::<IpAddr>().unwrap()).await.unwrap();
    echoed(&served, u128::from(u64::MAX)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_without_a_form_is_refused_by_its_sender() {
    let served = ServingNode::start(app()).await;
    let wide = echoed(&served, vec![u128::MAX]).await.unwrap_err();
    assert_eq!((wide.kind(), wide.was_started()), (ErrorKind::InvalidInput, false));
    assert!(wide.message().contains("u128") && wide.message().contains("$[0]"), "{wide}");
    let keys = echoed(&served, BTreeMap::from([((1_u8, 2_u8), 3_u8)])).await.unwrap_err();
    assert!(keys.message().contains("(u8, u8)"), "{keys}");
    // No node is called for it.
    let refused = served.client().await.prepare("/echo", BTreeMap::from([((1_u8, 2_u8), 3_u8)]));
    assert_eq!(refused.map(|_| ()).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_cannot_be_encoded_counts_as_a_failure_of_the_stage() {
    let served = ServingNode::start(app()).await;
    let client = served.client().await;
    let error = client.call::<_, Value>("/unwritable", 1_u8).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Failed, true), "{error}");
    assert!(error.message().contains("the picture is locked"), "{error}");
    let metrics = served.node.metrics();
    assert!(metrics.contains("callboard_requests_total{route=\"/unwritable\",outcome=\"failed\"} 1"), "{metrics}");
    assert!(client.call::<_, f64>("/nan", 1_u8).await.unwrap().is_nan());
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_message_is_cut_at_the_same_character_by_both_edges() {
    let served = ServingNode::start(app()).await;
    let local = served.node.client().call::<_, u8>("/long", 20_000_usize).await.unwrap_err();
    let remote = served.client().await.call::<_, u8>("/long", 20_000_usize).await.unwrap_err();
    assert_eq!(local.message(), remote.message());
    assert!(local.message().chars().count() <= MAX_ERROR_CHARS, "{}", local.message().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_gets_no_more_time_than_the_node_allows() {
    let waits = Stage::each_async("waits", |_: std::sync::Arc<u8>| std::future::pending::<Result<u8, Failure>>());
    let limits = Limits { max_timeout: Duration::from_millis(100), ..Limits::default() };
    let served = ServingNode::start(App::new().limits(limits).route("/waits", waits)).await;
    let options = CallOptions::new().with_timeout(Duration::from_secs(50));
    let started = Instant::now();
    let error = served.client().await.call_with::<_, u8>("/waits", 1_u8, options).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::DeadlineExceeded, true));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
