//! The handles of one route and of one stage: the series that its calls count in, looked up once.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::{COUNTING, DiscardPlace, Discarded, Refused, ReplicaState, Seconds, Sizes, micros};
use crate::error::ErrorKind;
use crate::timeline::{ReleaseReason, Timing};

/// The handles of one route.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    pub(crate) ok: Counter,
    pub(crate) errors: [Counter; ErrorKind::ALL.len()],
    pub(crate) seconds: Seconds,
    pub(crate) failed_seconds: Counter<f64, AtomicU64>,
}

impl RouteMetrics {
    pub(crate) fn succeeded(&self, total: Duration) {
        self.ok.inc();
        self.seconds.observe(micros(total));
    }

    pub(crate) fn ended(&self, kind: ErrorKind, total: Duration) {
        if !COUNTING {
            return;
        }
        self.errors[kind as usize].inc();
        self.failed_seconds.inc_by(total.as_secs_f64());
    }

    pub(crate) fn outcomes(&self) -> u64 {
        self.ok.get() + self.errors.iter().map(Counter::get).sum::<u64>()
    }
}

/// The handles of one stage.
#[derive(Debug)]
pub(crate) struct StageMetrics {
    pub(crate) queue_seconds: Seconds,
    pub(crate) batch_seconds: Seconds,
    pub(crate) compute_seconds: Seconds,
    pub(crate) batch_size: Sizes,
    pub(crate) full: Counter,
    pub(crate) idle: Counter,
    pub(crate) delay: Counter,
    pub(crate) deadline: Counter,
    pub(crate) drain: Counter,
    pub(crate) queue_expired: Counter,
    pub(crate) queue_cancelled: Counter,
    pub(crate) worker_expired: Counter,
    pub(crate) worker_cancelled: Counter,
    pub(crate) refused_full: Counter,
    pub(crate) refused_late: Counter,
    pub(crate) refused_large: Counter,
    pub(crate) restarts: Counter,
    pub(crate) retries: Counter,
    pub(crate) replica_states: [Gauge; ReplicaState::ALL.len()],
    pub(crate) poison_entries: Counter,
    pub(crate) isolations: Counter,
    pub(crate) hung: Counter,
    pub(crate) abandoned_threads: Gauge,
    pub(crate) moved: Counter,
    pub(crate) queued: Gauge,
    pub(crate) replicas: Gauge,
    pub(crate) ready: Gauge,
}

impl StageMetrics {
    pub(crate) fn released(&self, reason: ReleaseReason, entries: usize) {
        if !COUNTING {
            return;
        }
        self.batch_size.observe(entries as u64);
        self.reason(reason).inc();
    }

    fn reason(&self, reason: ReleaseReason) -> &Counter {
        match reason {
            ReleaseReason::Full => &self.full,
            ReleaseReason::Idle => &self.idle,
            ReleaseReason::Delay => &self.delay,
            ReleaseReason::Deadline => &self.deadline,
            ReleaseReason::Drain => &self.drain,
        }
    }

    pub(crate) fn computed(&self, compute: Duration) {
        if !COUNTING {
            return;
        }
        self.compute_seconds.observe(micros(compute));
    }

    pub(crate) fn record_wait(&self, timing: &Timing) {
        if !COUNTING {
            return;
        }
        self.queue_seconds.observe(micros(timing.queue));
        self.batch_seconds.observe(micros(timing.batch));
    }

    pub(crate) fn discarded(&self, place: DiscardPlace, reason: Discarded) {
        self.discards(place, reason).inc();
    }

    pub(crate) fn discards(&self, place: DiscardPlace, reason: Discarded) -> &Counter {
        match (place, reason) {
            (DiscardPlace::Queue, Discarded::Expired) => &self.queue_expired,
            (DiscardPlace::Queue, Discarded::Cancelled) => &self.queue_cancelled,
            (DiscardPlace::Worker, Discarded::Expired) => &self.worker_expired,
            (DiscardPlace::Worker, Discarded::Cancelled) => &self.worker_cancelled,
        }
    }

    pub(crate) fn refused(&self, reason: Refused) {
        match reason {
            Refused::Full => &self.refused_full,
            Refused::Late => &self.refused_late,
            Refused::Large => &self.refused_large,
        }
        .inc();
    }

    pub(crate) fn restarted(&self) {
        self.restarts.inc();
    }

    pub(crate) fn retried(&self, entries: usize) {
        self.retries.inc_by(entries as u64);
    }

    pub(crate) fn set_replica_state(&self, state: ReplicaState, replicas: usize) {
        self.replica_states[state as usize].set(replicas as i64);
    }

    pub(crate) fn found_poison(&self) {
        self.poison_entries.inc();
    }

    pub(crate) fn isolating(&self) {
        self.isolations.inc();
    }

    pub(crate) fn hung(&self) {
        self.hung.inc();
    }

    pub(crate) fn set_abandoned_threads(&self, threads: usize) {
        self.abandoned_threads.set(threads as i64);
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.get()
    }

    pub(crate) fn moved_to_threads(&self) {
        self.moved.inc();
    }

    /// Batches, by the reason for their release.
    pub(crate) fn releases(&self) -> [(ReleaseReason, u64); ReleaseReason::ALL.len()] {
        ReleaseReason::ALL.map(|reason| (reason, self.reason(reason).get()))
    }

    /// Entries in all batches.
    pub(crate) fn released_entries(&self) -> u64 {
        self.batch_size.sum()
    }

    pub(crate) fn batches(&self) -> u64 {
        [&self.full, &self.idle, &self.delay, &self.deadline, &self.drain].iter().map(|counter| counter.get()).sum()
    }

    /// Sets the gauges when the metrics are read, so that no second count can drift.
    pub(crate) fn set_gauges(&self, queued: usize, replicas: usize, ready: bool) {
        self.queued.set(queued as i64);
        self.replicas.set(replicas as i64);
        self.ready.set(i64::from(ready));
    }
}
