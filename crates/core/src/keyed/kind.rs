//! A running kind: the way of a message to its key, and the places of active keys.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Keyed;
use super::fence_check::FenceChecks;
use super::handover::GivenKeys;
use super::instance::{self, moved};
use super::letter::{Delivery, Handler, Letter};
use super::placement;
use super::shards::{Put, Shards, Slot, SlotOrder};
use super::spec::{KeyedSettings, KeyedSpec, LoadHook};
use super::store::StateStore;
use crate::actor::{ActorState, ActorStatus, AnswerFuture, QuestionForm, QuestionOrder};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::host::HostNode;
use crate::log_limit::{LogRate, SharedLogLimit};
use crate::metrics::{KeyedMetrics, SharedMetrics};
use crate::remote::Cluster;

/// The longest key.
pub(super) const MAX_KEY_BYTES: usize = 512;

/// How often a message looks for an idle key whose place it can have.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a kind has of its node.
#[derive(Clone)]
pub(crate) struct KindNode {
    pub(crate) node: Weak<dyn HostNode>,
    pub(crate) cluster: Cluster,
    pub(crate) metrics: SharedMetrics,
}

/// A running kind.
pub(super) struct Kind<K: Keyed> {
    pub(super) name: Arc<str>,
    pub(super) settings: KeyedSettings,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) load: Box<LoadHook<K>>,
    pub(super) handlers: BTreeMap<&'static str, Arc<Handler<K>>>,
    /// Their names.
    pub(super) questions: Arc<[&'static str]>,
    shards: Shards<K>,
    pub(super) given: GivenKeys,
    pub(super) fence_checks: FenceChecks,
    /// The places of active keys.
    active: Arc<Semaphore>,
    /// No search for an idle key before, because the last one found none.
    next_search: Mutex<Option<Instant>>,
    /// Its mailbox is the messages that wait for all keys.
    status: Arc<ActorStatus>,
    pub(super) metrics: KeyedMetrics,
    /// Of the lines about single keys.
    log: SharedLogLimit,
    pub(super) node: Weak<dyn HostNode>,
    pub(super) cluster: Cluster,
    runtime: Handle,
}

/// The place of an active key, which ends with its task.
pub(super) struct ActivePlace<K: Keyed> {
    pub(super) kind: Arc<Kind<K>>,
    pub(super) slot: Arc<Slot<K>>,
    _place: OwnedSemaphorePermit,
}

impl<K: Keyed> Drop for ActivePlace<K> {
    fn drop(&mut self) {
        self.slot.close(&ended());
        self.kind.shards.remove(&self.slot);
    }
}

/// The error of a message that a node does not handle any more.
pub(super) fn ended() -> AskError {
    AskError::Unreachable { reason: "the node is ending".to_owned() }
}

impl<K: Keyed> Kind<K> {
    pub(super) fn new(spec: KeyedSpec<K>, node: KindNode) -> Self {
        let KindNode { node, cluster, metrics } = node;
        let KeyedSpec { name, settings, store, load, handlers, .. } = spec;
        let status = ActorStatus::new(&placement::published_name(&name), settings.max_waiting);
        status.enter(ActorState::Up, clock::now(), None);
        Self {
            active: Arc::new(Semaphore::new(settings.max_active)),
            next_search: Mutex::default(),
            status: Arc::new(status),
            shards: Shards::new(),
            given: GivenKeys::default(),
            fence_checks: FenceChecks::default(),
            runtime: Handle::current(),
            metrics: metrics.keyed(&name),
            log: SharedLogLimit::new(LogRate::FAULTS),
            name,
            settings,
            store,
            load,
            questions: handlers.keys().copied().collect(),
            handlers,
            node,
            cluster,
        }
    }

    /// The name under which it claims its keys, for people.
    pub(super) fn owner(&self) -> String {
        let actors = self.cluster.actors();
        let name = actors.and_then(|actors| actors.this_node()).map(|name| name.to_string());
        name.unwrap_or_else(|| format!("process {}", std::process::id()))
    }

    pub(super) fn status(&self) -> &Arc<ActorStatus> {
        &self.status
    }

    /// Logs a line about one key, unless the kind has written many lately.
    pub(super) fn log_key(&self, line: impl FnOnce()) {
        let tell = |left_out| {
            tracing::warn!(parent: None, kind = &*self.name, left_out, "lines about its keys were left out");
        };
        if self.log.admits(0, tell) {
            line();
        }
    }

    /// Gives an active key an order. False if it is not active.
    pub(super) fn end_key(&self, key: &str, order: SlotOrder) -> bool {
        self.shards.find(key).inspect(|slot| slot.give(order)).is_some()
    }

    /// Brings a letter to the instance of its key. The answer of a message that is told is that it waits there.
    pub(super) fn send(
        self: Arc<Self>,
        question: &str,
        letter: Arc<Letter>,
        form: QuestionForm,
        order: QuestionOrder,
    ) -> AnswerFuture {
        let handler = self.handlers.get(question).cloned().ok_or_else(|| AskError::NotAccepted {
            reason: format!("keyed actors `{}` accept no `{question}`", self.name),
        });
        Box::pin(async move {
            let is_of_other_node = order.asked_by.is_some();
            match self.deliver(handler?, letter, form, order).await {
                // It ends, and was not handled: the other node knows who has the key now.
                Err(AskError::Unreachable { .. }) if is_of_other_node && self.shards.is_over() => Err(moved()),
                answer => answer,
            }
        })
    }

    async fn deliver(
        self: &Arc<Self>,
        handler: Arc<Handler<K>>,
        letter: Arc<Letter>,
        form: QuestionForm,
        order: QuestionOrder,
    ) -> Result<Payload, AskError> {
        let QuestionOrder { deadline, options, place, key, .. } = order;
        let key = key.ok_or_else(|| self.no_key())?;
        check_key(&key)?;
        let place = place.map_or_else(|| self.status.reserve(), Ok)?;
        if form == QuestionForm::Tell {
            let delivery = Delivery::new(letter, handler, None, deadline, options, place);
            self.put(key, Box::new(delivery), deadline).await?;
            return Ok(Payload::new(()));
        }
        let (port, answer) = oneshot::channel();
        let delivery = Delivery::new(Arc::clone(&letter), handler, Some(port), deadline, options, place);
        self.put(key, Box::new(delivery), deadline).await?;
        match tokio::time::timeout_at(deadline.instant(), answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) if letter.take().is_none() => Err(AskError::Lost),
            // It waited too long, or the task of the key was ended.
            Ok(Err(_)) if deadline.is_expired(clock::now()) => Err(AskError::DeadlineExceeded { taken: false }),
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(AskError::DeadlineExceeded { taken: letter.take().is_none() }),
        }
    }

    fn no_key(&self) -> AskError {
        AskError::NotAccepted { reason: format!("a question to the keyed actors `{}` needs a key", self.name) }
    }

    async fn put(
        self: &Arc<Self>,
        key: Arc<str>,
        delivery: Box<Delivery<K>>,
        deadline: Deadline,
    ) -> Result<(), AskError> {
        let mailbox = self.settings.mailbox;
        let delivery = match self.shards.put(&key, delivery, mailbox, clock::now()) {
            Put::Done => return Ok(()),
            Put::Full => return Err(self.full()),
            Put::Passive(delivery) => delivery,
            Put::New(_) => return Err(ended()),
        };
        if let Some(node) = self.given_to(&key) {
            return Err(AskError::Moved { node: node.to_string() });
        }
        let place = self.active_place(&key, deadline).await?;
        match self.shards.put_or_add(key, delivery, mailbox, clock::now()) {
            Put::Done => Ok(()),
            Put::Full => Err(self.full()),
            Put::Passive(_) => Err(ended()),
            Put::New(slot) => {
                // Another node may have asked for the key since the last look, and found it passive.
                if self.given_to(&slot.key).is_some() {
                    slot.give(SlotOrder::Release);
                }
                let active = ActivePlace { kind: Arc::clone(self), slot: Arc::clone(&slot), _place: place };
                slot.started(self.runtime.spawn(instance::run(active)).abort_handle());
                Ok(())
            }
        }
    }

    fn full(&self) -> AskError {
        self.status.refused();
        AskError::Full
    }

    /// A place among the active keys. If none is free, an idle key is asked to end: one for each message that waits.
    async fn active_place(&self, key: &str, deadline: Deadline) -> Result<OwnedSemaphorePermit, AskError> {
        let mut asked: Option<Arc<Slot<K>>> = None;
        loop {
            if self.shards.is_over() {
                return Err(ended());
            }
            if let Ok(place) = Arc::clone(&self.active).try_acquire_owned() {
                return Ok(place);
            }
            if !asked.as_ref().is_some_and(|slot| slot.is_ending()) {
                asked = self.passivate_one(key);
            }
            let until = deadline.instant().min(clock::now() + LOOK_EVERY);
            if let Ok(Ok(place)) = tokio::time::timeout_at(until, Arc::clone(&self.active).acquire_owned()).await {
                return Ok(place);
            }
            if deadline.is_expired(clock::now()) {
                let reason =
                    format!("all {} active keys of `{}` have work (max_active)", self.settings.max_active, self.name);
                return Err(AskError::Unreachable { reason });
            }
        }
    }

    /// Asks an idle key to end. One message searches at a time, and none soon after a search that found no key.
    fn passivate_one(&self, near: &str) -> Option<Arc<Slot<K>>> {
        let mut next = self.next_search.try_lock()?;
        let now = clock::now();
        if next.is_some_and(|at| now < at) {
            return None;
        }
        let found = self.shards.passivate_one(near);
        *next = found.is_none().then(|| now + LOOK_EVERY);
        found
    }
}

pub(super) fn check_key(key: &str) -> Result<(), AskError> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    Err(AskError::NotAccepted { reason: format!("the key has {} bytes, more than {MAX_KEY_BYTES}", key.len()) })
}

/// The future of a stop.
pub(crate) type StopFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A running kind without its type.
pub(crate) trait AnyKind: Send + Sync {
    /// Brings a letter to the instance of its key.
    fn send(
        self: Arc<Self>,
        question: &str,
        letter: Arc<Letter>,
        form: QuestionForm,
        order: QuestionOrder,
    ) -> AnswerFuture;

    /// Where its state is.
    fn store(&self) -> &Arc<dyn StateStore>;

    /// The count of active keys.
    fn active(&self) -> usize;

    /// Some of the active keys, in no order.
    fn active_keys(&self, at_most: usize) -> Vec<Arc<str>>;

    /// Asks a key to save and end. Whether it was active.
    fn end(&self, key: &str, order: SlotOrder) -> bool;

    /// Its state, for people. Its mailbox is the messages that wait for all keys, its restarts the crashes of keys.
    fn status(&self) -> &Arc<ActorStatus>;

    /// Sets what its series show of this moment.
    fn set_series(&self);

    /// Ends the keys that `is_here` denies, at most this number. False if there are more.
    fn move_away(&self, is_here: &dyn Fn(&str) -> bool, at_most: usize) -> bool;

    /// A node has come back that may have claimed keys of this node: each instance asks the store before its next
    /// message.
    fn check_fences(&self);

    /// Saves and ends all keys, within this time and the kind's own.
    fn stop(&self, within: Duration) -> StopFuture<'_>;

    /// Ends all keys at once.
    fn abort(&self);

    /// The count of keys of which it still holds something.
    #[cfg(test)]
    fn held(&self) -> usize;
}

impl<K: Keyed> AnyKind for Kind<K> {
    fn send(
        self: Arc<Self>,
        question: &str,
        letter: Arc<Letter>,
        form: QuestionForm,
        order: QuestionOrder,
    ) -> AnswerFuture {
        Self::send(self, question, letter, form, order)
    }

    fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    fn active(&self) -> usize {
        self.settings.max_active - self.active.available_permits()
    }

    fn active_keys(&self, at_most: usize) -> Vec<Arc<str>> {
        let mut keys = Vec::new();
        self.shards.for_each(|slot| {
            if keys.len() < at_most {
                keys.push(Arc::clone(&slot.key));
            }
        });
        keys
    }

    fn end(&self, key: &str, order: SlotOrder) -> bool {
        self.end_key(key, order)
    }

    fn status(&self) -> &Arc<ActorStatus> {
        &self.status
    }

    fn set_series(&self) {
        let KeyedMetrics { active, waiting, refused, .. } = &self.metrics;
        active.set(self.active() as i64);
        waiting.set(self.status.waiting() as i64);
        refused.inner().fetch_max(self.status.refusals(), Ordering::Relaxed);
    }

    fn move_away(&self, is_here: &dyn Fn(&str) -> bool, at_most: usize) -> bool {
        let mut moved = 0;
        self.shards.for_each(|slot| {
            if moved < at_most && slot.order() != SlotOrder::Release && !is_here(&slot.key) {
                moved += 1;
                slot.give(SlotOrder::Release);
            }
        });
        moved < at_most
    }

    fn check_fences(&self) {
        self.shards.for_each(|slot| slot.set_fence_check());
    }

    fn stop(&self, within: Duration) -> StopFuture<'_> {
        Box::pin(async move {
            self.shards.stop();
            let all = u32::try_from(self.settings.max_active).unwrap_or(u32::MAX);
            let within = within.min(self.settings.stop_within);
            let ended = tokio::time::timeout(within, self.active.acquire_many(all)).await;
            if ended.is_err() {
                let (count, kind) = (self.shards.abort(), &*self.name);
                tracing::error!(parent: None, kind, count, "keys were ended before they had saved (stop_within)");
            }
        })
    }

    fn abort(&self) {
        self.shards.abort();
    }

    #[cfg(test)]
    fn held(&self) -> usize {
        self.shards.held()
    }
}
