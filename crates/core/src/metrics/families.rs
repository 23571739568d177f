//! The families of a node: their names, their help, their labels, and which series of them a route or a stage has.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{ReplicaState, RouteMetrics, Seconds, Sizes, StageMetrics, TurnedAway, seconds, sizes};
use crate::error::ErrorKind;
use crate::id::{RouteName, StageName};
use crate::timeline::ReleaseReason;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    route: String,
    outcome: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReleaseLabels {
    stage: String,
    reason: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DiscardLabels {
    stage: String,
    place: Word,
    reason: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnedAwayLabels {
    reason: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    stage: String,
    reason: Word,
}

/// The reasons for which a stage refuses entries, as labels.
const REFUSALS: [&str; 3] = ["full", "late", "large"];

/// The places and reasons of discarded entries, as labels.
const DISCARDS: [(&str, &str); 4] =
    [("queue", "expired"), ("queue", "cancelled"), ("worker", "expired"), ("worker", "cancelled")];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplicaLabels {
    stage: String,
    state: Word,
}

/// A label value from a fixed vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0)
    }
}

/// The families of one node.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    registry: Mutex<Registry>,
    requests: Family<OutcomeLabels, Counter<u64, AtomicU64>>,
    request_seconds: Family<RouteLabel, Seconds, fn() -> Seconds>,
    failed_seconds: Family<RouteLabel, Counter<f64, AtomicU64>>,
    in_flight: Gauge<i64, AtomicI64>,
    in_flight_bytes: Gauge<i64, AtomicI64>,
    refused: Family<TurnedAwayLabels, Counter>,
    /// Its series, by [`TurnedAway`].
    turned_away: [Counter; TurnedAway::ALL.len()],
    queue_seconds: Family<StageLabel, Seconds, fn() -> Seconds>,
    batch_seconds: Family<StageLabel, Seconds, fn() -> Seconds>,
    compute_seconds: Family<StageLabel, Seconds, fn() -> Seconds>,
    batch_size: Family<StageLabel, Sizes, fn() -> Sizes>,
    batches: Family<ReleaseLabels, Counter>,
    discarded: Family<DiscardLabels, Counter>,
    stage_refused: Family<RefusedLabels, Counter>,
    restarts: Family<StageLabel, Counter>,
    retries: Family<StageLabel, Counter>,
    replica_states: Family<ReplicaLabels, Gauge>,
    poison_entries: Family<StageLabel, Counter>,
    isolations: Family<StageLabel, Counter>,
    hung: Family<StageLabel, Counter>,
    abandoned_threads: Family<StageLabel, Gauge>,
    moved: Family<StageLabel, Counter>,
    queued: Family<StageLabel, Gauge>,
    replicas: Family<StageLabel, Gauge>,
    ready: Family<StageLabel, Gauge>,
    past_stages: Mutex<Past>,
    past_routes: Mutex<Past>,
    /// Not a series: keeps the sum of all outcomes whole when the counters of a past route go.
    past_outcomes: AtomicU64,
}

/// How many stages, and routes, keep their counters after their end.
///
/// A counter that goes on where it was when its name comes back is what a model that is unloaded and loaded again
/// wants: no rate has a gap, and no sum over stages falls. A node whose names are always new must not grow by them.
pub(super) const MAX_PAST: usize = 64;

/// Names that are gone, the latest last, each with a count.
#[derive(Debug, Default)]
struct Past(VecDeque<(String, u64)>);

impl Past {
    /// Adds a name; gives the oldest, where there are too many.
    fn add(&mut self, name: &str, count: u64) -> Option<(String, u64)> {
        self.remove(name);
        self.0.push_back((name.to_owned(), count));
        if self.0.len() > MAX_PAST { self.0.pop_front() } else { None }
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(past, _)| past != name);
    }
}

impl NodeMetrics {
    pub(crate) fn new() -> Self {
        let refused: Family<TurnedAwayLabels, Counter> = Family::default();
        let turned_away = TurnedAway::ALL
            .map(|reason| refused.get_or_create_owned(&TurnedAwayLabels { reason: Word(reason.as_str()) }));
        let this = Self {
            registry: Mutex::new(Registry::with_prefix("callboard")),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds as fn() -> Seconds),
            failed_seconds: Family::default(),
            in_flight: Gauge::default(),
            in_flight_bytes: Gauge::default(),
            refused,
            turned_away,
            queue_seconds: Family::new_with_constructor(seconds as fn() -> Seconds),
            batch_seconds: Family::new_with_constructor(seconds as fn() -> Seconds),
            compute_seconds: Family::new_with_constructor(seconds as fn() -> Seconds),
            batch_size: Family::new_with_constructor(sizes as fn() -> Sizes),
            batches: Family::default(),
            discarded: Family::default(),
            stage_refused: Family::default(),
            restarts: Family::default(),
            retries: Family::default(),
            replica_states: Family::default(),
            poison_entries: Family::default(),
            isolations: Family::default(),
            hung: Family::default(),
            abandoned_threads: Family::default(),
            moved: Family::default(),
            queued: Family::default(),
            replicas: Family::default(),
            ready: Family::default(),
            past_stages: Mutex::default(),
            past_routes: Mutex::default(),
            past_outcomes: AtomicU64::new(0),
        };
        this.register();
        this
    }

    /// The catalogue: every family with its help text.
    #[rustfmt::skip]
    fn register(&self) {
        let mut registry = self.registry.lock();
        registry.register("requests", "Admitted calls by route and outcome", self.requests.clone());
        registry.register("request_duration_seconds", "Admission to outcome, successful calls", self.request_seconds.clone());
        registry.register("request_failed_seconds", "Admission to outcome, all other calls, in sum", self.failed_seconds.clone());
        registry.register("in_flight", "Admitted calls without an outcome yet", self.in_flight.clone());
        registry.register("in_flight_bytes", "Payload bytes of the calls in flight", self.in_flight_bytes.clone());
        registry.register("refused", "Calls that the gateway refused, by reason", self.refused.clone());
        registry.register("stage_queue_seconds", "Arrival at a stage to the forming of its batch", self.queue_seconds.clone());
        registry.register("stage_batch_seconds", "Forming of a batch to the start of user code", self.batch_seconds.clone());
        registry.register("stage_compute_seconds", "User code, per batch", self.compute_seconds.clone());
        registry.register("stage_batch_size", "Entries per batch", self.batch_size.clone());
        registry.register("stage_batches", "Batches, by reason for their release", self.batches.clone());
        registry.register("stage_discarded", "Entries given up because their caller had left or was late, by place and reason", self.discarded.clone());
        registry.register("stage_refused", "Entries that the stage refused, by reason", self.stage_refused.clone());
        registry.register("stage_restarts", "Replicas started again after a crash", self.restarts.clone());
        registry.register("stage_retries", "Entries run again because they were lost with their worker", self.retries.clone());
        registry.register("stage_replica_states", "Replicas by what they do now", self.replica_states.clone());
        registry.register("stage_poison_entries", "Entries that killed their worker whenever they ran alone, or panicked in a preprocess", self.poison_entries.clone());
        registry.register("stage_isolation_runs", "Batches run again in parts to find the entry that kills the worker", self.isolations.clone());
        registry.register("stage_hung", "Calls that did not come back within the stage's timeout", self.hung.clone());
        registry.register("stage_abandoned_threads", "Threads that hang in user code, given up", self.abandoned_threads.clone());
        registry.register("stage_moved_to_threads", "Task stages that held a runtime thread too long", self.moved.clone());
        registry.register("stage_queued", "Entries waiting", self.queued.clone());
        registry.register("stage_replicas", "Replicas that are up", self.replicas.clone());
        registry.register("stage_ready", "1 while the stage takes entries, else 0", self.ready.clone());
    }

    pub(crate) fn stage(&self, name: &StageName) -> StageMetrics {
        self.past_stages.lock().remove(name.as_str());
        let label = StageLabel { stage: name.to_string() };
        let batches = |reason: ReleaseReason| {
            let labels = ReleaseLabels { stage: name.to_string(), reason: Word(reason.as_str()) };
            self.batches.get_or_create_owned(&labels)
        };
        let discarded = |place, reason| {
            let labels = DiscardLabels { stage: name.to_string(), place: Word(place), reason: Word(reason) };
            self.discarded.get_or_create_owned(&labels)
        };
        let refused = |reason| {
            let labels = RefusedLabels { stage: name.to_string(), reason: Word(reason) };
            self.stage_refused.get_or_create_owned(&labels)
        };
        let replica_state = |state: ReplicaState| {
            let labels = ReplicaLabels { stage: name.to_string(), state: Word(state.as_str()) };
            self.replica_states.get_or_create_owned(&labels)
        };
        StageMetrics {
            queue_seconds: self.queue_seconds.get_or_create_owned(&label),
            batch_seconds: self.batch_seconds.get_or_create_owned(&label),
            compute_seconds: self.compute_seconds.get_or_create_owned(&label),
            batch_size: self.batch_size.get_or_create_owned(&label),
            full: batches(ReleaseReason::Full),
            idle: batches(ReleaseReason::Idle),
            delay: batches(ReleaseReason::Delay),
            deadline: batches(ReleaseReason::Deadline),
            drain: batches(ReleaseReason::Drain),
            queue_expired: discarded("queue", "expired"),
            queue_cancelled: discarded("queue", "cancelled"),
            worker_expired: discarded("worker", "expired"),
            worker_cancelled: discarded("worker", "cancelled"),
            refused_full: refused("full"),
            refused_late: refused("late"),
            refused_large: refused("large"),
            restarts: self.restarts.get_or_create_owned(&label),
            retries: self.retries.get_or_create_owned(&label),
            replica_states: ReplicaState::ALL.map(replica_state),
            poison_entries: self.poison_entries.get_or_create_owned(&label),
            isolations: self.isolations.get_or_create_owned(&label),
            hung: self.hung.get_or_create_owned(&label),
            abandoned_threads: self.abandoned_threads.get_or_create_owned(&label),
            moved: self.moved.get_or_create_owned(&label),
            queued: self.queued.get_or_create_owned(&label),
            replicas: self.replicas.get_or_create_owned(&label),
            ready: self.ready.get_or_create_owned(&label),
        }
    }

    pub(crate) fn route(&self, name: &RouteName) -> RouteMetrics {
        self.past_routes.lock().remove(name.as_str());
        let outcome = |word: &'static str| {
            let labels = OutcomeLabels { route: name.to_string(), outcome: Word(word) };
            self.requests.get_or_create_owned(&labels)
        };
        RouteMetrics {
            ok: outcome("ok"),
            errors: ErrorKind::ALL.map(|kind| outcome(kind.as_str())),
            seconds: self.request_seconds.get_or_create_owned(&RouteLabel { route: name.to_string() }),
            failed_seconds: self.failed_seconds.get_or_create_owned(&RouteLabel { route: name.to_string() }),
        }
    }

    /// The last revision of a stage is over: what tells of now ends, and what counts stays for when it comes back.
    pub(crate) fn forget_stage(&self, name: &StageName) {
        // One that has done nothing, such as for a change that failed, has nothing to go on with.
        let was_used = self.stage(name).batches() > 0;
        let label = StageLabel { stage: name.to_string() };
        for state in ReplicaState::ALL {
            self.replica_states.remove(&ReplicaLabels { stage: name.to_string(), state: Word(state.as_str()) });
        }
        for family in [&self.queued, &self.replicas, &self.ready, &self.abandoned_threads] {
            family.remove(&label);
        }
        let ends = if was_used {
            self.past_stages.lock().add(name.as_str(), 0).map(|(oldest, _)| oldest)
        } else {
            Some(name.to_string())
        };
        if let Some(stage) = ends {
            self.end_counters_of_stage(&stage);
        }
    }

    fn end_counters_of_stage(&self, name: &str) {
        let stage = || name.to_owned();
        let label = StageLabel { stage: stage() };
        for family in [&self.queue_seconds, &self.batch_seconds, &self.compute_seconds] {
            family.remove(&label);
        }
        self.batch_size.remove(&label);
        for reason in ReleaseReason::ALL {
            self.batches.remove(&ReleaseLabels { stage: stage(), reason: Word(reason.as_str()) });
        }
        for (place, reason) in DISCARDS {
            self.discarded.remove(&DiscardLabels { stage: stage(), place: Word(place), reason: Word(reason) });
        }
        for reason in REFUSALS {
            self.stage_refused.remove(&RefusedLabels { stage: stage(), reason: Word(reason) });
        }
        for family in [&self.restarts, &self.retries, &self.moved, &self.poison_entries, &self.isolations, &self.hung] {
            family.remove(&label);
        }
    }

    /// The last revision of a route is over: it counts no more, and its counters stay for when it comes back.
    pub(crate) fn forget_route(&self, route: &str, outcomes: u64) {
        let Some((oldest, outcomes)) = self.past_routes.lock().add(route, outcomes) else { return };
        self.past_outcomes.fetch_add(outcomes, Ordering::Relaxed);
        let words = ErrorKind::ALL.map(ErrorKind::as_str);
        for word in words.into_iter().chain(["ok"]) {
            self.requests.remove(&OutcomeLabels { route: oldest.clone(), outcome: Word(word) });
        }
        let label = RouteLabel { route: oldest };
        self.request_seconds.remove(&label);
        self.failed_seconds.remove(&label);
    }

    /// The outcomes of routes that are gone.
    pub(crate) fn past_outcomes(&self) -> u64 {
        let past: u64 = self.past_routes.lock().0.iter().map(|(_, outcomes)| outcomes).sum();
        past + self.past_outcomes.load(Ordering::Relaxed)
    }

    /// The gateway said no.
    pub(crate) fn refused(&self, reason: TurnedAway) {
        self.turned_away[reason as usize].inc();
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.turned_away.iter().map(Counter::get).sum()
    }

    /// The text that Prometheus scrapes.
    pub(crate) fn encode(&self, in_flight: usize, in_flight_bytes: u64) -> String {
        self.in_flight.set(in_flight as i64);
        self.in_flight_bytes.set(in_flight_bytes as i64);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry.lock()) {
            // Writing into a string does not fail; a metric that cannot be encoded is a defect, and is shown as one.
            let _ = writeln!(text, "# encoding failed: {error}");
        }
        text
    }
}
