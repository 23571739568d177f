//! Hostile nodes: replies and offers of a peer to a gateway that trusts its certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{NullArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use bytes::{Bytes, BytesMut};
use callboard::codec::wire::{FrameKind, Offer, VERSION, Welcome, frame_head};
use callboard::codec::{DataFrame, Payload};
use callboard::net::testing::BareEndpoint;
use callboard::net::{NetConfig, QuicEdge};
use callboard::prelude::*;
use tokio::runtime::Runtime;

use crate::attack::Attack;
use crate::http1::Request;
use crate::quic::IDENTITY;

const JSON: &str = "application/json";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn a_peer_that_answers_with_billions_of_null_rows() {
    let runtime = runtime();
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Null, true)]));
    let rows = || RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(NullArray::new(1 << 20))]);
    let batches = (0..5000).map(|_| rows().expect("a column of nulls")).collect();
    let frame = DataFrame::try_new(Arc::clone(&schema), batches).expect("batches of one schema");
    let bomb = Stage::each("bomb", move |_: &Value| Ok(Value::DataFrame(frame.clone())));
    let (edge, _node) = serving(&runtime, bomb);
    let request = Request::post("/bomb", JSON, "1").accept(JSON);
    Attack::new("peer: answers of 5,000 batches of 2^20 nulls").joined_to(&[edge.address()]).run(|target| {
        target.repeat(&request, 2);
    });
}

/// A node that runs this stage.
fn serving(runtime: &Runtime, stage: Stage<Value, Value>) -> (QuicEdge, Node) {
    runtime.block_on(async {
        let edge =
            QuicEdge::bind("127.0.0.1:0".parse().unwrap(), IDENTITY.clone(), NetConfig::default()).expect("a socket");
        let node = App::new().route("/bomb", stage).start().await.expect("a node");
        edge.open(node.client());
        (edge, node)
    })
}

/// A node that repeats these offers and answers no call.
fn offering(runtime: &Runtime, offers: Vec<Offer>) -> (SocketAddr, BareEndpoint) {
    let _runtime = runtime.enter();
    let endpoint = BareEndpoint::serving("127.0.0.1:0".parse().unwrap(), &IDENTITY).expect("a socket");
    let address = endpoint.endpoint().local_addr().expect("it is bound");
    let body = Payload::new(offers).to_envelope().expect("offers").into_bytes();
    let framed = |kind, header: &Welcome| {
        let mut bytes = BytesMut::from(&frame_head(kind, 0, header, body.len()).expect("a header")[..]);
        bytes.extend_from_slice(&body);
        bytes.freeze()
    };
    let welcome = Welcome {
        version: VERSION,
        node: "worker".to_owned(),
        generation: 1,
        max_body_bytes: 64 << 20,
        max_stages: 16,
        ..Welcome::default()
    };
    let (welcome, offers_frame) =
        (framed(FrameKind::Welcome, &welcome), framed(FrameKind::Offers, &Welcome::default()));
    let accepting = endpoint.endpoint().clone();
    runtime.spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            let (welcome, offers_frame): (Bytes, Bytes) = (welcome.clone(), offers_frame.clone());
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else { return };
                let Ok((mut send, _receive)) = connection.accept_bi().await else { return };
                let _ = send.write_all(&welcome).await;
                while let Ok(mut offer_stream) = connection.open_uni().await {
                    if offer_stream.write_all(&offers_frame).await.is_err() {
                        return;
                    }
                    let _ = offer_stream.finish();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
    });
    (address, endpoint)
}

fn stage(name: String) -> Offer {
    Offer { name, stage: true, revision: 0, idempotent: true, ..Offer::default() }
}

/// The gateway is also linked to an honest peer, so that it is ready.
#[test]
fn a_peer_that_sends_offers_without_end() {
    let runtime = runtime();
    let (edge, _node) = serving(&runtime, Stage::each("bomb", |value: &Value| Ok(value.clone())));
    let mut offers: Vec<Offer> = (0..30_000).map(|index| stage(format!("{index:060}"))).collect();
    offers.push(stage("bomb".to_owned()));
    let (address, _endpoint) = offering(&runtime, offers);
    let request = Request::post("/bomb", JSON, "1").header("x-request-timeout-ms", "200");
    Attack::new("peer: 30,000 offers, told 50 times a second").joined_to(&[edge.address(), address]).run(|target| {
        target.repeat(&request, 8);
    });
}

#[test]
fn a_peer_that_answers_no_call() {
    let runtime = runtime();
    let (address, _endpoint) = offering(&runtime, vec![stage("bomb".to_owned())]);
    let request = Request::post("/bomb", JSON, "1");
    Attack::new("peer: takes every call and answers none").joined_to(&[address]).run(|target| {
        target.repeat(&request, 64);
    });
}
