//! The answers that a pure stage keeps: by the content of their inputs, and one run for equal inputs of one priority at
//! the same time. A call never waits for one that stands behind it in the queue.
//!
//! * **Full:** the least used answers leave; see [`CacheSettings`].
//! * **Late:** a call that waits for the answer of another one ends by its own deadline.
//! * **Cancelled:** if the call that runs is cancelled, one that waits for its answer runs instead.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Payload, Value};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use sha2::{Digest, Sha256};

use super::handle::Pool;
use crate::call::{Flight, Priority};
use crate::clock::{self, Instant};
use crate::containment::{contain, drop_contained};
use crate::error::{CallError, ErrorKind, ErrorOrigin, RETRY_AFTER};
use crate::metrics::CacheUse;
use crate::offload::{CodecBudget, LARGE_BYTES};
use crate::queue::{EntryOutcome, EntryReply};
use crate::stage::CacheSettings;
use crate::timeline::Timing;

/// The memory of one answer beside its bytes: its key, and its place in the cache.
const ENTRY_BYTES: u64 = 128;

/// The size of an answer that the table is laid out for. Others only make it less exact.
const TYPICAL_BYTES: u64 = 1024;

/// What an answer is kept by: the hash of its caller's name and of its input.
type CacheKey = [u8; 32];

/// An encoded output. An error is never kept, only handed to the calls that wait for the same answer.
type Kept = Result<Bytes, CallError>;

/// The kept answers of one stage.
#[derive(Debug)]
pub(crate) struct ResponseCache {
    answers: Cache<CacheKey, Kept, ByBytes>,
    settings: CacheSettings,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<CacheKey, Kept> for ByBytes {
    fn weight(&self, _: &CacheKey, kept: &Kept) -> u64 {
        ENTRY_BYTES + kept.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }
}

impl ResponseCache {
    pub(crate) fn new(settings: CacheSettings) -> Self {
        let mut options = OptionsBuilder::new();
        // One shard: with several, each would have a part of the bytes.
        options.shards(1).weight_capacity(settings.bytes);
        options.estimated_items_capacity(usize::try_from(settings.bytes / TYPICAL_BYTES).unwrap_or(usize::MAX));
        let options = options.build().expect("all options are given");
        let (hashes, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { answers: Cache::with_options(options, ByBytes, hashes, lifecycle), settings }
    }

    /// The bytes of all kept answers.
    pub(crate) fn bytes(&self) -> u64 {
        self.answers.weight()
    }

    /// The largest output that is kept.
    fn largest(&self) -> usize {
        usize::try_from(self.settings.bytes / 8).unwrap_or(usize::MAX)
    }
}

impl Pool {
    /// Answers from the cache, or runs the stage. An input without an encoded form runs as without a cache, and so does
    /// a call with extensions, which cannot be compared.
    pub(super) async fn answer_cached(
        self: &Arc<Self>,
        cache: &ResponseCache,
        payload: Payload,
        flight: &Arc<Flight>,
        now: Instant,
    ) -> EntryOutcome {
        if flight.has_extensions() {
            return self.submit_uncached(payload, flight, now)?.await;
        }
        let caller = flight.caller().filter(|_| !cache.settings.is_shared).map(str::to_owned);
        let attributes = flight.attributes().map(|attributes| {
            let mut hash = Sha256::new();
            attributes.write(|bytes| hash.update(bytes));
            hash.finalize().into()
        });
        let input = payload.clone();
        let key = off_runtime(flight, payload.size_up_to(LARGE_BYTES), move || key(caller, attributes, &input));
        let Some(key) = key.await? else {
            return self.submit_uncached(payload, flight, now)?.await;
        };
        if let Some(kept) = cache.answers.get(&key) {
            return self.kept(payload, kept, flight, CacheUse::Hit).await;
        }
        let run = run_key(key, flight.priority);
        let guard = match cache.answers.get_value_or_guard_async(&run).await {
            Ok(kept) => return self.kept(payload, kept, flight, CacheUse::Collapsed).await,
            Err(guard) => guard,
        };
        // A run of this priority may have ended just before the guard was free.
        if run != key
            && let Some(kept) = cache.answers.get(&key)
        {
            return self.kept(payload, kept, flight, CacheUse::Hit).await;
        }
        self.tell_cached(flight, CacheUse::Miss);
        let choices = flight.choices();
        match self.submit_uncached(payload, flight, clock::now())?.await {
            Ok(reply) => {
                let (output, timing) = reply.into_parts();
                // A kept answer would lack the status and headers that its own code has chosen.
                if flight.choices() == choices
                    && output.size_up_to(LARGE_BYTES.max(cache.largest() + 1)) <= cache.largest()
                {
                    let shared = output.clone();
                    let encoded = off_runtime(flight, output.size_up_to(LARGE_BYTES), move || {
                        shared.encode(Format::Envelope).ok()
                    });
                    if let Ok(Some(bytes)) = encoded.await
                        && bytes.len() <= cache.largest()
                    {
                        if run != key {
                            cache.answers.insert(key, Ok(bytes.clone()));
                        }
                        let _unless_removed = guard.insert(Ok(bytes));
                        if run != key {
                            cache.answers.remove(&run);
                        }
                    }
                }
                Ok(EntryReply::new(output, timing))
            }
            Err(error) => {
                // An equal input would fail alike, and may cost another worker.
                if error.kind().row().origin == ErrorOrigin::Code || error.kind() == ErrorKind::InvalidInput {
                    let _unless_removed = guard.insert(Err(error.clone()));
                    cache.answers.remove(&run);
                }
                Err(error)
            }
        }
    }

    /// The outcome of a call whose stage does not run for it.
    async fn kept(&self, input: Payload, kept: Kept, flight: &Arc<Flight>, how: CacheUse) -> EntryOutcome {
        self.tell_cached(flight, how);
        drop_contained(input);
        let bytes = kept?;
        let decode = |bytes: Bytes| Value::decode(Format::Envelope, &bytes, &DecodeLimits::UNLIMITED).ok();
        let output = off_runtime(flight, bytes.len(), move || decode(bytes)).await?;
        let message = "a kept answer does not fit into the memory of its call";
        let output = output.ok_or_else(|| CallError::overloaded(message, RETRY_AFTER).at_stage(self.name()))?;
        Ok(EntryReply::new(Payload::new(output), Timing::default()))
    }

    fn tell_cached(&self, flight: &Flight, how: CacheUse) {
        self.metrics.cached(how);
        flight.set_cache_use(how);
    }
}

/// Runs the code of a user's type, on another thread if the type has many bytes.
async fn off_runtime<T: Send + 'static>(
    flight: &Arc<Flight>,
    bytes: usize,
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<Option<T>, CallError> {
    let work = move || contain(work).unwrap_or(None);
    match &flight.permit {
        Some(permit) if bytes >= LARGE_BYTES => {
            let budget = CodecBudget::new(permit.gateway().offload(), Arc::clone(permit) as Arc<_>, flight.deadline);
            Ok(budget.off_thread(Arc::clone(flight), work).await?.1)
        }
        _ => Ok(flight.charged(work)),
    }
}

/// The key of an input; `None` if it has no encoded form. Stages read the attributes of a call as they read its input.
fn key(caller: Option<String>, attributes: Option<CacheKey>, input: &Payload) -> Option<CacheKey> {
    // Equal values may have come in different encodings.
    let envelope = match input.value().ok()? {
        Some(value) => value.to_envelope().ok()?,
        None => input.to_envelope().ok()?,
    };
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(caller.unwrap_or_default()));
    hash.update(attributes.unwrap_or_default());
    envelope.parts().iter().for_each(|part| hash.update(part));
    Some(hash.finalize().into())
}

/// The key under which a run is waited for: of normal priority that of its answer.
fn run_key(mut key: CacheKey, priority: Priority) -> CacheKey {
    key[0] ^= match priority {
        Priority::Normal => 0,
        Priority::High => 1,
        Priority::Low => 2,
    };
    key
}
