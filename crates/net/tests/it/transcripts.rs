//! A session of protocol version 1, recorded from another implementation, against a node and a client of today.

use std::path::Path;

use bytes::Bytes;
use callboard_codec::wire::{Done, Fail, FrameKind, ResetCode, Welcome};
use callboard_codec::{DecodeLimits, Format, Value};
use callboard_core::{App, CallError, Caller, ErrorKind, Stage, StreamStage};
use callboard_net::testing::{BareEndpoint, RawPeer};
use callboard_net::{CallFailure, Client};
use futures_util::{StreamExt, stream};
use quinn::{Connection, Endpoint, SendStream};

use crate::common::{IDENTITY, ServingNode, builder, loopback, until};
use crate::lab::total;

/// The frames of one stream.
fn recorded(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../codec/tests/golden/wire");
    let path = path.join(format!("v1-session-{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

fn value(body: &Bytes) -> Value {
    Value::decode(Format::Envelope, body, &DecodeLimits::default()).unwrap()
}

fn app() -> App {
    let count = StreamStage::each("count", |n: &u64| stream::iter(0..=*n).map(Ok));
    App::new()
        .route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
        .route("/never", Stage::<String, String>::each_async("never", |_| std::future::pending()))
        .route_streaming("/count", count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_version_1_has_its_calls_answered() {
    let served = ServingNode::start(app()).await;
    let peer = RawPeer::connect(served.edge.address(), &IDENTITY).await.unwrap();
    let mut control = peer.begin(vec![recorded("hello")]).await;
    let (welcome, _) = control.next_frame().await.unwrap();
    assert_eq!((welcome.kind, welcome.header::<Welcome>().unwrap().version), (FrameKind::Welcome, 1));

    let mut pack = peer.begin(vec![recorded("pack")]).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(pack.next_frame().await.unwrap());
    }
    answers.sort_by_key(|(head, _)| head.entry);
    let [(done, body), (fail, _)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((done.kind, done.entry, value(body)), (FrameKind::Done, 0, Value::from("HELLO")));
    done.header::<Done>().unwrap();
    let refused: Fail = fail.header().unwrap();
    assert_eq!((fail.entry, refused.kind.as_str(), refused.started), (2, "not_found", false));
    until(|| total(&served.edge, "calls_cancelled") == 1).await;

    let mut stream = peer.begin(vec![recorded("stream")]).await;
    for expected in 0..5 {
        if expected == 2 {
            stream.write(vec![recorded("credit")]).await;
        }
        let (item, body) = stream.next_frame().await.unwrap();
        assert_eq!((item.kind, value(&body)), (FrameKind::Item, Value::from(expected)));
    }
    assert_eq!(stream.next_frame().await.unwrap().0.kind, FrameKind::Done);
    drop((pack, stream));
    served.until_idle().await;
}

/// Answers the next stream with recorded frames, once a part of the request has arrived.
async fn answer(connection: &Connection, name: &str) {
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    receive.read_chunk(1, true).await.unwrap();
    send.write_all(&recorded(name)).await.unwrap();
    send.finish().unwrap();
}

async fn welcome(endpoint: &Endpoint) -> (Connection, SendStream) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let (mut control, mut hello) = connection.accept_bi().await.unwrap();
    hello.read_chunk(1, true).await.unwrap();
    control.write_all(&recorded("welcome")).await.unwrap();
    (connection, control)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_version_1_is_called_until_it_leaves() {
    let bare = BareEndpoint::serving(loopback(), &IDENTITY).unwrap();
    let endpoint = bare.endpoint().clone();
    let url = format!("quic://{}", endpoint.local_addr().unwrap());
    let node = tokio::spawn(async move {
        let (first, _control) = welcome(&endpoint).await;
        for name in ["answer", "failure", "items"] {
            answer(&first, name).await;
        }
        let mut leaving = first.open_uni().await.unwrap();
        leaving.write_all(&recorded("goaway")).await.unwrap();
        leaving.finish().unwrap();
        // Calls arrive until the client learns of the end; later ones do not.
        let unheard = async {
            loop {
                answer(&first, "answer").await;
            }
        };
        tokio::select! {
            _ = leaving.stopped() => {}
            () = unheard => {}
        }
        first.close(ResetCode::Draining.number().into(), b"shut down");
        // The connection in its place.
        let (second, _control) = welcome(&endpoint).await;
        loop {
            answer(&second, "answer").await;
        }
    });
    let client = builder().attempts(1_000).connect(&url).await.unwrap();
    assert_eq!(shout(&client).await.unwrap(), "HELLO");
    let error = shout(&client).await.unwrap_err();
    assert_eq!((error.kind(), error.status(), error.message()), (ErrorKind::Failed, Some(418), "no"));
    assert_eq!(CallFailure::classify(&error), CallFailure::Function);
    let items: Vec<u64> = client.replies::<u64, u64>("/count", 1).unwrap().map(Result::unwrap).collect().await;
    assert_eq!(items, [0, 1]);
    for _ in 0..3 {
        assert_eq!(shout(&client).await.unwrap(), "HELLO");
    }
    node.abort();
}

async fn shout(client: &Client) -> Result<String, CallError> {
    client.call("/shout", "hello".to_owned()).await
}
