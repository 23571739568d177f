//! The handles of one route and of one stage: the series that its calls count in, looked up once.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::{
    COUNTING, CacheUse, DiscardPlace, DiscardReason, EntryRefusal, LoadResult, ReplicaState, SaveResult, Seconds,
    Sizes, TrialRole, micros,
};
use crate::error::ErrorKind;
use crate::timeline::{ReleaseReason, Timing};

/// The handles of one route.
#[derive(Clone, Debug)]
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

/// The handles of the rollouts of one route. The outer arrays have a handle for each revision.
#[derive(Debug)]
pub(crate) struct RolloutMetrics {
    /// Good and bad calls.
    pub(crate) calls: [[Counter; 2]; TrialRole::ALL.len()],
    pub(crate) seconds: [Seconds; TrialRole::ALL.len()],
    /// Answers that agree, and answers that differ.
    pub(crate) compared: [Counter; 2],
    pub(crate) share: Gauge<f64, AtomicU64>,
}

impl RolloutMetrics {
    pub(crate) fn succeeded(&self, role: TrialRole, latency: Duration) {
        self.calls[role as usize][0].inc();
        self.seconds[role as usize].observe(micros(latency));
    }

    pub(crate) fn failed(&self, role: TrialRole) {
        self.calls[role as usize][1].inc();
    }

    pub(crate) fn compared(&self, agrees: bool) {
        self.compared[usize::from(!agrees)].inc();
    }
}

/// The handles of one kind of keyed actors. Arrays have a handle for each variant of an enumeration.
#[derive(Debug)]
pub(crate) struct KeyedMetrics {
    pub(crate) active: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) refused: Counter,
    pub(crate) loads: [Counter; LoadResult::ALL.len()],
    pub(crate) saves: [Counter; SaveResult::ALL.len()],
    pub(crate) crashes: Counter,
}

/// The handles of one stage. Arrays have a handle for each variant of an enumeration.
#[derive(Debug)]
pub(crate) struct StageMetrics {
    pub(crate) queue_seconds: Seconds,
    pub(crate) batch_seconds: Seconds,
    pub(crate) compute_seconds: Seconds,
    pub(crate) batch_size: Sizes,
    pub(crate) batches: [Counter; ReleaseReason::ALL.len()],
    pub(crate) discarded: [[Counter; DiscardReason::ALL.len()]; DiscardPlace::ALL.len()],
    pub(crate) refused: [Counter; EntryRefusal::ALL.len()],
    pub(crate) replica_states: [Gauge; ReplicaState::ALL.len()],
    pub(crate) restarts: Counter,
    pub(crate) retries: Counter,
    pub(crate) poison_entries: Counter,
    pub(crate) isolations: Counter,
    pub(crate) hung: Counter,
    pub(crate) abandoned_threads: Gauge,
    pub(crate) moved_to_threads: Counter,
    pub(crate) queued: Gauge,
    pub(crate) replicas: Gauge,
    pub(crate) ready: Gauge,
    pub(crate) replicas_wanted: Gauge,
    pub(crate) loads: [Counter; LoadResult::ALL.len()],
    pub(crate) load_seconds: Seconds,
    pub(crate) evictions: Counter,
    pub(crate) cache: [Counter; CacheUse::ALL.len()],
    pub(crate) cache_bytes: Gauge,
}

impl StageMetrics {
    pub(crate) fn released(&self, reason: ReleaseReason, entries: usize) {
        if !COUNTING {
            return;
        }
        self.batch_size.observe(entries as u64);
        self.batches[reason as usize].inc();
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

    pub(crate) fn discarded(&self, place: DiscardPlace, reason: DiscardReason) {
        self.discarded[place as usize][reason as usize].inc();
    }

    pub(crate) fn refused(&self, reason: EntryRefusal) {
        self.refused[reason as usize].inc();
    }

    pub(crate) fn cached(&self, how: CacheUse) {
        self.cache[how as usize].inc();
    }

    /// The first replica is up, after this time.
    pub(crate) fn loaded(&self, took: Duration) {
        self.loads[LoadResult::Ok as usize].inc();
        self.load_seconds.observe(micros(took));
    }

    /// The first replica could not start.
    pub(crate) fn load_failed(&self) {
        self.loads[LoadResult::Failed as usize].inc();
    }

    pub(crate) fn set_replica_state(&self, state: ReplicaState, replicas: usize) {
        self.replica_states[state as usize].set(replicas as i64);
    }

    /// Batches, by the reason for their release.
    pub(crate) fn releases(&self) -> [(ReleaseReason, u64); ReleaseReason::ALL.len()] {
        ReleaseReason::ALL.map(|reason| (reason, self.batches[reason as usize].get()))
    }

    /// Entries in all batches.
    pub(crate) fn released_entries(&self) -> u64 {
        self.batch_size.sum()
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.iter().map(Counter::get).sum()
    }

    /// Sets the gauges when the metrics are read, so that no second count can drift.
    pub(crate) fn set_gauges(&self, queued: usize, replicas: usize, ready: bool, cache_bytes: u64) {
        self.queued.set(queued as i64);
        self.replicas.set(replicas as i64);
        self.ready.set(i64::from(ready));
        self.cache_bytes.set(cache_bytes as i64);
    }
}
