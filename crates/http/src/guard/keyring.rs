//! The current keys, and the usage of each key.
//!
//! Keys of a file are **reloaded** when it changes. Requests in progress continue; a stream of calls keeps the limit of
//! its key. If a new file **cannot be used**, the log says so once and the old keys stay, so that a mistake neither
//! locks clients out nor lets them in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use callboard_core::CallOptions;

use super::api_keys::{ApiKeys, ApiKeysError};
use super::auth::AuthCaller;
use super::rate_limit::{Limiter, RateLimit};
use crate::error::{ApiError, RateLeft};
use crate::runtime::file_watch;

/// The keys of an edge. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Keyring(Arc<KeyringState>);

#[derive(Debug)]
struct KeyringState {
    current: ArcSwap<KeySet>,
    /// The limit of keys without their own.
    limit: Option<RateLimit>,
    reload_interval: Duration,
}

/// One version of the keys.
#[derive(Debug)]
struct KeySet {
    keys: ApiKeys,
    limiters: Box<[Option<Arc<Limiter>>]>,
}

impl Keyring {
    pub(super) fn new(keys: ApiKeys, limit: Option<RateLimit>, reload_interval: Duration) -> Self {
        let current = ArcSwap::from_pointee(KeySet::new(keys, limit, None));
        Self(Arc::new(KeyringState { current, limit, reload_interval }))
    }

    /// The owner of this key.
    pub(super) fn find(&self, key: &[u8]) -> Option<KeyHolder> {
        let ring = self.0.current.load();
        let index = ring.keys.find(key)?;
        Some(KeyHolder(Holder::Key { ring: Arc::clone(&ring), index }))
    }

    /// Watches the file and takes new keys; ends at once without a file. Drop it with the listener.
    pub(super) async fn watch_file(self) {
        let Some(file) = self.0.current.load().keys.file().map(ToOwned::to_owned) else { return };
        let read = move || ApiKeys::read(&file);
        let ring = self.clone();
        file_watch::watch(self.0.reload_interval, read, fingerprint, move |keys| ring.take(keys)).await;
    }

    fn take(&self, outcome: Result<ApiKeys, ApiKeysError>) {
        let previous = self.0.current.load();
        match outcome {
            Ok(keys) if keys == previous.keys => {}
            Ok(keys) => {
                let count = keys.len();
                self.0.current.store(Arc::new(KeySet::new(keys, self.0.limit, Some(&previous))));
                tracing::info!(keys = count, "api keys read");
            }
            Err(error) => tracing::warn!(%error, "the new api keys cannot be used, the old ones are kept"),
        }
    }
}

impl KeySet {
    /// A key keeps its count if its name and limit are unchanged.
    fn new(keys: ApiKeys, limit: Option<RateLimit>, previous: Option<&Self>) -> Self {
        let used = |index: usize, limit: RateLimit| {
            let previous = previous?;
            let limiter = previous.limiters[previous.keys.named(keys.name(index))?].as_ref()?;
            (limiter.limit() == limit).then(|| Arc::clone(limiter))
        };
        let limiter = |(index, own): (usize, Option<RateLimit>)| {
            let limit = own.or(limit)?;
            Some(used(index, limit).unwrap_or_else(|| Arc::new(Limiter::new(limit))))
        };
        let limiters = keys.limits().enumerate().map(limiter).collect();
        Self { keys, limiters }
    }
}

/// The owner of a key, or the caller that a function of the app has named.
#[derive(Clone, Debug)]
pub struct KeyHolder(Holder);

#[derive(Clone, Debug)]
enum Holder {
    Key { ring: Arc<KeySet>, index: usize },
    Caller { caller: Arc<AuthCaller>, limiter: Option<Arc<Limiter>> },
}

impl KeyHolder {
    pub(super) fn of_caller(caller: AuthCaller, limiter: Option<Arc<Limiter>>) -> Self {
        Self(Holder::Caller { caller: Arc::new(caller), limiter })
    }

    /// The name of the key or caller. The key itself is not known here.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Holder::Key { ring, index } => ring.keys.name(*index),
            Holder::Caller { caller, .. } => &caller.name,
        }
    }

    /// These options of a call, with what is known of its caller.
    pub(crate) fn add_to(&self, options: CallOptions) -> CallOptions {
        match &self.0 {
            Holder::Key { .. } => options.with_caller(self.name()),
            Holder::Caller { caller, .. } => caller.add_to(options),
        }
    }

    fn limiter(&self) -> Option<&Limiter> {
        match &self.0 {
            Holder::Key { ring, index } => ring.limiters.get(*index)?.as_deref(),
            Holder::Caller { limiter, .. } => limiter.as_deref(),
        }
    }

    /// How far it is from its limit, if it has one.
    #[must_use]
    pub fn rate_left(&self) -> Option<RateLeft> {
        self.limiter().map(Limiter::left)
    }

    /// Counts these calls, all or none.
    ///
    /// # Errors
    ///
    /// [`OverLimit`]: nothing is counted.
    pub fn take(&self, calls: usize) -> Result<(), OverLimit> {
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let Some((limiter, count)) = self.limiter().zip(NonZeroU32::new(calls)) else { return Ok(()) };
        let (name, limit) = (self.name(), limiter.limit());
        let (wait, error) = match limiter.take(count) {
            Some(Ok(())) => return Ok(()),
            Some(Err(wait)) => (Some(wait), ApiError::rate_limited(name, limit, wait)),
            None => (None, ApiError::beyond_rate(name, limit, calls)),
        };
        Err(OverLimit { wait, error: error.with_rate_left(limiter.left()) })
    }
}

/// A key is over its limit.
#[derive(Debug)]
pub struct OverLimit {
    /// The time until the calls are allowed; `None` if the limit never allows this many at once.
    pub wait: Option<Duration>,
    /// The response.
    pub error: ApiError,
}

/// Identifies a reading.
fn fingerprint(outcome: &Result<ApiKeys, ApiKeysError>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match outcome {
        Ok(keys) => keys.hash(&mut hasher),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    hasher.finish()
}
