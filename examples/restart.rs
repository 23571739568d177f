//! A worker that panics loses its own call and no other: its supervisor starts a new one at once.
//!
//! Run with `cargo run --example restart`. Every hundredth call panics a worker that keeps a count. Each of these calls
//! is answered with `worker_failed` and the worker's panic message; all others succeed; the stage stays up.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use callboard::prelude::*;

const CALLS: u32 = 1_000;

/// Counts its calls. A restart loses this state of the replica.
struct Fragile {
    survived: u32,
}

impl Worker for Fragile {
    type In = u32;
    type Out = u32;

    fn call(&mut self, batch: Batch<u32>) -> Vec<Result<u32, Failure>> {
        let outcome = |n: &u32| {
            assert!(!is_poison(*n), "call {n} crashes the worker");
            self.survived += 1;
            Ok(self.survived)
        };
        batch.iter().map(outcome).collect()
    }
}

fn is_poison(n: u32) -> bool {
    n % 100 == 50
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The panics are intended; their default message would hide the output.
    std::panic::set_hook(Box::new(|_| {}));
    let fragile = Stage::worker("fragile", |_replica| Ok(Fragile { survived: 0 }));
    let node = App::new().route("/count", fragile).start().await?;
    let client = node.client();

    let (mut answered, mut failed) = (0, 0);
    for n in 0..CALLS {
        match client.call::<u32, u32>("/count", n).await {
            Ok(_survived) => answered += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WorkerFailed, "only a dead worker is an error here");
                assert!(is_poison(n), "no other call fails");
                if failed == 0 {
                    println!("the first failed call: {error}");
                }
                failed += 1;
            }
        }
    }

    let description = node.describe();
    let stage = &description.stages[0];
    println!("{answered} calls answered, {failed} failed, {} restarts", stage.restarts);
    println!("the stage is {}, the node is ready: {}", stage.health.state.as_str(), node.health().ready);
    assert_eq!((answered, failed), (990, 10));
    assert_eq!(stage.restarts, 10, "one restart per crash");
    assert!(node.health().ready);
    Ok(())
}
