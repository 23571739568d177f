//! The throughput of a stage at five times its capacity, and how soon it refuses the other calls.
//!
//! Run with `cargo bench -p callboard-core --bench overload`. The stage simulates a device: 2 ms per batch of up to 16.
//! First the peak with callers in a closed loop, then calls at five times that rate in an open loop, each with a
//! deadline of 100 ms, which is less than the time of a full queue.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::time::{Duration, Instant};

use callboard_core::{App, Batch, CallOptions, ErrorKind, LocalClient, Node, Stage};

const SPAN: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(1);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let node = start().await;
        let peak = tokio::spawn(peak(node.client())).await.unwrap();
        println!("peak with 64 callers                {peak:>8.0} calls/s");
        let flood = tokio::spawn(flood(node.client(), 5.0 * peak)).await.unwrap();
        flood.report(peak);
    });
}

async fn start() -> Node {
    let device = Stage::batch("device", |batch: Batch<u64>| {
        #[expect(clippy::disallowed_methods, reason = "a device that takes its time and no processor")]
        std::thread::sleep(Duration::from_millis(2));
        batch.iter().map(|n| Ok(*n)).collect()
    });
    App::new().route("/device", device.max_batch_size(16).on_threads()).start().await.unwrap()
}

async fn peak(client: LocalClient) -> f64 {
    let started = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut served = 0u64;
                while started.elapsed() < SPAN {
                    client.call::<u64, u64>("/device", served).await.unwrap();
                    served += 1;
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for caller in callers {
        served += caller.await.unwrap();
    }
    served as f64 / started.elapsed().as_secs_f64()
}

#[derive(Default)]
struct Flood {
    sent: u64,
    served: u64,
    late: u64,
    /// The time of each refusal.
    refused: Vec<Duration>,
}

impl Flood {
    fn report(mut self, peak: f64) {
        self.refused.sort_unstable();
        let goodput = self.served as f64 / SPAN.as_secs_f64();
        println!("sent                                {:>8.0} calls/s", self.sent as f64 / SPAN.as_secs_f64());
        println!("answered in time                    {goodput:>8.0} calls/s   {:.2} of the peak", goodput / peak);
        println!("let in and late                     {:>8.0} calls/s", self.late as f64 / SPAN.as_secs_f64());
        let percentile = |part: f64| {
            let index = ((self.refused.len() as f64 * part) as usize).min(self.refused.len().saturating_sub(1));
            self.refused.get(index).copied().unwrap_or_default()
        };
        println!("refused in                          p50 {:.2?}, p99 {:.2?}", percentile(0.5), percentile(0.99));
    }
}

/// Calls at this rate, independent of their outcomes.
async fn flood(client: LocalClient, rate: f64) -> Flood {
    let (started, mut calls) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(TICK);
    while started.elapsed() < SPAN {
        ticks.tick().await;
        let due = (started.elapsed().as_secs_f64() * rate) as usize;
        while calls.len() < due {
            let client = client.clone();
            calls.push(tokio::spawn(async move {
                let started = Instant::now();
                let options = CallOptions::new().with_timeout(TIMEOUT);
                let outcome = client.call_with::<u64, u64>("/device", 1, options).await;
                (outcome.map_err(|error| error.kind()), started.elapsed())
            }));
        }
    }
    let mut flood = Flood { sent: calls.len() as u64, ..Flood::default() };
    for call in calls {
        match call.await.unwrap() {
            (Ok(_), _) => flood.served += 1,
            (Err(ErrorKind::Overloaded), took) => flood.refused.push(took),
            (Err(_), _) => flood.late += 1,
        }
    }
    flood
}
