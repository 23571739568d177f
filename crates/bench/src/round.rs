//! One round of load: threads, each with its own runtime and its share of the connections, and the pacer of an open
//! loop.
//!
//! Requests share two counters and nothing else. One thread handles a connection's bytes and its requests, so no task
//! is woken across threads, and a busy thread delays its own connections only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::task::LocalSet;

use crate::lane::{self, Lanes};
use crate::load::{LAST_SLOTS, Load, Progress, Shared};
use crate::schedule::Schedule;
use crate::stats::Stats;
use crate::target::Target;

/// The longest time between two looks of the pacer at whether it should stop.
const PACER_NAP: Duration = Duration::from_millis(20);

/// Runs one round and returns what it counted. The round ends early when `stop` becomes true: requests in flight are
/// then dropped.
///
/// # Errors
///
/// The operating system refused a thread or a runtime.
pub fn round(
    target: &Target,
    load: &Load,
    progress: &Arc<Progress>,
    stop: &watch::Receiver<bool>,
) -> std::io::Result<Stats> {
    let shared = Arc::new(Shared {
        load: load.clone(),
        target: target.clone(),
        progress: Arc::clone(progress),
        start: Instant::now(),
        tickets: Semaphore::new(0),
        next: AtomicU64::new(0),
        counted: AtomicU64::new(0),
    });
    let pacer = load.schedule.map(|schedule| {
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        thread::Builder::new().name("pacer".to_owned()).spawn(move || pace(schedule, &shared, &stop))
    });
    let threads: Vec<_> = (0..load.threads)
        .map(|index| {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            thread::Builder::new().name(format!("load-{index}")).spawn(move || run_share(&shared, index, stop))
        })
        .collect();
    let mut stats = Stats::new(load.duration);
    for thread in threads {
        stats.merge(thread?.join().expect("a load thread does not panic")?);
    }
    if let Some(pacer) = pacer {
        pacer?.join().expect("the pacer does not panic");
    }
    finish(&shared, &mut stats);
    Ok(stats)
}

/// Records what is known at the end only: the length of the round, and the requests never sent.
fn finish(shared: &Shared, stats: &mut Stats) {
    let now = Instant::now();
    let is_full = shared.counted.load(Ordering::Relaxed) >= shared.load.requests;
    if now < shared.end() || is_full {
        stats.truncate(now.saturating_duration_since(shared.begin()).min(shared.load.duration));
    }
    let Some(schedule) = shared.load.schedule.filter(|_| !is_full) else { return };
    let due = slots_until(schedule, now.min(shared.end()).saturating_duration_since(shared.start));
    let first = shared.next.load(Ordering::Relaxed).max(slots_until(schedule, shared.load.warm_up));
    record_unsent(schedule, first..due, now.saturating_duration_since(shared.start), stats);
}

/// The count of slots before this moment; a slot that is due exactly then is not among them.
fn slots_until(schedule: Schedule, end: Duration) -> u64 {
    end.checked_sub(Duration::from_nanos(1)).map_or(0, |before| schedule.due_by(before))
}

/// Records unsent slots in at most a thousand groups, each with the latency of its last slot: there may be millions.
fn record_unsent(schedule: Schedule, slots: std::ops::Range<u64>, now: Duration, stats: &mut Stats) {
    let group = (slots.end.saturating_sub(slots.start) / 1000).max(1);
    let mut first = slots.start;
    while first < slots.end {
        let next = (first + group).min(slots.end);
        stats.record_unsent(now.saturating_sub(schedule.due_at(next - 1)), next - first);
        first = next;
    }
}

/// Adds a permit for each slot when it is due.
#[expect(
    clippy::disallowed_methods,
    reason = "a runtime's timers tick in milliseconds; slots may be microseconds apart"
)]
fn pace(schedule: Schedule, shared: &Shared, stop: &watch::Receiver<bool>) {
    let length = shared.end().saturating_duration_since(shared.start);
    let all = slots_until(schedule, length);
    let mut handed_out = 0;
    let is_over = || *stop.borrow() || shared.tickets.is_closed() || shared.start.elapsed() >= length + LAST_SLOTS;
    while !is_over() {
        // After a long sleep of the machine not all at once: the semaphore has a limit.
        let fresh = (schedule.due_by(shared.start.elapsed()).min(all) - handed_out).min(1 << 20);
        shared.tickets.add_permits(usize::try_from(fresh).unwrap_or(0));
        handed_out += fresh;
        let wait = schedule.due_at(handed_out).saturating_sub(shared.start.elapsed());
        thread::sleep(if handed_out < all { wait.min(PACER_NAP) } else { PACER_NAP });
    }
    shared.tickets.close();
}

/// One thread's share of the connections.
fn run_share(shared: &Arc<Shared>, index: usize, mut stop: watch::Receiver<bool>) -> std::io::Result<Stats> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connections = (index..shared.load.connections).step_by(shared.load.threads).count();
    let lanes = Lanes::new(shared);
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            biased;
            // An error means that the sender is gone, which does not stop the round.
            Ok(_) = stop.wait_for(|stop| *stop) => {}
            () = lane::run(&lanes, connections) => {}
        }
    });
    // Dropping the runtime drops the lanes that were cut off, and with them their handles on the statistics.
    drop(runtime);
    Ok(lanes.into_stats())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unsent_slot_counts_with_its_latency() {
        let schedule = Schedule::with_rate(1_000_000.0).unwrap();
        let mut stats = Stats::new(Duration::from_secs(10));
        record_unsent(schedule, 5_000_000..10_000_000, Duration::from_secs(10), &mut stats);
        assert_eq!(stats.unsent, 5_000_000);
        let seconds = |quantile: f64| stats.latency.value_at_quantile(quantile) as f64 / 1e9;
        assert!(seconds(1.0) <= 5.01 && seconds(1.0) > 4.9, "{}", seconds(1.0));
        assert!((seconds(0.5) - 2.5).abs() < 0.1, "{}", seconds(0.5));
    }
}
