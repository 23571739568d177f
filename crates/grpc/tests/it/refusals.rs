//! Every layer of the edge refuses a request of gRPC by an answer of gRPC.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, Drained, Failure, Limits, Stage};
use callboard_http::{ApiKeys, RateLimit};
use prost::Message as _;
use tokio::sync::mpsc;

use crate::client::{INFER, Server, TEST_TIMEOUT, config, framed};
use crate::messages::{Infer, Inferred};

fn app() -> App {
    let fail = Stage::each("fail", |status: &i64| -> Result<i64, Failure> {
        match *status {
            0 => panic!("on demand"),
            1 => Err(Failure::new("plainly")),
            2 => Err(Failure::overloaded("later")),
            status => Err(Failure::new("as chosen").with_status(status as u16)),
        }
    });
    App::new().route("/fail", fail)
}

fn fail(status: i64) -> Infer {
    Infer::raw("fail", "INT64", &[1], status.to_le_bytes().to_vec())
}

#[tokio::test]
async fn failures_of_user_code_have_their_status() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    for (status, grpc) in
        [(0, 13), (1, 2), (2, 8), (404, 5), (409, 10), (403, 7), (418, 3), (503, 13), (504, 4), (501, 12)]
    {
        client.infer(&fail(status)).await.refused(grpc);
    }
    assert_eq!(server.node.client().in_flight(), 0);
}

#[tokio::test]
async fn keys_rates_and_hosts_refuse_in_the_form_of_grpc() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let server = Server::with(
        app(),
        config(|config| {
            config.api_keys = Some(keys);
            config.rate_limit = Some(RateLimit::parse("1/h").unwrap());
        }),
    )
    .await;
    let client = server.connect().await;
    assert_eq!(client.infer(&fail(1)).await.refused(16), "send a key, as `authorization: Bearer …` or as `x-api-key`");
    let client = client.with("x-api-key", "a-key-that-nobody-guesses");
    client.infer(&fail(1)).await.refused(2);
    let limited = client.infer(&fail(1)).await;
    assert!(limited.refused(8).contains("key `web` is over its limit"));
    assert!(limited.pushback().is_some_and(|millis| millis > 1_000));
    let mut client = server.connect().await;
    client.authority = "evil.example.org";
    client.infer(&fail(1)).await.refused(7);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_unimplemented() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    for path in ["/inference.GRPCInferenceService/Explain", "/other.Service/Method", "/nowhere", "/", "/docs/x"] {
        let refused = client.call(path, &fail(1)).await.refused(12);
        assert_eq!(refused, format!("there is no method `{path}`"));
    }
}

#[tokio::test]
async fn a_node_that_starts_or_drains_is_unavailable() {
    let node = app().start().await.unwrap();
    let server = Server::starting(node, Default::default()).await;
    let client = server.connect().await;
    assert_eq!(client.infer(&fail(1)).await.refused(14), "the node is starting");
    server.edge.open(server.node.client()).unwrap();
    client.infer(&fail(1)).await.refused(2);
    assert_eq!(server.node.drain(TEST_TIMEOUT).await, Drained::Completely);
    client.infer(&fail(1)).await.refused(14);
}

#[tokio::test]
async fn a_stalled_message_is_late() {
    let server = Server::with(app(), config(|config| config.body_progress_timeout = Duration::from_millis(100))).await;
    let client = server.connect().await;
    let whole = framed(&fail(1).encode_to_vec());
    for length in [0, 3, 10] {
        client.stall(INFER, whole.slice(..length)).await.refused(4);
    }
    assert_eq!(server.node.client().edge().charged_bytes(), 0);
}

/// A stage that holds its calls.
fn held() -> (App, mpsc::Receiver<tokio::sync::oneshot::Sender<()>>) {
    let (sender, receiver) = mpsc::channel(16);
    let hold = Stage::each_async("hold", move |number: Arc<i64>| {
        let (sender, number) = (sender.clone(), *number);
        async move {
            let (release, released) = tokio::sync::oneshot::channel();
            sender.send(release).await.map_err(|_| Failure::new("nobody waits"))?;
            _ = released.await;
            Ok(number)
        }
    });
    (App::new().route("/hold", hold), receiver)
}

fn hold() -> Infer {
    Infer::raw("hold", "INT64", &[1], 7_i64.to_le_bytes().to_vec())
}

#[tokio::test]
async fn the_smaller_deadline_ends_a_call() {
    let (app, _holding) = held();
    let server = Server::start(app).await;
    for (name, value) in [("grpc-timeout", "50m"), ("x-request-timeout-ms", "50")] {
        let client = server.connect().await.with(name, value).with(
            if name == "grpc-timeout" { "x-request-timeout-ms" } else { "grpc-timeout" },
            if name == "grpc-timeout" { "60000" } else { "1M" },
        );
        client.infer(&hold()).await.refused(4);
    }
    let client = server.connect().await.with("grpc-timeout", "1u");
    client.infer(&hold()).await.refused(4);
    server.in_flight_becomes(0).await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_permit() {
    let (app, mut holding) = held();
    let server = Server::start(app.limits(Limits { max_in_flight: 1, ..Limits::default() })).await;
    let client = server.connect().await;
    let request = hold();
    let call = tokio::spawn(async move { client.infer(&request).await });
    let mut release = holding.recv().await.unwrap();
    let second = server.connect().await;
    let refused = second.infer(&hold()).await;
    refused.refused(8);
    assert!(refused.pushback().is_some());
    call.abort();
    // The code of the stage sees that nobody waits.
    tokio::time::timeout(TEST_TIMEOUT, release.closed()).await.expect("the call is cancelled");
    server.in_flight_becomes(0).await;
    let call = tokio::spawn(async move { second.infer(&hold()).await });
    holding.recv().await.unwrap().send(()).unwrap();
    call.await.unwrap().message::<Inferred>();
}
