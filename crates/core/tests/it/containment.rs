//! Users' values may panic when they are dropped. At most this ends a replica.

use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{App, CallOptions, Node, Stage};
use serde::{Deserialize, Serialize};

use super::support::{Gate, hide_panics, until};

/// Panics when it is dropped, if it is armed.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
struct Bomb {
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.armed || std::thread::panicking(), "meant to panic");
    }
}

async fn gated(gate: &Gate) -> Node {
    let gate = gate.clone();
    let stage = Stage::each("gated", move |bomb: &Bomb| {
        gate.pass();
        Ok(Bomb { armed: bomb.armed })
    });
    App::new().route("/gated", stage.on_threads()).start().await.unwrap()
}

async fn still_serves(node: &Node) {
    let client = node.client();
    let call = client.call::<Bomb, Bomb>("/gated", Bomb { armed: false });
    let outcome = tokio::time::timeout(Duration::from_secs(10), call).await.expect("nobody answers any more");
    assert!(!outcome.unwrap().armed);
    until("the stage is ready", || node.health().stages[0].state == StageState::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_output_that_panics_on_drop_ends_no_stage() {
    hide_panics();
    let gate = Gate::default();
    let node = gated(&gate).await;
    let client = node.client();
    let left = tokio::spawn(async move { drop(client.call::<Bomb, Bomb>("/gated", Bomb { armed: true }).await) });
    until("it runs", || gate.arrived() == 1).await;
    left.abort();
    until("its caller has left", || node.describe().in_flight == 0).await;
    gate.open();
    still_serves(&node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_panics_on_drop_ends_no_batcher() {
    hide_panics();
    let gate = Gate::default();
    let node = gated(&gate).await;
    let client = node.client();
    let holder = tokio::spawn({
        let client = client.clone();
        async move { client.call::<Bomb, Bomb>("/gated", Bomb { armed: false }).await }
    });
    until("the worker is busy", || gate.arrived() == 1).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(20));
    let late = client.call_with::<Bomb, Bomb>("/gated", Bomb { armed: true }, options).await;
    assert!(late.is_err());
    until("it has left the queue", || node.describe().stages[0].queued == 0).await;
    gate.open();
    holder.await.unwrap().unwrap();
    still_serves(&node).await;
}

/// Panics when it is dropped, even during another panic: two of them without containment end the process.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
struct DoublePanic {
    armed: bool,
}

impl Drop for DoublePanic {
    fn drop(&mut self) {
        assert!(!self.armed, "meant to panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_panic_when_their_node_is_dropped_end_nothing_else() {
    hide_panics();
    let gate = Gate::default();
    let passed = gate.clone();
    let stage = Stage::each("gated", move |bomb: &DoublePanic| {
        passed.pass();
        Ok(bomb.armed)
    });
    let node = App::new().route("/gated", stage.on_threads()).start().await.unwrap();
    let client = node.client();
    let call = |armed| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<DoublePanic, bool>("/gated", DoublePanic { armed }).await })
    };
    let holder = call(false);
    until("the worker is busy", || gate.arrived() == 1).await;
    let waiting = [call(true), call(true), call(true)];
    until("the other calls wait", || node.describe().stages[0].queued == 3).await;
    drop(node);
    for call in waiting {
        assert!(call.await.unwrap().unwrap_err().is_retryable());
    }
    gate.open();
    let _ = holder.await.unwrap();
}
