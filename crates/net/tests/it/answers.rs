//! What the edge tells of each call, for the metrics and the access log of its node.

use std::net::Ipv6Addr;
use std::sync::Arc;

use callboard_core::edge::{AnswerObserver, AnsweredCall, CallEnd};
use callboard_core::{App, CallOptions, Caller, Failure, Pipeline, Stage, StreamStage};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::common::{Member, ServingNode, patient, until};

/// Each call as a line: door, target, route, end, items, id.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl AnswerObserver for Told {
    fn answered(&self, call: &AnsweredCall<'_>) {
        assert!(call.client.is_some_and(is_loopback) && call.request_bytes > 0, "{call:?}");
        assert_eq!(call.bytes.is_some_and(|bytes| bytes > 0), matches!(call.end, CallEnd::Answered), "{call:?}");
        let end = match call.end {
            CallEnd::Answered => "ok",
            CallEnd::Failed(error) => error.kind().as_str(),
            CallEnd::CallerLeft => "left",
        };
        let (route, id) = (call.route.unwrap_or("-"), call.request_id.unwrap_or("-"));
        let items = call.items.map_or_else(|| "-".to_owned(), |items| items.to_string());
        self.0.lock().push(format!("{} {} {route} {end} {items} {id}", call.door, call.target));
    }
}

fn is_loopback(client: [u8; 16]) -> bool {
    Ipv6Addr::from(client).to_canonical().is_loopback()
}

fn told(served: &ServingNode) -> Arc<Told> {
    let told = Arc::new(Told::default());
    served.node.client().edge().observe_answers_with(Arc::clone(&told) as Arc<dyn AnswerObserver>);
    told
}

fn next() -> Stage<i64, i64> {
    Stage::each("next", |n: &i64| if *n == 13 { Err(Failure::new("13")) } else { Ok(n + 1) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_of_a_client_is_told_with_its_end() {
    let began = Arc::new(Notify::new());
    let begins = Arc::clone(&began);
    let wait = Stage::each_async("wait", move |_: Arc<i64>| {
        begins.notify_one();
        std::future::pending::<Result<i64, Failure>>()
    });
    let count = StreamStage::each("count", |n: &i64| stream::iter((0..*n).map(Ok)));
    let app = App::new().route("/next", next()).route("/wait", wait).route_streaming("/count", count);
    let served = ServingNode::start(app).await;
    let (client, told) = (served.client().await, told(&served));

    let options = CallOptions::new().with_request_id("r-1");
    assert_eq!(client.call_with::<i64, i64>("/next", 1, options).await.unwrap(), 2);
    client.call::<i64, i64>("/next", 13).await.unwrap_err();
    client.call::<i64, i64>("/nowhere", 1).await.unwrap_err();
    assert_eq!(client.replies::<i64, i64>("/count", 3).unwrap().collect::<Vec<_>>().await.len(), 3);
    let mut left = Box::pin(client.call::<i64, i64>("/wait", 1));
    tokio::select! {
        _ = &mut left => unreachable!("it does not return"),
        () = began.notified() => drop(left),
    }
    until(|| told.0.lock().len() == 5).await;
    let expected = [
        "quic /next /next ok - r-1",
        "quic /next /next failed - -",
        "quic /nowhere - not_found - -",
        "quic /count /count ok 3 -",
        "quic /wait /wait left - -",
    ];
    assert_eq!(*told.0.lock(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_peer_is_told_by_its_stages_and_a_refusal_by_its_route() {
    let mut config = patient();
    config.max_body_bytes = 500;
    let worker = ServingNode::start_with(App::new().route("/there", Pipeline::from(next())), config).await;
    let told = told(&worker);
    let member = Member::start(App::new().route("/run", Pipeline::<i64, i64>::remote("next")), &[&worker.edge]).await;
    member.until_offered("next").await;
    assert_eq!(member.served.node.client().call::<i64, i64>("/run", 1).await.unwrap(), 2);
    assert_eq!(*told.0.lock(), ["quic next - ok - -"]);

    // Refused by its length, before its body is read.
    worker.client().await.call::<String, i64>("/there", "x".repeat(1_000)).await.unwrap_err();
    assert_eq!(told.0.lock()[1..], ["quic /there /there invalid_input - -"]);
}
