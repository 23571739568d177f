//! The cost of scheduling by the count of waiting entries: it should grow with the logarithm of the count and, beyond
//! the caches, with the latency of memory, as in the standard library's ordered map, which is measured as well.
//!
//! Run with `cargo bench -p callboard-core --bench queue`. The best round counts: noise only adds time.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use callboard_core::bench::Queue;

const ROUNDS: usize = 7;
const OPERATIONS: u64 = 20_000;

fn main() {
    println!("ns          push + pop   push + remove      rank     age one class   BTreeMap insert + pop_first");
    for waiting in [100u64, 10_000, 1_000_000] {
        let mut best = [f64::INFINITY; 5];
        for _ in 0..ROUNDS {
            let mut queue = Queue::new(callboard_core::Instant::now());
            (0..waiting).for_each(|n| queue.push(n, slack(n)));
            let operations = waiting..waiting + OPERATIONS;
            // Each entry at its own place in the order, with a constant count of waiting entries.
            keep(&mut best[0], operations.clone(), |n| {
                queue.push(n, slack(n));
                black_box(queue.pop().unwrap());
            });
            keep(&mut best[1], operations.clone(), |n| {
                queue.push(n + OPERATIONS, slack(n));
                black_box(queue.remove(n + OPERATIONS, slack(n)).unwrap());
            });
            keep(&mut best[2], operations, |n| {
                black_box(queue.before(n, slack(n)));
            });
            let mut map: BTreeMap<(Duration, u64), u64> = (0..waiting).map(|n| ((slack(n), n), n)).collect();
            keep(&mut best[4], waiting..waiting + OPERATIONS, |n| {
                map.insert((slack(n), n), n);
                black_box(map.pop_first().unwrap());
            });
            // All entries gain a class at once: the worst case of ageing.
            queue.wait(callboard_core::BatchPolicy::DEFAULT_AGEING);
            let started = Instant::now();
            black_box(queue.pop().unwrap());
            best[3] = best[3].min(started.elapsed().as_nanos() as f64 / waiting as f64);
        }
        let [pop, remove, rank, age, map] = best;
        println!("{waiting:>9}  {pop:>10.0}  {remove:>14.0}  {rank:>8.0}  {age:>16.0}  {map:>28.0}");
    }
}

fn keep(best: &mut f64, operations: std::ops::Range<u64>, mut operation: impl FnMut(u64)) {
    let (count, started) = (operations.end - operations.start, Instant::now());
    operations.for_each(&mut operation);
    *best = best.min(started.elapsed().as_nanos() as f64 / count as f64);
}

/// Spread over half a minute, unordered.
fn slack(n: u64) -> Duration {
    Duration::from_micros(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 30_000_000)
}
