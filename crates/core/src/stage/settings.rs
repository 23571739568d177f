//! The knobs of one stage.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Map;

use super::cache::CacheSettings;
use super::scaling::Scaling;
use crate::contract::Contract;
use crate::id::StageName;
use crate::queue::BatchPolicy;
use crate::restart::{BackoffPolicy, RestartIntensity};

/// The place where a stage's code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// Inline on the runtime's threads. A cross-thread wake-up costs more than the whole pipeline, so quick code stays
    /// here; code that holds a thread for over 10 ms is moved away, with a warning that names the stage.
    Task,
    /// On an OS thread per replica. The default of workers, whose calls take milliseconds and more.
    Thread,
}

/// A count: 0 counts as 1.
pub(super) fn at_least_one(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}

/// How a stage batches, queues, runs and restarts.
#[derive(Clone, Debug)]
pub struct StageSettings {
    batching: BatchPolicy,
    scaling: Scaling,
    memory: u64,
    is_pinned: bool,
    queue: NonZeroUsize,
    placement: Placement,
    intensity: RestartIntensity,
    backoff: BackoffPolicy,
    contract: Contract,
    crash_retries: u32,
    timeout: Option<Duration>,
    max_abandoned_threads: usize,
    stop_timeout: Duration,
    concurrency: NonZeroU32,
    hands_ahead: bool,
    credit: NonZeroUsize,
    revision: u64,
    cache: Option<CacheSettings>,
    affinity: Arc<[usize]>,
    replica_settings: Arc<[Map]>,
    note: Option<Arc<str>>,
    /// The stage runs in a test whose clock may be paused.
    has_virtual_time: bool,
    /// The stage whose replicas run it, if they are not its own.
    replicas_of: Option<StageName>,
}

impl StageSettings {
    /// The maximum count of replicas of a stage: each has its own worker, and most have their own thread.
    pub const MAX_REPLICAS: usize = 1024;

    /// Entries that may wait in one stage: a second's work for a fast stage, and at most 30 s of patience for a slow
    /// one.
    pub const DEFAULT_QUEUE_ENTRIES: usize = 1024;

    /// Batches that one asynchronous replica runs at once by default: enough to overlap the waiting for most services,
    /// few enough not to flood them.
    pub const DEFAULT_CONCURRENCY: u32 = 64;

    /// How often an entry that was alone when its worker died runs again by default. Once: a crash caused by the
    /// machine hardly happens twice, and an entry that kills its worker costs one more restart.
    pub const DEFAULT_CRASH_RETRIES: u32 = 1;

    /// Threads of one stage that may hang in user code at a time by default. Each keeps its stack, its worker and the
    /// worker's memory.
    pub const DEFAULT_MAX_ABANDONED_THREADS: usize = 4;

    /// How long a worker may take by default to clean up after its last batch: enough for most, and less than the time
    /// after which an orchestrator kills the node.
    pub const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

    /// Outputs of one streaming call that may wait for their reader by default: enough to bridge a network round trip,
    /// few enough to waste little when the reader leaves.
    pub const DEFAULT_CREDIT: usize = 16;

    /// The defaults for this placement: one replica, no batching, a queue of
    /// [`DEFAULT_QUEUE_ENTRIES`](Self::DEFAULT_QUEUE_ENTRIES).
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        Self {
            batching: BatchPolicy::default(),
            scaling: Scaling::fixed(1),
            memory: 0,
            is_pinned: false,
            queue: at_least_one(Self::DEFAULT_QUEUE_ENTRIES),
            placement,
            intensity: RestartIntensity::default(),
            backoff: BackoffPolicy::default(),
            contract: Contract::default(),
            crash_retries: Self::DEFAULT_CRASH_RETRIES,
            timeout: None,
            max_abandoned_threads: Self::DEFAULT_MAX_ABANDONED_THREADS,
            stop_timeout: Self::DEFAULT_STOP_TIMEOUT,
            concurrency: NonZeroU32::new(Self::DEFAULT_CONCURRENCY).unwrap_or(NonZeroU32::MIN),
            hands_ahead: false,
            credit: at_least_one(Self::DEFAULT_CREDIT),
            revision: 0,
            cache: None,
            affinity: Arc::default(),
            replica_settings: Arc::default(),
            note: None,
            has_virtual_time: false,
            replicas_of: None,
        }
    }

    /// When a batch is full, and how long it may wait to become so.
    #[must_use]
    pub fn batching(&self) -> &BatchPolicy {
        &self.batching
    }

    /// See [`batching`](Self::batching).
    #[must_use]
    pub fn with_batching(mut self, batching: BatchPolicy) -> Self {
        self.batching = batching;
        self
    }

    /// Sets the largest batch and keeps the other knobs of batching.
    pub(super) fn with_max_batch_size(mut self, entries: NonZeroUsize) -> Self {
        self.batching.max_batch_size = entries;
        self
    }

    /// The number of workers; the most of them if it [changes by itself](Self::scaling). Default 1. Each is built on
    /// its own: memory grows with it.
    #[must_use]
    pub fn replicas(&self) -> NonZeroUsize {
        self.scaling.max()
    }

    /// Always this many workers; see [`replicas`](Self::replicas).
    #[must_use]
    pub fn with_replicas(self, replicas: NonZeroUsize) -> Self {
        self.with_bounds(Scaling::fixed(replicas.get()))
    }

    /// Between which bounds the number of workers changes by itself. Default: always one.
    #[must_use]
    pub fn scaling(&self) -> Scaling {
        if self.is_pinned && self.scaling.may_be_zero() {
            return self.scaling.with_bounds(Scaling::between(1, self.scaling.max().get()));
        }
        self.scaling
    }

    /// See [`scaling`](Self::scaling).
    #[must_use]
    pub fn with_scaling(mut self, scaling: Scaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Sets the bounds and keeps the other knobs of scaling.
    pub(super) fn with_bounds(mut self, bounds: Scaling) -> Self {
        self.scaling = self.scaling.with_bounds(bounds);
        self
    }

    /// Whether the stage always has a replica and takes one of the node's [places](crate::Limits::max_loaded). Default
    /// false: a stage with a replica at all times then takes none.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// See [`is_pinned`](Self::is_pinned).
    #[must_use]
    pub fn with_pinned(mut self, is_pinned: bool) -> Self {
        self.is_pinned = is_pinned;
        self
    }

    /// The stage whose replicas run it, if they are not its own; see [`Stage::hosted_by`](crate::Stage::hosted_by).
    #[must_use]
    pub fn replicas_of(&self) -> Option<&StageName> {
        self.replicas_of.as_ref()
    }

    /// The same settings with those of replicas from the stage whose replicas run this one.
    pub(super) fn with_replicas_of(self, name: &StageName, host: &Self) -> Self {
        Self {
            replicas_of: Some(name.clone()),
            scaling: host.scaling,
            is_pinned: false,
            memory: 0,
            placement: host.placement,
            stop_timeout: host.stop_timeout,
            concurrency: host.concurrency,
            hands_ahead: host.hands_ahead,
            affinity: Arc::clone(&host.affinity),
            has_virtual_time: host.has_virtual_time,
            ..self
        }
    }

    /// Whether it counts against the node's limits of loaded stages.
    pub(crate) fn takes_a_place(&self) -> bool {
        self.is_pinned || self.scaling.may_be_zero()
    }

    /// How long a replica that keeps crashing waits before its next start.
    #[must_use]
    pub fn backoff(&self) -> &BackoffPolicy {
        &self.backoff
    }

    /// See [`backoff`](Self::backoff).
    #[must_use]
    pub fn with_backoff(mut self, backoff: BackoffPolicy) -> Self {
        self.backoff = backoff;
        self
    }

    /// The longest time that one batch may take in user code. Default `None`: no limit, while the deadlines of the
    /// callers still hold.
    ///
    /// After this time the callers get `DeadlineExceeded` at once. The future of an asynchronous worker is dropped; a
    /// worker's thread cannot be stopped, so it is abandoned, and another replica replaces it. Set it for code that can
    /// hang, well above the time of its slowest batch. It does not apply to task stages, which share their threads.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// See [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The CPU cores that worker threads are pinned to: replica `i` to the `i`-th, from the first again if there are
    /// more replicas. Default empty: the system decides. Turn it on for cache-bound code on a dedicated machine; a
    /// pinned thread waits for its core even when another is idle.
    #[must_use]
    pub fn affinity(&self) -> &[usize] {
        &self.affinity
    }

    /// See [`affinity`](Self::affinity).
    #[must_use]
    pub fn with_affinity(mut self, cores: impl Into<Vec<usize>>) -> Self {
        self.affinity = cores.into().into();
        self
    }

    pub(crate) fn affinity_of(&self, replica: usize) -> Option<usize> {
        self.affinity.get(replica.checked_rem(self.affinity.len())?).copied()
    }

    /// The settings of each replica at its construction: replica `i` gets the `i`-th, from the first again if there are
    /// more replicas. Default empty. For differences between replicas, such as a device. Read it by
    /// [`Replica::settings`](crate::Replica::settings).
    #[must_use]
    pub fn replica_settings(&self) -> &[Map] {
        &self.replica_settings
    }

    /// See [`replica_settings`](Self::replica_settings).
    #[must_use]
    pub fn with_replica_settings(mut self, settings: impl Into<Vec<Map>>) -> Self {
        self.replica_settings = settings.into().into();
        self
    }

    pub(crate) fn settings_of(&self, replica: usize) -> Map {
        let index = replica.checked_rem(self.replica_settings.len());
        index.and_then(|index| self.replica_settings.get(index)).cloned().unwrap_or_default()
    }

    /// The answers that it keeps. Default none. It has an effect only under [`Contract::Pure`].
    #[must_use]
    pub fn cache(&self) -> Option<CacheSettings> {
        self.cache
    }

    /// See [`cache`](Self::cache).
    #[must_use]
    pub fn with_cache(mut self, cache: CacheSettings) -> Self {
        self.cache = Some(cache);
        self
    }

    pub(crate) fn runs_as_task(&self) -> bool {
        self.placement == Placement::Task
    }

    /// A note about the stage for operators, in the node's description. None by default. What only the start of a
    /// worker finds is a note [of the worker](crate::Replica::leave_note).
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// See [`note`](Self::note).
    #[must_use]
    pub fn with_note(mut self, note: &str) -> Self {
        self.note = Some(note.into());
        self
    }

    /// For tests whose clock may be paused: no code of the stage moves to a thread because it takes long, and the clock
    /// does not advance while a thread of the stage works.
    #[must_use]
    pub(crate) fn with_virtual_time(mut self) -> Self {
        self.has_virtual_time = true;
        self
    }

    pub(crate) fn has_virtual_time(&self) -> bool {
        self.has_virtual_time
    }
}

/// Settings that are read and set as they are: each with a getter, which has its documentation, and a setter.
macro_rules! settings {
    ($($(#[$documentation:meta])* $name:ident, $with:ident($argument:ident: $type:ty);)*) => {
        impl StageSettings {
            $(
                $(#[$documentation])*
                #[must_use]
                pub fn $name(&self) -> $type {
                    self.$name
                }

                #[doc = concat!("See [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                #[must_use]
                pub fn $with(mut self, $argument: $type) -> Self {
                    self.$name = $argument;
                    self
                }
            )*
        }
    };
}

settings! {
    /// The bytes of memory that all replicas take together while the stage is loaded. Default 0: unknown. They count
    /// against [`Limits::max_loaded_bytes`](crate::Limits::max_loaded_bytes).
    memory, with_memory(bytes: u64);

    /// How many entries may wait. Default [`DEFAULT_QUEUE_ENTRIES`](Self::DEFAULT_QUEUE_ENTRIES). One more is refused
    /// with `Overloaded` and a `retry_after` from the measured drain rate. Longer queues only help bursts; under
    /// lasting overload they turn into latency, up to the callers' deadlines.
    queue, with_queue(queue: NonZeroUsize);

    /// The place where the code runs.
    placement, with_placement(placement: Placement);

    /// The crash rate above which the stage is `Failed`.
    intensity, with_intensity(intensity: RestartIntensity);

    /// Whether a call may run again after its worker died. Default [`Contract::AtMostOnce`].
    contract, with_contract(contract: Contract);

    /// How often an entry that was alone in its batch when the worker died runs again, before it counts as poison and
    /// gets `WorkerFailed`. Default [`DEFAULT_CRASH_RETRIES`](Self::DEFAULT_CRASH_RETRIES). It has an effect only if
    /// the [`contract`](Self::contract) lets entries run again, and ends at the entry's deadline. A higher value helps
    /// against random crashes; each retry costs a restart of the worker for an input that always kills it.
    crash_retries, with_crash_retries(retries: u32);

    /// How many of this stage's threads may hang in user code at a time. Default
    /// [`DEFAULT_MAX_ABANDONED_THREADS`](Self::DEFAULT_MAX_ABANDONED_THREADS). One more makes the stage `Failed`: code
    /// that hangs on every call must not exhaust the machine. A thread that returns no longer counts. Pairs with
    /// [`timeout`](Self::timeout).
    max_abandoned_threads, with_max_abandoned_threads(threads: usize);

    /// How long a worker may take to finish its batch and clean up when its stage ends. Default
    /// [`DEFAULT_STOP_TIMEOUT`](Self::DEFAULT_STOP_TIMEOUT). Then it is ended, or its thread is abandoned. At a
    /// shutdown the rest of the node's drain counts if it is shorter.
    stop_timeout, with_stop_timeout(timeout: Duration);

    /// How many batches one asynchronous replica runs at once. Default
    /// [`DEFAULT_CONCURRENCY`](Self::DEFAULT_CONCURRENCY). Other workers run one batch at a time: give them replicas
    /// instead.
    concurrency, with_concurrency(batches: NonZeroU32);

    /// Whether an asynchronous replica gets one batch more than [`concurrency`](Self::concurrency), so that it has the
    /// next batch when one ends. Default false. Only a full batch is handed over ahead, because it cannot grow any
    /// more; only when as many full batches wait as the stage has replicas, so that another replica that becomes free
    /// first finds entries; and only if its deadlines leave time for the batch that runs. Its worker tells by
    /// [`Turn`](crate::Turn) when the batch begins: until then it goes back to the queue if the worker ends. Cost: an
    /// urgent entry does not overtake it any more.
    hands_ahead, with_hands_ahead(hands_ahead: bool);

    /// How many outputs of one streaming call may wait for their reader. Default
    /// [`DEFAULT_CREDIT`](Self::DEFAULT_CREDIT). At this count the call's stream pauses until one is read. A higher
    /// value hides the pauses of readers on slow networks; it costs memory for the outputs, and wasted work when a
    /// reader leaves.
    credit, with_credit(outputs: NonZeroUsize);

    /// The revision of the stage, for nodes that split their calls between revisions by weight. Default 0. It has no
    /// effect on this node, where a name stands for one stage.
    revision, with_revision(revision: u64);
}
