//! Batches form while workers are busy, and no call waits for a batch to fill.
//!
//! Run with `cargo run --release --example batching`. One worker, a largest batch of 32, no delay: a single caller is
//! served at once, in a batch of one. Sixty-four concurrent callers share a few batches, because calls that arrive while
//! the worker is busy form the next batch.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::hint::black_box;
use std::time::Instant;

use callboard::prelude::*;

const MAX_BATCH_SIZE: usize = 32;
const CALLERS: u64 = 64;
const CALLS_PER_CALLER: u64 = 20;

/// Stands for a model: a batch has a large fixed cost and a small cost per item.
struct Model;

impl Worker for Model {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        black_box((0..200_000_u64).fold(0, |sum: u64, n| black_box(sum.wrapping_add(n))));
        batch.iter().map(|n| Ok(n * n)).collect()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let square = Stage::worker("square", |_replica| Ok(Model)).max_batch_size(MAX_BATCH_SIZE);
    let node = App::new().route("/square", square).start().await?;

    let start = Instant::now();
    for n in 0..CALLERS {
        call(&node.client(), n).await?;
    }
    let sequential = batches(&node);
    println!(
        "one caller after the other: {CALLERS} calls in {sequential} batches, {:.1?} a call",
        start.elapsed() / 64
    );
    assert_eq!(sequential, CALLERS, "no call waits for others");

    let start = Instant::now();
    let callers: Vec<_> = (0..CALLERS).map(|caller| tokio::spawn(many_calls(node.client(), caller))).collect();
    for caller in callers {
        caller.await??;
    }
    let concurrent = batches(&node) - sequential;
    let calls = CALLERS * CALLS_PER_CALLER;
    let mean = calls as f64 / concurrent as f64;
    println!("{CALLERS} callers at once: {calls} calls in {concurrent} batches of {mean:.1} on average");
    println!("  {:.1?} a call, counted over all of them", start.elapsed() / u32::try_from(calls)?);
    assert!(mean > MAX_BATCH_SIZE as f64 / 4.0, "calls that arrive while the worker is busy share a batch");
    Ok(())
}

async fn many_calls(client: LocalClient, caller: u64) -> Result<(), CallError> {
    for n in 0..CALLS_PER_CALLER {
        call(&client, caller * CALLS_PER_CALLER + n).await?;
    }
    Ok(())
}

/// Every caller gets its own answer.
async fn call(client: &LocalClient, n: u64) -> Result<(), CallError> {
    let square: u64 = client.call("/square", n).await?;
    assert_eq!(square, n * n);
    Ok(())
}

fn batches(node: &Node) -> u64 {
    node.describe().stages.iter().map(|stage| stage.batches).sum()
}
