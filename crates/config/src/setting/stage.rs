//! The settings of one stage. In the file they are next to its `name` and `kind`.

use callboard_core::Contract;

use super::super::form::{Bytes, Cores, Flag, OneOf, Optional, ReplicaBounds, Weights};
use super::super::stage::CostUnit;
use super::{Count, Duration, HOUR, QUEUE_RANGE, SIZE_RANGE, Span};

pub(crate) const MAX_BATCH_SIZE: &str = "max_batch_size";
pub(crate) const MAX_DELAY: &str = "max_delay";
pub(crate) const REPLICAS: &str = "replicas";
pub(crate) const SCALE_DELAY: &str = "scale_delay";
pub(crate) const IDLE: &str = "idle";
pub(crate) const PINNED: &str = "pinned";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const QUEUE: &str = "queue";
pub(crate) const CONTRACT: &str = "contract";
pub(crate) const CRASH_RETRIES: &str = "crash_retries";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const MAX_ABANDONED_THREADS: &str = "max_abandoned_threads";
pub(crate) const COST: &str = "cost";
pub(crate) const MAX_COST: &str = "max_cost";
pub(crate) const AGEING: &str = "ageing";
pub(crate) const AFFINITY: &str = "affinity";
pub(crate) const REVISION: &str = "revision";
pub(crate) const SPLIT: &str = "split";
pub(crate) const CACHE: &str = "cache";
pub(crate) const CACHE_SHARED: &str = "cache_shared";

pub(crate) static MAX_BATCH_SIZE_FORM: Count = Count(1..=65_536);
/// A longer delay is a schedule, not batching.
pub(crate) static MAX_DELAY_FORM: Span = Span(Duration::ZERO..=Duration::from_secs(60));
/// Each replica is a worker and, as a rule, its own thread; replicas of a model share its weights.
pub(crate) static REPLICAS_FORM: ReplicaBounds = ReplicaBounds(1..=1024);
/// Shorter than a batch of any model, a delay would say nothing about the load; a queue of a minute is an overload.
pub(crate) static SCALE_DELAY_FORM: Span = Span(Duration::from_millis(1)..=Duration::from_secs(60));
/// Below a second a stage would load for nearly every call; after a week it is in use.
pub(crate) static IDLE_FORM: Span = Span(Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60));
pub(crate) static PINNED_FORM: Flag = Flag;
pub(crate) static MEMORY_FORM: Optional<Bytes> = Optional(Bytes(SIZE_RANGE));
pub(crate) static QUEUE_FORM: Count = Count(QUEUE_RANGE);
pub(crate) static CONTRACT_FORM: OneOf<Contract> = OneOf(&[
    (Contract::AtMostOnce.as_str(), Contract::AtMostOnce),
    (Contract::Idempotent.as_str(), Contract::Idempotent),
    (Contract::Pure.as_str(), Contract::Pure),
]);
/// Eleven crashes in a row are not chance.
pub(crate) static CRASH_RETRIES_FORM: Count = Count(0..=10);
/// A batch that may take longer than any call has no bound.
pub(crate) static TIMEOUT_FORM: Optional<Span> = Optional(Span(Duration::from_millis(1)..=HOUR));
/// With 0, the first call that hangs takes the stage out. More than a few hundred hanging threads are a leak.
pub(crate) static MAX_ABANDONED_THREADS_FORM: Count = Count(0..=256);
pub(crate) static COST_FORM: OneOf<CostUnit> =
    OneOf(&[("entries", CostUnit::Entries), ("rows", CostUnit::Rows), ("tokens", CostUnit::Tokens)]);
pub(crate) static MAX_COST_FORM: Optional<Count> = Optional(Count(1..=1_000_000_000));
/// At 0 there would be no priority classes; beyond the longest call there is no ageing.
pub(crate) static AGEING_FORM: Span = Span(Duration::from_millis(1)..=HOUR);
/// The most cores that Linux can be built for.
pub(crate) static AFFINITY_FORM: Cores = Cores(0..=8191);
/// Below 64 KiB hardly an answer fits.
pub(crate) static CACHE_FORM: Optional<Bytes> = Optional(Bytes(64 * 1024..=1 << 40));
pub(crate) static CACHE_SHARED_FORM: Flag = Flag;
pub(crate) static REVISION_FORM: Count = Count(0..=999_999);
/// More revisions at once are not a roll-out; a share below a millionth is no share.
pub(crate) static SPLIT_FORM: Weights = Weights { revisions: 0..=999_999, weights: 0..=1_000_000, at_most: 16 };
