//! A crash of a C library costs one replica and the input that caused it: the node serves on.
//!
//! Run with `cargo run --example isolate`. The replicas of the stage are children that run this program again, up to
//! the line that isolates the stage. One input in twenty aborts its process, as an assertion in C does; in a thread of
//! the node it would end the node. Here each of these calls is answered with `worker_failed`; all others succeed.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::process;

use callboard::prelude::*;

const CALLS: u32 = 60;

/// Stands for the binding of a C library.
struct Codec;

impl Worker for Codec {
    type In = u32;
    type Out = u32;

    fn call(&mut self, batch: Batch<u32>) -> Vec<Result<u32, Failure>> {
        let run = |n: &u32| {
            if is_broken(*n) {
                process::abort();
            }
            Ok(process::id())
        };
        batch.iter().map(run).collect()
    }
}

fn is_broken(n: u32) -> bool {
    n % 20 == 10
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This line runs in the node and in each replica. No code below it runs in a replica.
    let codec = Stage::worker("codec", |_replica| Ok(Codec)).replicas(2).isolate();
    let node = App::new().route("/decode", codec).start().await?;
    let client = node.client();

    let (mut answered, mut failed) = (0, 0);
    for n in 0..CALLS {
        match client.call::<u32, u32>("/decode", n).await {
            Ok(process) => {
                assert_ne!(process, process::id(), "another process has run it");
                answered += 1;
            }
            Err(error) => {
                assert!(is_broken(n), "no other call fails: {error}");
                println!("call {n}: {error}");
                failed += 1;
            }
        }
    }

    let restarts = node.describe().stages[0].restarts;
    println!("{answered} calls answered, {failed} failed, {restarts} restarts, and this process runs on");
    assert_eq!((answered, failed), (57, 3));
    Ok(())
}
