//! One round of load: threads, each with a runtime and a share of the connections of its own, and the pacer of an open loop.
//!
//! Nothing is shared on a request's way but two counters. A connection's bytes and its requests are handled by one thread,
//! so that nobody is woken across threads, and a thread that is busy delays its own connections only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::task::LocalSet;

use super::lane::{self, Lanes};
use super::schedule::Schedule;
use super::tally::Tally;
use super::wire::Aim;

/// How much, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Open at a time.
    pub(crate) connections: usize,
    /// Requests at a time on each; more than one with HTTP/2 and QUIC only.
    pub(crate) streams: usize,
    /// Threads that the connections are spread over.
    pub(crate) threads: usize,
    /// The rate of an open loop; a closed one without.
    pub(crate) schedule: Option<Schedule>,
    /// Load before anything is counted.
    pub(crate) warm_up: Duration,
    /// Load that is counted.
    pub(crate) duration: Duration,
    /// Counted requests after which it ends earlier.
    pub(crate) requests: u64,
    /// For one request, from its sending to the end of its answer.
    pub(crate) timeout: Duration,
}

/// What somebody who watches a round sees.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Successes.
    pub(crate) ok: AtomicU64,
    /// All the others.
    pub(crate) failed: AtomicU64,
}

/// What all lanes of a round have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) load: Load,
    pub(super) aim: Aim,
    pub(super) progress: Arc<Progress>,
    /// When the first request is sent; what is counted begins a warm-up later.
    pub(super) start: Instant,
    /// One for each slot that is due; closed when no more requests are wanted. Unused in a closed loop.
    pub(super) tickets: Semaphore,
    /// The next slot of the schedule. Unused in a closed loop.
    pub(super) next: AtomicU64,
    /// Counted requests begun so far.
    pub(super) counted: AtomicU64,
}

impl Shared {
    /// From here on requests are counted.
    pub(super) fn begin(&self) -> Instant {
        self.start + self.load.warm_up
    }

    /// From here on no request falls due.
    pub(super) fn end(&self) -> Instant {
        self.begin() + self.load.duration
    }
}

/// At the latest so often the pacer looks whether it should stop.
const PACER_NAP: Duration = Duration::from_millis(20);

/// A slot that a lane comes to this long after the end is still sent: it fell due in time, and waking takes a moment.
pub(super) const LAST_SLOTS: Duration = Duration::from_millis(100);

/// Runs one round and gives what was counted. It ends early when `stop` becomes true: requests in flight are then dropped.
///
/// # Errors
///
/// A thread or runtime that the system refuses.
pub(crate) fn round(
    aim: &Aim,
    load: &Load,
    progress: &Arc<Progress>,
    stop: &watch::Receiver<bool>,
) -> std::io::Result<Tally> {
    let shared = Arc::new(Shared {
        load: load.clone(),
        aim: aim.clone(),
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
    let mut tally = Tally::new(load.duration);
    for thread in threads {
        tally.join(thread?.join().expect("a load thread does not panic")?);
    }
    if let Some(pacer) = pacer {
        pacer?.join().expect("the pacer does not panic");
    }
    finish(&shared, &mut tally);
    Ok(tally)
}

/// What is only known at the end: how long it was, and what was never sent.
fn finish(shared: &Shared, tally: &mut Tally) {
    let now = Instant::now();
    let is_full = shared.counted.load(Ordering::Relaxed) >= shared.load.requests;
    if now < shared.end() || is_full {
        tally.cut(now.saturating_duration_since(shared.begin()).min(shared.load.duration));
    }
    let Some(schedule) = shared.load.schedule.filter(|_| !is_full) else { return };
    let due = slots_until(schedule, now.min(shared.end()).saturating_duration_since(shared.start));
    let first = shared.next.load(Ordering::Relaxed).max(slots_until(schedule, shared.load.warm_up));
    record_unsent(schedule, first..due, now.saturating_duration_since(shared.start), tally);
}

/// The slots before this moment: one that is due at the very end belongs to what comes after.
fn slots_until(schedule: Schedule, end: Duration) -> u64 {
    end.checked_sub(Duration::from_nanos(1)).map_or(0, |before| schedule.due_by(before))
}

/// In at most a thousand groups, each as late as its last: there may be millions, and nobody needs them one by one.
fn record_unsent(schedule: Schedule, slots: std::ops::Range<u64>, now: Duration, tally: &mut Tally) {
    let group = (slots.end.saturating_sub(slots.start) / 1000).max(1);
    let mut first = slots.start;
    while first < slots.end {
        let next = (first + group).min(slots.end);
        tally.record_unsent(now.saturating_sub(schedule.due_at(next - 1)), next - first);
        first = next;
    }
}

/// Hands out a ticket for each slot when it is due.
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
        // Not all at once after a long sleep of the machine: the semaphore would not take any number.
        let fresh = (schedule.due_by(shared.start.elapsed()).min(all) - handed_out).min(1 << 20);
        shared.tickets.add_permits(usize::try_from(fresh).unwrap_or(0));
        handed_out += fresh;
        let wait = schedule.due_at(handed_out).saturating_sub(shared.start.elapsed());
        thread::sleep(if handed_out < all { wait.min(PACER_NAP) } else { PACER_NAP });
    }
    shared.tickets.close();
}

/// One thread's share of the connections.
fn run_share(shared: &Arc<Shared>, index: usize, mut stop: watch::Receiver<bool>) -> std::io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connections = (index..shared.load.connections).step_by(shared.load.threads).count();
    let lanes = Lanes::new(shared);
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            biased;
            // An error says that nobody can stop us any more, which is no reason to.
            Ok(_) = stop.wait_for(|stop| *stop) => {}
            () = lane::run(&lanes, connections) => {}
        }
    });
    // Lanes that were dropped in the middle have given back their part of it.
    drop(runtime);
    Ok(lanes.into_tally())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_slots_are_counted_to_the_last_and_no_later_than_they_are() {
        let schedule = Schedule::at(1_000_000.0).unwrap();
        let mut tally = Tally::new(Duration::from_secs(10));
        record_unsent(schedule, 5_000_000..10_000_000, Duration::from_secs(10), &mut tally);
        assert_eq!(tally.unsent, 5_000_000);
        let seconds = |quantile: f64| tally.latency.value_at_quantile(quantile) as f64 / 1e9;
        assert!(seconds(1.0) <= 5.01 && seconds(1.0) > 4.9, "{}", seconds(1.0));
        assert!((seconds(0.5) - 2.5).abs() < 0.1, "{}", seconds(0.5));
    }
}
