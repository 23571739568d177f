//! The keys that every kind of stage has, each in one declaration: its field, its form and limits, its default, and why
//! it does nothing on a remote stage. In the file they are next to the stage's `name` and `kind`.
//!
//! The reader of a file, the defaults, `--explain` and the lists of known keys follow from it. What a key does is
//! decided where an app is assembled.

use std::time::Duration;

use callboard_core::{BatchPolicy, Contract, Scaling, StageSettings};

use super::{CostUnit, OwnKey};
use crate::document::Section;
use crate::error::ConfigError;
use crate::form::{Bytes, Cores, Count, Flag, Form, OneOf, Optional, ReplicaBounds, Replicas, Span, Weights};
use crate::kind::StageKind;
use crate::setting::{HOUR, QUEUE_RANGE, SIZE_RANGE};
use crate::source::{Source, Sourced};

/// A key with the form of its value.
pub(crate) struct StageKey<F> {
    pub(crate) key: &'static str,
    form: F,
}

const BATCHES: Option<&str> = Some("the nodes that run it form its batches: set it there");
const WORKERS: Option<&str> = Some("its workers are on the nodes that run it: set it there");
const CACHES: Option<&str> = Some("the nodes that run it keep its answers: set it there");
const QUEUES: Option<&str> = Some("its calls wait on the nodes that run it: set it there");

/// Declares the keys, and the stage that has them.
macro_rules! stage_keys {
    ($($(#[doc = $doc:literal])+ $field:ident, $name:ident: $value:ty, by $form:ty = $limits:expr,
       default $default:expr, on_remote $without_effect:expr;)*) => {
        $(pub(crate) static $name: StageKey<$form> = StageKey { key: stringify!($field), form: $limits };)*

        /// `name`, `kind` and the keys, in the order of the documentation.
        pub(crate) const COMMON: [&str; 2 + [$(stringify!($field)),*].len()] =
            ["name", "kind", $(stringify!($field)),*];

        /// Why the key does nothing on a remote stage; `None` if it does something there, or is no common key.
        pub(crate) fn without_effect_on_remote(key: &str) -> Option<&'static str> {
            match key {
                $(stringify!($field) => $without_effect,)*
                _ => None,
            }
        }

        /// One stage.
        #[derive(Clone, Debug)]
        pub struct StagePlan {
            /// Its name, one per plan.
            pub name: Sourced<String>,
            /// Its kind, with the keys of that kind.
            pub kind: StageKind,
            /// The keys of its kind that were set, with their lines.
            pub own: Vec<OwnKey>,
            $($(#[doc = $doc])+ pub $field: Sourced<$value>,)*
        }

        impl StagePlan {
            /// A stage of this kind with default settings.
            pub(crate) fn new(name: Sourced<String>, kind: StageKind, queue: Sourced<usize>) -> Self {
                let by_kind = (kind.max_batch_size(), kind.contract());
                let mut stage = Self {
                    name,
                    kind,
                    own: Vec::new(),
                    $($field: Sourced::new($default, Source::Default),)*
                };
                (stage.max_batch_size.value, stage.contract.value) = by_kind;
                stage.queue = queue;
                stage
            }

            /// Takes the keys that are set.
            pub(super) fn read(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
                $(if let Some(value) = section.read($name.key, &$name.form)? {
                    self.$field = value;
                })*
                Ok(())
            }

            /// Key, value and source of each.
            pub(crate) fn rows(&self) -> Vec<(&'static str, String, &Source)> {
                vec![$(($name.key, $name.form.show(&self.$field.value), &self.$field.source),)*]
            }
        }
    };
}

stage_keys! {
    /// The largest batch. The default is the maximum of the kind: 1 for a model without a batch axis.
    max_batch_size, MAX_BATCH_SIZE: usize, by Count = Count(1..=65_536), default 1, on_remote BATCHES;
    /// The longest wait of a batch that is not full. A longer delay is a schedule, not batching.
    max_delay, MAX_DELAY: Duration, by Span = Span(Duration::ZERO..=Duration::from_secs(60)),
        default Duration::ZERO, on_remote BATCHES;
    /// The number of workers. Each is, as a rule, its own thread; replicas of a model share its weights.
    replicas, REPLICAS: Replicas, by ReplicaBounds = ReplicaBounds(1..=1024),
        default Replicas::fixed(1), on_remote WORKERS;
    /// How long the queue may take before a worker is added. Shorter than a batch of any model, a delay would say
    /// nothing about the load; a queue of a minute is an overload.
    scale_delay, SCALE_DELAY: Duration, by Span = Span(Duration::from_millis(1)..=Duration::from_secs(60)),
        default Scaling::DEFAULT_QUEUE_DELAY, on_remote WORKERS;
    /// How long the last worker stays without a call, if it may leave. Below a second a stage would load for nearly
    /// every call; after a week it is in use.
    idle, IDLE: Duration, by Span = Span(Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60)),
        default Scaling::DEFAULT_IDLE, on_remote WORKERS;
    /// Whether the stage always has a worker, and counts as loaded.
    pinned, PINNED: bool, by Flag = Flag, default false, on_remote WORKERS;
    /// The memory of the loaded stage; that of its model if `None`.
    memory, MEMORY: Option<u64>, by Optional<Bytes> = Optional(Bytes(SIZE_RANGE)), default None, on_remote WORKERS;
    /// The length of the queue. The default is that of the node.
    queue, QUEUE: usize, by Count = Count(QUEUE_RANGE), default StageSettings::DEFAULT_QUEUE_ENTRIES, on_remote QUEUES;
    /// Whether an entry may run again after its worker died. The default is that of the kind.
    contract, CONTRACT: Contract, by OneOf<Contract> = OneOf(&[
        (Contract::AtMostOnce.as_str(), Contract::AtMostOnce),
        (Contract::Idempotent.as_str(), Contract::Idempotent),
        (Contract::Pure.as_str(), Contract::Pure),
    ]), default Contract::default(),
        on_remote Some("the nodes that run it say whether it may be run again: set it there");
    /// How often an entry runs again that was alone when its worker died. Eleven crashes in a row are not chance.
    crash_retries, CRASH_RETRIES: usize, by Count = Count(0..=10),
        default StageSettings::DEFAULT_CRASH_RETRIES as usize, on_remote WORKERS;
    /// The wait after which an entry rises by one priority class. At 0 there would be no priority classes; beyond the
    /// longest call there is no ageing.
    ageing, AGEING: Duration, by Span = Span(Duration::from_millis(1)..=HOUR),
        default BatchPolicy::DEFAULT_AGEING, on_remote QUEUES;
    /// The revision of the stage on this node.
    revision, REVISION: usize, by Count = Count(0..=999_999), default 0,
        on_remote Some("the nodes that run it say which one they run; `split` divides its calls between them");
    /// The weights by which this node divides its calls between revisions; empty: no split. More revisions at once are
    /// not a roll-out; a share below a millionth is no share.
    split, SPLIT: Vec<(u64, u32)>, by Weights =
        Weights { revisions: 0..=999_999, weights: 0..=1_000_000, at_most: 16 }, default Vec::new(), on_remote None;
    /// The bytes of answers that it keeps. Below 64 KiB hardly an answer fits.
    cache, CACHE: Option<u64>, by Optional<Bytes> = Optional(Bytes(64 * 1024..=1 << 40)),
        default None, on_remote CACHES;
    /// Whether callers with different keys get each other's answers.
    cache_shared, CACHE_SHARED: bool, by Flag = Flag, default false, on_remote CACHES;
    /// The time limit of one batch in the stage's code. A batch that may take longer than any call has no bound.
    timeout, TIMEOUT: Option<Duration>, by Optional<Span> = Optional(Span(Duration::from_millis(1)..=HOUR)),
        default None, on_remote Some(
            "its code runs on other nodes: set it there, or the `timeout` of the route, which holds wherever its \
             stages run",
        );
    /// The most threads that may hang beyond that limit. With 0, the first call that hangs takes the stage out. More
    /// than a few hundred hanging threads are a leak.
    max_abandoned_threads, MAX_ABANDONED_THREADS: usize, by Count = Count(0..=256),
        default StageSettings::DEFAULT_MAX_ABANDONED_THREADS, on_remote WORKERS;
    /// The cores of each replica; empty for any. Linux can be built for 8,192 cores.
    affinity, AFFINITY: Vec<Vec<usize>>, by Cores = Cores(0..=8191), default Vec::new(), on_remote WORKERS;
    /// The cost of an entry.
    cost, COST: CostUnit, by OneOf<CostUnit> = OneOf(&[
        ("entries", CostUnit::Entries), ("rows", CostUnit::Rows), ("tokens", CostUnit::Tokens),
    ]), default CostUnit::default(), on_remote BATCHES;
    /// The largest cost of one batch.
    max_cost, MAX_COST: Option<usize>, by Optional<Count> = Optional(Count(1..=1_000_000_000)),
        default None, on_remote BATCHES;
}
