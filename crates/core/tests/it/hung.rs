//! Calls that hang: their callers are answered, their replica is replaced, their thread is counted.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{App, Batch, Contract, ErrorKind, Failure, LocalClient, Replica, Stage, Worker};

use super::support::{Gate, hide_panics, until};

struct HungWorker {
    gate: Gate,
    generation: u64,
}

impl Worker for HungWorker {
    type In = bool;
    type Out = u64;

    fn call(&mut self, batch: Batch<bool>) -> Vec<Result<u64, Failure>> {
        if batch.iter().any(|hang| *hang) {
            self.gate.pass();
        }
        batch.iter().map(|_| Ok(self.generation)).collect()
    }
}

fn hangs(gate: &Gate) -> Stage<bool, u64> {
    let gate = gate.clone();
    Stage::worker("hangs", move |replica: &Replica| {
        Ok(HungWorker { gate: gate.clone(), generation: replica.generation() })
    })
    .timeout(Duration::from_millis(50))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_call_is_answered_and_its_replica_replaced() {
    hide_panics();
    let gate = Gate::default();
    let node = App::new().route("/hangs", hangs(&gate)).start().await.unwrap();
    let client = node.client();
    assert_eq!(client.call::<bool, u64>("/hangs", false).await.unwrap(), 0);

    let error = client.call::<bool, u64>("/hangs", true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.message().contains("timeout of 50ms"), "{error}");
    assert_eq!(client.call::<bool, u64>("/hangs", false).await.unwrap(), 1, "another replica serves");
    assert!(node.metrics().contains("callboard_stage_abandoned_threads{stage=\"hangs\"} 1"));

    gate.open();
    until("the thread has returned", || {
        node.metrics().contains("callboard_stage_abandoned_threads{stage=\"hangs\"} 0")
    })
    .await;
    assert_eq!(client.call::<bool, u64>("/hangs", true).await.unwrap(), 1, "the late result has no effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_hangs_too_often_fails_and_reports_why() {
    hide_panics();
    let gate = Gate::default();
    let stage = hangs(&gate).map_settings(|settings| settings.with_max_abandoned_threads(2));
    let node = App::new().route("/hangs", stage).start().await.unwrap();
    let client = node.client();
    for _ in 0..3 {
        client.call::<bool, u64>("/hangs", false).await.unwrap();
        let error = client.call::<bool, u64>("/hangs", true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    }
    until("the stage has failed", || node.health().stages[0].state == StageState::Failed).await;
    let error = client.call::<bool, u64>("/hangs", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("3 of its threads hang"), "{error}");
    assert!(error.retry_after().is_some() && !node.health().ready, "{error:?}");
    gate.open();
    until("the stage is back by itself", || node.health().ready).await;
    client.call::<bool, u64>("/hangs", false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_starts_while_more_than_twice_the_allowed_threads_hang() {
    let gate = Gate::default();
    let stage = hangs(&gate).map_settings(|settings| settings.with_max_abandoned_threads(1));
    let node = App::new().route("/hangs", stage).start().await.unwrap();
    let has_failed = || node.health().stages[0].state == StageState::Failed;
    // A stage that has just come back may refuse a call before its queue is open.
    let hang = || async {
        for _ in 0..1000 {
            let error = node.client().call::<bool, u64>("/hangs", true).await.unwrap_err();
            if error.kind() == ErrorKind::DeadlineExceeded {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    for _ in 0..2 {
        hang().await;
    }
    until("the stage has failed", has_failed).await;
    node.scale_stage("hangs", 1).await.expect("it tries at once");
    hang().await;
    until("the stage has failed again", has_failed).await;
    let error = node.scale_stage("hangs", 1).await.unwrap_err();
    assert!(error.to_string().contains("3 of its threads hang"), "{error}");
    gate.open();
    until("the stage is back by itself", || node.health().ready).await;
}

/// Hangs for `true` until the test lets it go on.
struct HeldWorker(Arc<Mutex<Receiver<()>>>);

impl Worker for HeldWorker {
    type In = bool;
    type Out = bool;

    fn call(&mut self, batch: Batch<bool>) -> Vec<Result<bool, Failure>> {
        if batch.iter().any(|hang| *hang) {
            let _ = self.0.lock().unwrap().recv();
        }
        batch.iter().map(|hang| Ok(*hang)).collect()
    }
}

/// On a busy machine a call may take longer than the short timeout of the stage.
async fn honest(client: &LocalClient) {
    for _ in 0..10 {
        match client.call::<bool, bool>("/hangs", false).await {
            Ok(answer) => return assert!(!answer),
            Err(error) => assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}"),
        }
    }
    panic!("an honest call has no answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_hang_one_after_another_never_fail_a_stage_under_any_contract() {
    for contract in [Contract::AtMostOnce, Contract::Idempotent, Contract::Pure] {
        let (let_go, held) = channel();
        let held = Arc::new(Mutex::new(held));
        let stage = Stage::worker("hangs", move |_: &Replica| Ok(HeldWorker(Arc::clone(&held))));
        let stage = stage.timeout(Duration::from_millis(20)).contract(contract);
        let node = App::new().route("/hangs", stage).start().await.unwrap();
        let client = node.client();
        let abandoned = |threads| node.metrics().contains(&format!("abandoned_threads{{stage=\"hangs\"}} {threads}\n"));
        for n in 0..24 {
            let error = client.call::<bool, bool>("/hangs", true).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "call {n}: {error}");
            until(&format!("the node is ready after call {n}"), || node.health().ready).await;
            // Half of the calls have no honest call between them.
            if n >= 12 {
                honest(&client).await;
            }
            let_go.send(()).unwrap();
            until("the thread has returned", || abandoned(0)).await;
        }
        let health = &node.describe().stages[0].health;
        assert!(health.reason.as_deref().is_some_and(|reason| reason.contains("more than a fifth")), "{health:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_leave_the_callers_of_a_hung_call_waiting() {
    hide_panics();
    let gate = Gate::default();
    let stage = {
        let gate = gate.clone();
        Stage::each("hangs", move |(): &()| {
            gate.pass();
            Ok(())
        })
    };
    let node = App::new().route("/hangs", stage.on_threads()).start().await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<(), ()>("/hangs", ()).await });
    until("it runs", || node.describe().stages[0].replicas[0].busy).await;
    let _ = node.shutdown(Duration::from_millis(1)).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_during_scale_down_is_abandoned() {
    let gate = Gate::default();
    let node = App::new().route("/hangs", hangs(&gate).replicas(2)).start().await.unwrap();
    let client = node.client();
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<bool, u64>("/hangs", true).await })
        })
        .collect();
    until("both hang", || gate.arrived() == 2).await;
    let scaled = tokio::time::timeout(Duration::from_secs(10), node.scale_stage("hangs", 1)).await;
    scaled.expect("it waits for ever").unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    }
    gate.open();
}
