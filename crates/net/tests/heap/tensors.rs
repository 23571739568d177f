//! Tensors cross without an extra copy: one call allocates QUIC's own packets and the tensor's destination.

use std::sync::Arc;

use callboard_codec::{Tensor, Value};
use callboard_core::{App, Caller, Pipeline, Stage};
use callboard_net::{Cluster, StaticView};

use crate::common::{ServingNode, until};
use crate::counting::{alone, taken};

const ELEMENTS: usize = 4 << 20;
const BYTES: usize = 4 * ELEMENTS;
/// Besides the tensor: windows, queues, chunks.
const SLACK: usize = 2 << 20;

fn tensor() -> Value {
    Value::from(Tensor::from_vec(&[ELEMENTS], vec![0.5_f32; ELEMENTS]).unwrap())
}

/// The bytes that one call allocates: all, and the large pieces.
async fn takes<F: Future<Output = ()>>(call: impl Fn() -> F) -> (usize, usize) {
    // Persistent buffers exist after the first calls.
    call().await;
    call().await;
    let before = taken();
    call().await;
    let after = taken();
    (after.0 - before.0, after.1 - before.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tensor_is_allocated_once_at_its_receiver_and_never_at_its_sender() {
    let _alone = alone().await;
    let size = Stage::each("size", |value: &Value| match value {
        Value::Tensor(tensor) => Ok(tensor.data().len()),
        _ => Ok(0),
    });
    let echo = Stage::each("echo", |value: &Value| Ok(value.clone()));
    let app = App::new().route("/size", size).route("/echo", echo);
    let served = ServingNode::start(app).await;
    let client = served.client().await;
    let value = tensor();

    let (all, large) = takes(|| async {
        assert_eq!(client.call::<Value, usize>("/size", value.clone()).await.unwrap(), BYTES);
    })
    .await;
    println!("there: {all} bytes, {large} in large pieces");
    assert!((BYTES..BYTES + SLACK).contains(&large), "{large}");
    // quinn copies every datagram that it receives, and keeps a little for each.
    assert!(all < 2 * BYTES + BYTES / 2, "{all}");

    let (all, large) = takes(|| async {
        assert_eq!(client.call::<Value, Value>("/echo", value.clone()).await.unwrap(), value);
    })
    .await;
    println!("there and back: {all} bytes, {large} in large pieces");
    assert!((2 * BYTES..2 * BYTES + SLACK).contains(&large), "{large}");
    assert!(all < 5 * BYTES, "{all}");
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_forwards_a_tensor_to_a_peer_without_a_copy() {
    let _alone = alone().await;
    let size = Stage::each("size", |value: &Value| match value {
        Value::Tensor(tensor) => Ok(tensor.data().len()),
        _ => Ok(0),
    });
    let worker = ServingNode::start(App::new().route("/size", size)).await;
    let gateway = ServingNode::start(App::new().route("/run", Pipeline::<Value, usize>::remote("size"))).await;
    let cluster = Cluster::start(&gateway.edge, Arc::new(StaticView::try_new([worker.edge.address()]).unwrap()));
    gateway.node.handle().join(cluster.clone()).unwrap();
    until(|| cluster.connected_peers() == 1).await;
    let (client, value) = (gateway.client().await, tensor());
    let (all, large) = takes(|| async {
        assert_eq!(client.call::<Value, usize>("/run", value.clone()).await.unwrap(), BYTES);
    })
    .await;
    println!("through a node to its peer: {all} bytes, {large} in large pieces");
    assert!((2 * BYTES..2 * BYTES + SLACK).contains(&large), "{large}");
    assert!(all < 5 * BYTES, "{all}");
    worker.until_idle().await;
    gateway.until_idle().await;
}
