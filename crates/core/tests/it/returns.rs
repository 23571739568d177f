//! A batch waits for callers who are about to come back, where that pays.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::{AsyncWorker, Batch, Failure, Replica, Stage};
use tokio::time::sleep;

use super::support::serve;

/// Takes the same time for every batch.
struct Model(Arc<Mutex<Vec<usize>>>);

impl AsyncWorker for Model {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.0.lock().unwrap().push(batch.len());
        sleep(Duration::from_millis(20)).await;
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

/// The sizes of the batches of 16 callers in two halves, each of whom calls again after this time.
async fn sizes(think: Duration, calls: u64) -> Vec<usize> {
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let stage = Stage::async_worker("model", move |_: &Replica| Ok(Model(Arc::clone(&seen))));
    let node = serve(stage.concurrency(1).max_batch_size(32)).await;
    let callers = (0..16).map(|caller| {
        let client = node.client();
        tokio::spawn(async move {
            sleep(Duration::from_millis(if caller < 8 { 0 } else { 10 })).await;
            for n in 0..calls {
                assert_eq!(client.call::<u64, u64>("/route", n).await.unwrap(), n);
                sleep(think).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    drop(node);
    sizes.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn two_halves_of_callers_become_one_batch() {
    let sizes = sizes(Duration::from_millis(1), 100).await;
    // Until it is known when they come back, and what a batch of all costs.
    let settled = &sizes[sizes.len() / 2..];
    assert!(settled.iter().filter(|size| **size == 16).count() * 10 >= settled.len() * 9, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_callers_who_come_back_late() {
    let sizes = sizes(Duration::from_millis(15), 60).await;
    let settled = &sizes[sizes.len() / 2..];
    assert!(settled.iter().all(|size| *size < 16), "{sizes:?}");
}
