//! An `AsyncWorker` is given to `Stage::worker`.
//~ `Model` is not a `Worker`
//~ an `AsyncWorker` goes to `Stage::async_worker`

use callboard_core::{AsyncWorker, Batch, Failure, Stage};

struct Model;

impl AsyncWorker for Model {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

fn main() {
    let _ = Stage::worker("model", |_| Ok(Model));
}
