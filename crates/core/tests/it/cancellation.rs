//! When a caller leaves, the work for it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_core::{Batch, Failure, Pipeline, Replica, Stage, Worker};

use super::support::{Gate, PATIENCE, gated, serve, until};

#[tokio::test]
async fn dropping_a_call_removes_its_queued_work() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let holder = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/route", 1).await }
    });
    until("the worker is busy", || gate.arrived() == 1).await;

    let leaver = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/route", 2).await }
    });
    until("the second call is queued", || node.describe().stages[0].queued == 1).await;
    leaver.abort();
    until("its queue place and permit are free", || {
        let description = node.describe();
        (description.stages[0].queued, description.in_flight) == (0, 1)
    })
    .await;

    gate.open();
    holder.await.unwrap().unwrap();
    assert_eq!(gate.arrived(), 1, "the abandoned call was executed");
    let metrics = node.metrics();
    assert!(metrics.contains(r#"callboard_requests_total{route="/route",outcome="cancelled"} 1"#), "{metrics}");
    let discarded = r#"callboard_stage_discarded_total{stage="gated",place="queue",reason="cancelled"} 1"#;
    assert!(metrics.contains(discarded), "{metrics}");
}

/// Works until its caller has left, and notes that it noticed.
struct Patient {
    started: Arc<AtomicBool>,
    saw_cancel: Arc<AtomicBool>,
}

impl Worker for Patient {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.started.store(true, Ordering::SeqCst);
        let started = std::time::Instant::now();
        while !batch.context(0).is_cancelled() && started.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        self.saw_cancel.store(batch.context(0).is_cancelled(), Ordering::SeqCst);
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

#[tokio::test]
async fn a_running_worker_sees_that_its_caller_has_left_and_later_stages_do_not_run() {
    let (started, saw_cancel) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let second_ran = Arc::new(AtomicBool::new(false));
    let patient = Stage::worker("patient", {
        let (started, saw_cancel) = (Arc::clone(&started), Arc::clone(&saw_cancel));
        move |_: &Replica| Ok(Patient { started: Arc::clone(&started), saw_cancel: Arc::clone(&saw_cancel) })
    });
    let second = Stage::each("second", {
        let second_ran = Arc::clone(&second_ran);
        move |n: &u64| {
            second_ran.store(true, Ordering::SeqCst);
            Ok(*n)
        }
    });
    let node = serve(Pipeline::from(patient).then(second)).await;
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/route", 1).await });
    until("the worker has started", || started.load(Ordering::SeqCst)).await;
    call.abort();
    until("the worker saw the cancel", || saw_cancel.load(Ordering::SeqCst)).await;
    let _ = node.shutdown(Duration::from_secs(5)).await;
    assert!(!second_ran.load(Ordering::SeqCst));
}
