//! Two revisions of a stage take over with a canary of 5 %: one fails every second call and is rolled back, the other
//! is sound and is promoted.
//!
//! `cargo run --release --example rollout`: prints what happened, and the figures of the rollouts and of a plain
//! replacement under load.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard::RouteSpec;
use callboard::description::{RolloutDescription, RolloutState};
use callboard::node::Rollout;
use callboard::prelude::*;

/// Callers, each with a pause of a millisecond after each call: some thousand calls per second.
const CALLERS: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = App::new().route("/score", model(1)).start().await?;
    let quiet = Load::on(&node).during(Duration::from_secs(1)).await;
    println!("before:    {quiet}");

    // A plain replacement takes over at once.
    let load = Load::on(&node);
    node.replace_route(RouteSpec::new("/score", model(2))).await?.settled().await;
    let swap = load.during(Duration::from_secs(1)).await;
    println!("replaced:  {swap}, p99 × {:.2}", swap.p99.as_secs_f64() / quiet.p99.as_secs_f64());

    // The next revision fails every second call.
    let load = Load::on(&node);
    let began = Instant::now();
    node.roll_out(RouteSpec::new("/score", broken_model()), Rollout::canary(0.05)).await?;
    let ended = until_decided(&node).await;
    let took = began.elapsed();
    let outcome = load.during(Duration::from_secs(1)).await;
    println!("{:?} after {took:.0?}: {}", ended.state, ended.reason.unwrap_or_default());
    println!("           {outcome}");

    // The one after that works.
    let load = Load::on(&node);
    let policy = Rollout::canary(0.05).min_calls(50).keep(Duration::from_secs(60));
    node.roll_out(RouteSpec::new("/score", model(3)), policy).await?;
    let ended = until_decided(&node).await;
    let outcome = load.during(Duration::from_millis(200)).await;
    println!("{:?}: {}", ended.state, ended.reason.unwrap_or_default());
    println!("           {outcome}");

    // The revision before it is still warm.
    node.roll_back_route("/score").await?;
    let answer: u64 = node.client().call("/score", 0_u64).await?;
    println!("by order, revision {answer} answers again");
    Ok(())
}

/// A revision of the model. It adds its number.
fn model(number: u64) -> Stage<u64, u64> {
    Stage::each("model", move |n: &u64| Ok(n + number))
}

fn broken_model() -> Stage<u64, u64> {
    let calls = AtomicU64::new(0);
    Stage::each("model", move |n: &u64| match calls.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Err(Failure::new("every second call")),
        _ => Ok(n + 9),
    })
}

async fn until_decided(node: &Node) -> RolloutDescription {
    loop {
        match node.describe().routes[0].rollout.clone() {
            Some(rollout) if rollout.state != RolloutState::Running => return rollout,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Callers that call until they are told to stop.
struct Load {
    over: Arc<tokio::sync::Notify>,
    callers: Vec<tokio::task::JoinHandle<(Vec<Duration>, usize)>>,
}

struct Figures {
    calls: usize,
    failed: usize,
    p99: Duration,
}

impl Load {
    fn on(node: &Node) -> Self {
        let over = Arc::new(tokio::sync::Notify::new());
        let callers = (0..CALLERS).map(|_| tokio::spawn(call(node.client(), Arc::clone(&over)))).collect();
        Self { over, callers }
    }

    async fn during(self, time: Duration) -> Figures {
        tokio::time::sleep(time).await;
        self.over.notify_waiters();
        let (mut times, mut failed) = (Vec::new(), 0);
        for caller in self.callers {
            let (own, own_failed) = caller.await.expect("a caller does not panic");
            times.extend(own);
            failed += own_failed;
        }
        times.sort_unstable();
        Figures { calls: times.len(), failed, p99: times[times.len() * 99 / 100] }
    }
}

async fn call(client: LocalClient, over: Arc<tokio::sync::Notify>) -> (Vec<Duration>, usize) {
    let (mut times, mut failed) = (Vec::new(), 0);
    let over = over.notified();
    tokio::pin!(over);
    loop {
        let began = Instant::now();
        failed += usize::from(client.call::<u64, u64>("/score", 0).await.is_err());
        times.push(began.elapsed());
        tokio::select! {
            () = &mut over => return (times, failed),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let share = 100.0 * self.failed as f64 / self.calls as f64;
        write!(f, "{} calls, {} failed ({share:.2} %), p99 {:.1?}", self.calls, self.failed, self.p99)
    }
}
