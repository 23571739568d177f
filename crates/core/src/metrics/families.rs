//! The families of a node: their names, their help, their labels, and which series of them a route or a stage has.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{
    CacheUse, CallRefusal, DecisionCause, DiscardPlace, DiscardReason, EntryRefusal, KeyedMetrics, LoadResult,
    NodeLoad, ProcessUsage, ReplicaState, RolloutMetrics, RouteMetrics, SaveResult, Seconds, Sizes, StageMetrics,
    TrialRole, Verdict,
};
use crate::error::ErrorKind;
use crate::id::{RouteName, StageName};
use crate::timeline::ReleaseReason;

/// Declares families of metrics: a field for each, registered with this name and this help text.
#[doc(hidden)]
#[macro_export]
macro_rules! families {
    (
        $(#[$of_struct:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $field_visibility:vis $field:ident: $type:ty = $family:literal, $help:literal;)*
        }
    ) => {
        $(#[$of_struct])*
        #[derive(Clone, Debug, Default)]
        $visibility struct $name {
            $($(#[$of_field])* $field_visibility $field: $type,)*
        }

        impl $name {
            /// Adds the families to a registry.
            $visibility fn register(&self, registry: &mut ::prometheus_client::registry::Registry) {
                $(registry.register($family, $help, self.$field.clone());)*
            }
        }
    };
}

/// The labels of one series. Their values are names of routes and stages, and words of an enumeration.
type Labels = Vec<(&'static str, String)>;

families! {
    /// The catalogue: every family of a node.
    struct Families {
        requests: Family<Labels, Counter> = "requests", "Admitted calls by route and outcome";
        request_seconds: Family<Labels, Seconds> = "request_duration_seconds", "Admission to outcome, successful calls";
        failed_seconds: Family<Labels, Counter<f64, AtomicU64>> =
            "request_failed_seconds", "Admission to outcome, all other calls, in sum";
        in_flight: Gauge = "in_flight", "Admitted calls without an outcome yet";
        in_flight_bytes: Gauge = "in_flight_bytes", "Payload bytes of the calls in flight";
        all_queued: Gauge = "queued", "Entries that wait in the queues of all stages";
        running: Gauge = "running", "Admitted calls beyond those that wait in queues";
        saturation: Gauge<f64, AtomicU64> =
            "saturation", "How full the fullest bound is, from 0 to 1: calls, bytes, or the queue of a stage";
        nodes_wanted: Gauge<f64, AtomicU64> = "nodes_wanted", "Nodes like this one that its load needs";
        refused: Family<Labels, Counter> = "refused", "Calls that the gateway refused, by reason";
        rollout_calls: Family<Labels, Counter> =
            "rollout_calls", "Calls that a rollout judged, by revision and outcome";
        rollout_seconds: Family<Labels, Seconds> =
            "rollout_duration_seconds", "Admission to outcome, successful calls that a rollout judged, by revision";
        rollout_compared: Family<Labels, Counter> =
            "rollout_compared", "Answers of a shadow, by whether they agree with those of the current revision";
        rollout_decisions: Family<Labels, Counter> =
            "rollout_decisions", "Ends of rollouts, by decision and cause";
        rollout_share: Family<Labels, Gauge<f64, AtomicU64>> =
            "rollout_share", "The share of the calls that the candidate gets now";
        queue_seconds: Family<Labels, Seconds> =
            "stage_queue_seconds", "Arrival at a stage to the forming of its batch";
        batch_seconds: Family<Labels, Seconds> =
            "stage_batch_seconds", "Forming of a batch to the start of user code";
        compute_seconds: Family<Labels, Seconds> = "stage_compute_seconds", "User code, per batch";
        batch_size: Family<Labels, Sizes> = "stage_batch_size", "Entries per batch";
        batches: Family<Labels, Counter> = "stage_batches", "Batches, by reason for their release";
        discarded: Family<Labels, Counter> =
            "stage_discarded", "Entries given up because their caller had left or was late, by place and reason";
        stage_refused: Family<Labels, Counter> = "stage_refused", "Entries that the stage refused, by reason";
        restarts: Family<Labels, Counter> = "stage_restarts", "Replicas started again after a crash";
        retries: Family<Labels, Counter> =
            "stage_retries", "Entries run again because they were lost with their worker";
        replica_states: Family<Labels, Gauge> = "stage_replica_states", "Replicas by what they do now";
        poison_entries: Family<Labels, Counter> =
            "stage_poison_entries",
            "Entries that killed their worker whenever they ran alone, or panicked in a preprocess";
        isolations: Family<Labels, Counter> =
            "stage_isolation_runs", "Batches run again in parts to find the entry that kills the worker";
        hung: Family<Labels, Counter> = "stage_hung", "Calls that did not come back within the stage's timeout";
        abandoned_threads: Family<Labels, Gauge> =
            "stage_abandoned_threads", "Threads that hang in user code, given up";
        moved_to_threads: Family<Labels, Counter> =
            "stage_moved_to_threads", "Task stages that held a runtime thread too long";
        queued: Family<Labels, Gauge> = "stage_queued", "Entries waiting";
        replicas: Family<Labels, Gauge> = "stage_replicas", "Replicas that are up";
        replicas_wanted: Family<Labels, Gauge> =
            "stage_replicas_wanted", "Replicas that its load or an operator asks for";
        loads: Family<Labels, Counter> =
            "stage_loads", "Starts of the first replica of a stage that had none, by result";
        load_seconds: Family<Labels, Seconds> =
            "stage_load_seconds", "Start of the first replica to its readiness";
        evictions: Family<Labels, Counter> =
            "stage_evictions", "Unloadings because another stage needed the place in memory";
        ready: Family<Labels, Gauge> = "stage_ready", "1 while the stage takes entries, else 0";
        replica_cpu_seconds: Family<Labels, Counter<f64, AtomicU64>> =
            "replica_cpu_seconds", "Processor time of a replica's own processes";
        replica_memory_bytes: Family<Labels, Gauge> =
            "replica_memory_bytes", "Bytes of memory that a replica's own process holds";
        cache: Family<Labels, Counter> = "stage_cache", "Calls of a stage with a response cache, by what the cache did";
        cache_bytes: Family<Labels, Gauge> = "stage_cache_bytes", "Bytes of the answers that a response cache keeps";
        keyed_active: Family<Labels, Gauge> = "keyed_active", "Keys that are active on this node";
        keyed_waiting: Family<Labels, Gauge> = "keyed_waiting", "Messages of all keys of a kind that wait or are handled now";
        keyed_refused: Family<Labels, Counter> =
            "keyed_refused", "Messages refused by the full mailbox of a key or of its kind";
        keyed_loads: Family<Labels, Counter> = "keyed_loads", "Loads of keys, by result";
        keyed_saves: Family<Labels, Counter> = "keyed_saves", "Saves of keys, by result";
        keyed_crashes: Family<Labels, Counter> = "keyed_crashes", "Instances of keys that crashed";
    }
}

/// The families of one node, and the series that ended lately.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    registry: Mutex<Registry>,
    families: Families,
    /// The series of `refused`.
    turned_away: [Counter; CallRefusal::ALL.len()],
    processor_times: Mutex<ProcessorTimes>,
    ended_stages: Mutex<EndedNames>,
    ended_routes: Mutex<EndedNames>,
    /// Not a series: keeps the sum of all outcomes whole when the counters of an ended route are removed.
    past_outcomes: AtomicU64,
}

/// How many stages, and routes, keep their counters after their end.
///
/// A model that is unloaded and loaded again continues its counters: no rate has a gap, and no sum over stages falls.
/// The bound keeps a node whose names are always new from growing.
pub(super) const MAX_ENDED: usize = 64;

/// The processor time of the processes of replicas. They count as far as they were read, also after their end and in
/// each revision, so that the counter of a replica never falls.
#[derive(Debug, Default)]
struct ProcessorTimes {
    totals: HashMap<(StageName, usize), Duration>,
    /// What the running processes had used when they were read last.
    running: HashMap<u32, Duration>,
}

impl ProcessorTimes {
    fn read(&mut self, processes: &[(StageName, usize, ProcessUsage)]) {
        let before = std::mem::take(&mut self.running);
        for (stage, index, usage) in processes {
            let before = before.get(&usage.pid).copied().unwrap_or_default();
            *self.totals.entry((stage.clone(), *index)).or_default() += usage.cpu.saturating_sub(before);
            self.running.insert(usage.pid, usage.cpu);
        }
    }
}

/// Names of ended stages or routes, the latest last, each with a count.
#[derive(Debug, Default)]
pub(super) struct EndedNames(VecDeque<(String, u64)>);

impl EndedNames {
    /// Adds a name. Returns the oldest if there are too many.
    pub(super) fn add(&mut self, name: &str, count: u64) -> Option<(String, u64)> {
        self.remove(name);
        self.0.push_back((name.to_owned(), count));
        if self.0.len() > MAX_ENDED { self.0.pop_front() } else { None }
    }

    pub(super) fn take_oldest(&mut self) -> Option<String> {
        self.0.pop_front().map(|(name, _)| name)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(ended, _)| ended != name);
    }
}

/// The words for a good and a bad call of a revision.
const ROLLOUT_OUTCOMES: [&str; 2] = ["ok", "failed"];

/// The words for an answer of a shadow that agrees, and for an answer that differs.
const COMPARISONS: [&str; 2] = ["agrees", "differs"];

fn route_labels(name: &str) -> Labels {
    vec![("route", name.to_owned())]
}

fn stage_labels(name: &str) -> Labels {
    vec![("stage", name.to_owned())]
}

/// The same labels and one more.
fn with(labels: &Labels, key: &'static str, word: &str) -> Labels {
    labels.iter().cloned().chain([(key, word.to_owned())]).collect()
}

fn discard_labels(stage: &Labels, place: DiscardPlace, reason: DiscardReason) -> Labels {
    with(&with(stage, "place", place.as_str()), "reason", reason.as_str())
}

fn decision_labels(route: &Labels, verdict: Verdict, cause: DecisionCause) -> Labels {
    with(&with(route, "decision", verdict.as_str()), "cause", cause.as_str())
}

impl NodeMetrics {
    pub(crate) fn new() -> Self {
        let families = Families::default();
        let mut registry = Registry::with_prefix("callboard");
        families.register(&mut registry);
        let turned_away =
            |reason: CallRefusal| families.refused.get_or_create_owned(&vec![("reason", reason.as_str().to_owned())]);
        Self {
            registry: Mutex::new(registry),
            turned_away: CallRefusal::ALL.map(turned_away),
            families,
            processor_times: Mutex::default(),
            ended_stages: Mutex::default(),
            ended_routes: Mutex::default(),
            past_outcomes: AtomicU64::new(0),
        }
    }

    pub(crate) fn stage(&self, name: &StageName) -> StageMetrics {
        self.ended_stages.lock().remove(name.as_str());
        let (families, stage) = (&self.families, stage_labels(name.as_str()));
        let discarded = |place| {
            DiscardReason::ALL
                .map(|reason| families.discarded.get_or_create_owned(&discard_labels(&stage, place, reason)))
        };
        let by = |family: &Family<Labels, Counter>, key, word| family.get_or_create_owned(&with(&stage, key, word));
        let replica_state =
            |state: ReplicaState| families.replica_states.get_or_create_owned(&with(&stage, "state", state.as_str()));
        StageMetrics {
            queue_seconds: families.queue_seconds.get_or_create_owned(&stage),
            batch_seconds: families.batch_seconds.get_or_create_owned(&stage),
            compute_seconds: families.compute_seconds.get_or_create_owned(&stage),
            batch_size: families.batch_size.get_or_create_owned(&stage),
            batches: ReleaseReason::ALL.map(|reason| by(&families.batches, "reason", reason.as_str())),
            discarded: DiscardPlace::ALL.map(discarded),
            refused: EntryRefusal::ALL.map(|reason| by(&families.stage_refused, "reason", reason.as_str())),
            replica_states: ReplicaState::ALL.map(replica_state),
            restarts: families.restarts.get_or_create_owned(&stage),
            retries: families.retries.get_or_create_owned(&stage),
            poison_entries: families.poison_entries.get_or_create_owned(&stage),
            isolations: families.isolations.get_or_create_owned(&stage),
            hung: families.hung.get_or_create_owned(&stage),
            abandoned_threads: families.abandoned_threads.get_or_create_owned(&stage),
            moved_to_threads: families.moved_to_threads.get_or_create_owned(&stage),
            queued: families.queued.get_or_create_owned(&stage),
            replicas: families.replicas.get_or_create_owned(&stage),
            replicas_wanted: families.replicas_wanted.get_or_create_owned(&stage),
            loads: LoadResult::ALL.map(|result| by(&families.loads, "result", result.as_str())),
            load_seconds: families.load_seconds.get_or_create_owned(&stage),
            evictions: families.evictions.get_or_create_owned(&stage),
            ready: families.ready.get_or_create_owned(&stage),
            cache: CacheUse::ALL.map(|how| by(&families.cache, "result", how.as_str())),
            cache_bytes: families.cache_bytes.get_or_create_owned(&stage),
        }
    }

    pub(crate) fn keyed(&self, kind: &str) -> KeyedMetrics {
        let (families, kind) = (&self.families, vec![("kind", kind.to_owned())]);
        let by = |family: &Family<Labels, Counter>, word| family.get_or_create_owned(&with(&kind, "result", word));
        KeyedMetrics {
            active: families.keyed_active.get_or_create_owned(&kind),
            waiting: families.keyed_waiting.get_or_create_owned(&kind),
            refused: families.keyed_refused.get_or_create_owned(&kind),
            loads: LoadResult::ALL.map(|result| by(&families.keyed_loads, result.as_str())),
            saves: SaveResult::ALL.map(|result| by(&families.keyed_saves, result.as_str())),
            crashes: families.keyed_crashes.get_or_create_owned(&kind),
        }
    }

    pub(crate) fn route(&self, name: &RouteName) -> RouteMetrics {
        self.ended_routes.lock().remove(name.as_str());
        let (families, route) = (&self.families, route_labels(name.as_str()));
        let outcome = |word: &str| families.requests.get_or_create_owned(&with(&route, "outcome", word));
        RouteMetrics {
            ok: outcome("ok"),
            errors: ErrorKind::ALL.map(|kind| outcome(kind.as_str())),
            seconds: families.request_seconds.get_or_create_owned(&route),
            failed_seconds: families.failed_seconds.get_or_create_owned(&route),
        }
    }

    pub(crate) fn rollout(&self, name: &RouteName) -> RolloutMetrics {
        let (families, route) = (&self.families, route_labels(name.as_str()));
        let of = |role: TrialRole| with(&route, "revision", role.as_str());
        let calls = |role: TrialRole| {
            ROLLOUT_OUTCOMES.map(|word| families.rollout_calls.get_or_create_owned(&with(&of(role), "outcome", word)))
        };
        let compared = |word: &str| families.rollout_compared.get_or_create_owned(&with(&route, "result", word));
        RolloutMetrics {
            calls: TrialRole::ALL.map(calls),
            seconds: TrialRole::ALL.map(|role| families.rollout_seconds.get_or_create_owned(&of(role))),
            compared: COMPARISONS.map(compared),
            share: families.rollout_share.get_or_create_owned(&route),
        }
    }

    /// Counts the end of a rollout.
    pub(crate) fn rollout_decided(&self, route: &RouteName, verdict: Verdict, cause: DecisionCause) {
        let labels = decision_labels(&route_labels(route.as_str()), verdict, cause);
        self.families.rollout_decisions.get_or_create_owned(&labels).inc();
    }

    fn forget_rollouts(&self, route: &Labels) {
        let families = &self.families;
        for role in TrialRole::ALL {
            let labels = with(route, "revision", role.as_str());
            families.rollout_seconds.remove(&labels);
            for word in ROLLOUT_OUTCOMES {
                families.rollout_calls.remove(&with(&labels, "outcome", word));
            }
        }
        for word in COMPARISONS {
            families.rollout_compared.remove(&with(route, "result", word));
        }
        for verdict in Verdict::ALL {
            for cause in DecisionCause::ALL {
                families.rollout_decisions.remove(&decision_labels(route, verdict, cause));
            }
        }
        families.rollout_share.remove(route);
    }

    /// Ends the gauges of a stage after its last revision; its counters stay for a later one.
    pub(crate) fn forget_stage(&self, name: &StageName) {
        self.processor_times.lock().totals.retain(|(stage, _), _| stage != name);
        // An unused stage, such as for a change that failed, has no counts to continue.
        let was_used = self.stage(name).batches() > 0;
        let (families, stage) = (&self.families, stage_labels(name.as_str()));
        for state in ReplicaState::ALL {
            families.replica_states.remove(&with(&stage, "state", state.as_str()));
        }
        for family in [
            &families.queued,
            &families.replicas,
            &families.replicas_wanted,
            &families.ready,
            &families.abandoned_threads,
            &families.cache_bytes,
        ] {
            family.remove(&stage);
        }
        if !was_used {
            self.end_counters_of_stage(name.as_str());
        } else if let Some((oldest, _)) = self.ended_stages.lock().add(name.as_str(), 0) {
            self.end_counters_of_stage(&oldest);
        }
    }

    fn end_counters_of_stage(&self, name: &str) {
        let (families, stage) = (&self.families, stage_labels(name));
        let Families { queue_seconds, batch_seconds, compute_seconds, load_seconds, .. } = families;
        for family in [queue_seconds, batch_seconds, compute_seconds, load_seconds] {
            family.remove(&stage);
        }
        families.batch_size.remove(&stage);
        for place in DiscardPlace::ALL {
            for reason in DiscardReason::ALL {
                families.discarded.remove(&discard_labels(&stage, place, reason));
            }
        }
        for (family, key, words) in [
            (&families.cache, "result", CacheUse::ALL.map(CacheUse::as_str).to_vec()),
            (&families.batches, "reason", ReleaseReason::ALL.map(ReleaseReason::as_str).to_vec()),
            (&families.stage_refused, "reason", EntryRefusal::ALL.map(EntryRefusal::as_str).to_vec()),
            (&families.loads, "result", LoadResult::ALL.map(LoadResult::as_str).to_vec()),
        ] {
            words.into_iter().for_each(|word| _ = family.remove(&with(&stage, key, word)));
        }
        let Families { restarts, retries, moved_to_threads, poison_entries, isolations, hung, evictions, .. } =
            families;
        for family in [restarts, retries, moved_to_threads, poison_entries, isolations, hung, evictions] {
            family.remove(&stage);
        }
    }

    /// Ends the gauges of a route after its last revision; its counters stay for a later one.
    pub(crate) fn forget_route(&self, route: &str, outcomes: u64) {
        let Some((oldest, outcomes)) = self.ended_routes.lock().add(route, outcomes) else { return };
        self.past_outcomes.fetch_add(outcomes, Ordering::Relaxed);
        let (families, route) = (&self.families, route_labels(&oldest));
        for word in ErrorKind::ALL.map(ErrorKind::as_str).into_iter().chain(["ok"]) {
            families.requests.remove(&with(&route, "outcome", word));
        }
        families.request_seconds.remove(&route);
        families.failed_seconds.remove(&route);
        self.forget_rollouts(&route);
    }

    /// The outcomes of ended routes.
    pub(crate) fn past_outcomes(&self) -> u64 {
        let ended: u64 = self.ended_routes.lock().0.iter().map(|(_, outcomes)| outcomes).sum();
        ended + self.past_outcomes.load(Ordering::Relaxed)
    }

    /// Counts a call that the gateway refused.
    pub(crate) fn refused(&self, reason: CallRefusal) {
        self.turned_away[reason as usize].inc();
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.turned_away.iter().map(Counter::get).sum()
    }

    fn set_processes(&self, processes: &[(StageName, usize, ProcessUsage)]) {
        let Families { replica_cpu_seconds, replica_memory_bytes, .. } = &self.families;
        replica_cpu_seconds.clear();
        replica_memory_bytes.clear();
        let of = |stage: &StageName, index: usize| with(&stage_labels(stage.as_str()), "replica", &index.to_string());
        for (stage, index, usage) in processes {
            replica_memory_bytes.get_or_create_owned(&of(stage, *index)).inc_by(usage.memory_bytes as i64);
        }
        let mut times = self.processor_times.lock();
        times.read(processes);
        for ((stage, index), used) in &times.totals {
            replica_cpu_seconds.get_or_create_owned(&of(stage, *index)).inc_by(used.as_secs_f64());
        }
    }

    /// The text that Prometheus scrapes. `processes` are those of replicas, with stage and index.
    pub(crate) fn encode(
        &self,
        (in_flight, in_flight_bytes): (usize, u64),
        load: NodeLoad,
        nodes_wanted: f64,
        processes: &[(StageName, usize, ProcessUsage)],
    ) -> String {
        // Of one reader at a time: the series of processes are those of this page.
        let registry = self.registry.lock();
        self.set_processes(processes);
        self.families.in_flight.set(in_flight as i64);
        self.families.in_flight_bytes.set(in_flight_bytes as i64);
        self.families.all_queued.set(load.queued as i64);
        self.families.running.set(load.running as i64);
        self.families.saturation.set(load.saturation);
        self.families.nodes_wanted.set(nodes_wanted);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            // Writing into a string does not fail; a metric that cannot be encoded is a defect, and is shown as one.
            let _ = writeln!(text, "# encoding failed: {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_replica_never_falls() {
        let usage = |pid, seconds| {
            let usage = ProcessUsage { pid, cpu: Duration::from_secs(seconds), memory_bytes: 1 << 20 };
            (StageName::new("s"), 0, usage)
        };
        let metrics = NodeMetrics::new();
        let page = |processes: &[_]| {
            let page = metrics.encode((0, 0), NodeLoad::default(), 0.0, processes);
            let value = |family: &str| {
                let start = format!("callboard_replica_{family}{{stage=\"s\",replica=\"0\"}} ");
                page.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
            };
            (value("cpu_seconds_total").unwrap(), value("memory_bytes"))
        };
        let shown = |cpu: &str, bytes: Option<u64>| (cpu.to_owned(), bytes.map(|bytes| bytes.to_string()));
        assert_eq!(page(&[usage(1, 10)]), shown("10.0", Some(1 << 20)));
        // The candidate of a rollout.
        assert_eq!(page(&[usage(1, 11), usage(2, 3)]), shown("14.0", Some(2 << 20)));
        assert_eq!(page(&[usage(2, 4)]), shown("15.0", Some(1 << 20)));
        assert_eq!(page(&[]), shown("15.0", None));
        metrics.forget_stage(&StageName::new("s"));
        assert!(
            !metrics.encode((0, 0), NodeLoad::default(), 0.0, &[]).contains("callboard_replica_cpu_seconds_total{")
        );
    }
}
