//! The task of one active key: load, messages, saves, end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, EnvelopeDecoder};
use tracing::{Instrument, Span, info_span};

use super::Keyed;
use super::context::KeyContext;
use super::fence_check::is_fenced_off;
use super::kind::{ActivePlace, Kind, ended};
use super::letter::Delivery;
use super::shards::{Slot, SlotOrder};
use super::spec::SavePolicy;
use super::store::{Fence, StateKey, StoreError};
use super::stored::Stored;
use super::timers::KeyTimers;
use super::write::{Doubt, SaveError, Saved, Write, put, write_of};
use crate::call::CallOptions;
use crate::clock::{self, Instant};
use crate::containment::{contain, contain_future, drop_contained};
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::metrics::{LoadResult, SaveResult};

/// How long an idle key waits after a save that failed.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// Runs until the key is passive. While its instance crashes or is fenced off, the next message makes the next one.
pub(super) async fn run<K: Keyed>(place: ActivePlace<K>) {
    let (kind, slot) = (&*place.kind, &*place.slot);
    loop {
        match slot.order() {
            SlotOrder::Stop => return,
            // Another claim from here would end the instance of the new owner.
            SlotOrder::Release => return slot.close(&moved()),
            SlotOrder::None | SlotOrder::Passivate => {}
        }
        match Live::load(kind, slot).await {
            Ok(mut live) => {
                kind.metrics.loads[LoadResult::Ok as usize].inc();
                if live.serve().await == End::Passive {
                    return;
                }
            }
            Err(reason) => {
                kind.metrics.loads[LoadResult::Failed as usize].inc();
                kind.log_key(|| {
                    let (kind, key) = (&*kind.name, &*slot.key);
                    tracing::warn!(parent: None, kind, key, reason, "a key could not be loaded");
                });
                slot.refuse_waiting(&AskError::Unreachable { reason });
            }
        }
        if slot.order() != SlotOrder::Release && slot.close_if_empty() {
            return;
        }
    }
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Saved, and its slot is closed.
    Passive,
    /// Dropped, with what it has not saved.
    Dropped,
}

impl Saved {
    fn end(self) -> Option<End> {
        (self == Self::Removed).then_some(End::Dropped)
    }
}

/// A loaded instance.
struct Live<'a, K: Keyed> {
    kind: &'a Kind<K>,
    slot: &'a Slot<K>,
    /// `None` once it is dropped.
    instance: Option<K>,
    context: KeyContext,
    fence: Fence,
    /// What a write may have done whose outcome is not known.
    doubt: Doubt,
    /// When its relaxed changes are saved.
    save_at: Option<Instant>,
    idle_at: Instant,
    /// The last message was that of a timer.
    was_timer: bool,
}

impl<K: Keyed> Drop for Live<'_, K> {
    fn drop(&mut self) {
        drop_contained(self.instance.take());
        self.context.timers.end();
    }
}

impl<'a, K: Keyed> Live<'a, K> {
    /// Claims the key, and makes an instance of its state; else says why not.
    async fn load(kind: &'a Kind<K>, slot: &'a Slot<K>) -> Result<Self, String> {
        let node = kind.node.upgrade().ok_or("the node has ended")?;
        let now = clock::now();
        let deadline = Deadline::after(now, kind.settings.load_within);
        let loading = async {
            let state_key = StateKey { kind: &kind.name, key: &slot.key };
            kind.take_over(&slot.key).await;
            let owner = kind.owner();
            let record = kind.store.claim(state_key, &owner).await.map_err(|error| error.to_string())?;
            let context = KeyContext {
                kind: Arc::clone(&kind.name),
                key: Arc::clone(&slot.key),
                epoch: record.epoch,
                deadline,
                options: CallOptions::new(),
                timers: KeyTimers::new(Arc::clone(&kind.questions), Arc::clone(&slot.wake)),
                node,
            };
            let (fence, is_new) = (Fence { epoch: record.epoch, version: record.version }, record.state.is_none());
            let stored = contain(|| stored_of::<K>(record.state)).map_err(|words| words.to_string())??;
            let loading = async { (kind.load)(context.clone(), stored).await };
            let loaded = contain_future(loading.instrument(span(&context))).await;
            let loaded = loaded.map_err(|words| format!("the load hook panicked: {words}"));
            match loaded.and_then(|loaded| loaded.map_err(|failure| format!("the load hook failed: {failure}"))) {
                Ok(instance) => Ok::<_, String>((instance, context, fence)),
                Err(reason) => {
                    // A key that the hook does not admit leaves no record behind. An error leaves one that a later
                    // instance claims.
                    if is_new {
                        let _ = kind.store.remove(state_key, fence).await;
                    }
                    Err(reason)
                }
            }
        };
        let loaded = tokio::time::timeout_at(deadline.instant(), loading).await;
        let (instance, context, fence) = loaded
            .map_err(|_| format!("the load took longer than {:?} (load_within)", kind.settings.load_within))??;
        let idle_at = clock::now() + kind.settings.idle_after;
        Ok(Self {
            kind,
            slot,
            instance: Some(instance),
            context,
            fence,
            doubt: Doubt::None,
            save_at: None,
            idle_at,
            was_timer: false,
        })
    }

    async fn serve(&mut self) -> End {
        loop {
            // Boxed to keep this future small, as the save is.
            if self.kind.fence_checks.are_possible()
                && self.slot.take_fence_check()
                && Box::pin(is_fenced_off(self.kind, self.slot, self.fence.epoch, self.doubt)).await
            {
                self.say(&SaveError::Store(StoreError::Conflict));
                return End::Dropped;
            }
            let end = match self.slot.order() {
                SlotOrder::Stop => return self.leave(&ended()).await,
                SlotOrder::Release => return self.leave(&moved()).await,
                SlotOrder::None | SlotOrder::Passivate => match self.next_message() {
                    Some(delivery) => {
                        self.slot.take_back_passivation();
                        self.handle(*delivery).await
                    }
                    None => self.rest().await,
                },
            };
            if let Some(end) = end {
                return end;
            }
            // Also between messages that follow each other without a pause.
            if self.save_at.is_some_and(|at| at <= clock::now())
                && let Some(end) = self.save_relaxed().await
            {
                return end;
            }
        }
    }

    /// The next message: of the mailbox and of timers that are due in turns, so that neither waits for all of the
    /// other.
    fn next_message(&mut self) -> Option<Box<Delivery<K>>> {
        let next = if self.was_timer { self.slot.next() } else { None };
        let due = if next.is_none() { self.due() } else { None };
        self.was_timer = due.is_some();
        next.or(due).or_else(|| self.slot.next())
    }

    /// The message of a timer that is due.
    fn due(&self) -> Option<Box<Delivery<K>>> {
        let now = clock::now();
        let (question, payload) = self.context.timers.take_due(now)?;
        let handler = Arc::clone(self.kind.handlers.get(question)?);
        let deadline = Deadline::after(now, self.kind.settings.handle_within);
        Some(Box::new(Delivery::of_timer(payload, handler, deadline)))
    }

    /// Waits for a message, an order, a timer, the next save, or the end of its time. A key with a timer is not idle.
    async fn rest(&mut self) -> Option<End> {
        let timer = self.context.timers.next();
        let idle_at = timer.unwrap_or(self.idle_at);
        if self.slot.order() == SlotOrder::Passivate || timer.is_none() && idle_at <= clock::now() {
            return self.passivate().await;
        }
        let until = self.save_at.map_or(idle_at, |at| at.min(idle_at));
        // Ready or not, the next turn looks.
        let _ = tokio::time::timeout_at(until, self.slot.wake.notified()).await;
        None
    }

    async fn handle(&mut self, mut delivery: Delivery<K>) -> Option<End> {
        let question = delivery.open(clock::now())?;
        self.context.deadline = delivery.deadline;
        self.context.options = std::mem::take(&mut delivery.options);
        let handler = Arc::clone(&delivery.handler);
        let span = span(&self.context);
        let instance = self.instance.as_mut()?;
        let handling = async { handler(question, instance, &self.context).await };
        let handling = contain_future(handling.instrument(span));
        let handled = tokio::time::timeout(self.kind.settings.handle_within, handling).await;
        // What the call holds of its node's budget goes with it, and not with the key.
        self.context.options = CallOptions::new();
        self.idle_at = clock::now() + self.kind.settings.idle_after;
        let answer = match handled {
            Ok(Ok(answer)) => answer,
            Ok(Err(words)) => return Some(self.crashed(delivery, format!("panicked: {words}"))),
            Err(_) => {
                let limit = self.kind.settings.handle_within;
                return Some(self.crashed(delivery, format!("took longer than {limit:?} (handle_within)")));
            }
        };
        let has_changed = self.instance.as_mut().map(|instance| contain(|| instance.stored().has_changed()));
        let end = match (has_changed, self.kind.settings.save) {
            (Some(Err(words)), _) => return Some(self.crashed(delivery, format!("panicked: {words}"))),
            (Some(Ok(true)), SavePolicy::Durable) => match self.save().await {
                Ok(saved) => saved.end(),
                Err(error) => {
                    self.say(&error);
                    delivery.refuse(error.for_asker());
                    return Some(End::Dropped);
                }
            },
            (Some(Ok(true)), SavePolicy::Relaxed { every }) => {
                self.save_at.get_or_insert_with(|| clock::now() + every);
                None
            }
            (Some(Ok(false)) | None, _) => None,
        };
        if let Some(port) = delivery.port {
            let _ = port.send(answer.map_err(AskError::Failed));
        }
        end
    }

    /// The message in hand fails, with the instance.
    fn crashed(&mut self, delivery: Delivery<K>, reason: String) -> End {
        let actor = format!("{}/{}", self.context.kind, self.context.key);
        self.kind.log_key(|| {
            tracing::warn!(parent: None, actor, reason, "a keyed actor crashed, and is loaded again");
        });
        drop_contained(self.instance.take());
        self.kind.metrics.crashes.inc();
        self.kind.status().crashed(format!("{actor}: {reason}"));
        delivery.refuse(AskError::Crashed { actor, reason });
        End::Dropped
    }

    /// Saves what has changed, or removes what was forgotten.
    async fn save(&mut self) -> Result<Saved, SaveError> {
        self.save_at = None;
        let Some(instance) = &mut self.instance else { return Ok(Saved::Kept) };
        let write = contain(|| write_of(instance.stored()));
        let write = write.map_err(|words| SaveError::NotEncoded(format!("panicked: {words}")))?;
        let Some(write) = write.map_err(SaveError::NotEncoded)? else { return Ok(Saved::Kept) };
        let most = self.kind.settings.max_state_bytes;
        if let Write::Save(state) = &write
            && state.len() > most
        {
            return Err(SaveError::TooLarge { bytes: state.len(), most });
        }
        let saved = self.write(write).await?;
        self.kind.metrics.saves[SaveResult::Ok as usize].inc();
        if saved == Saved::Kept
            && let Some(instance) = &mut self.instance
        {
            contain(|| instance.stored().set_saved()).map_err(|words| SaveError::NotEncoded(words.to_string()))?;
        }
        Ok(saved)
    }

    async fn write(&mut self, write: Write) -> Result<Saved, SaveError> {
        let within = self.kind.settings.save_within;
        let doubt = write.doubt();
        // Boxed: the task of an active key is kept small.
        let writing = Box::pin(put(self.kind, self.slot, &mut self.fence, &mut self.doubt, write));
        let saved = tokio::time::timeout(within, writing).await;
        let saved = saved.map_err(|_| SaveError::Late { within }).and_then(|saved| saved.map_err(SaveError::Store));
        // An earlier doubt stays until an outcome is known.
        self.doubt = if saved.as_ref().is_err_and(SaveError::may_pass) { self.doubt.max(doubt) } else { Doubt::None };
        self.context.epoch = self.fence.epoch;
        saved
    }

    async fn save_relaxed(&mut self) -> Option<End> {
        let SavePolicy::Relaxed { every } = self.kind.settings.save else { return None };
        let error = match self.save().await {
            Ok(saved) => return saved.end(),
            Err(error) => error,
        };
        self.say(&error);
        if error.may_pass() {
            self.save_at = Some(clock::now() + every.max(SAVE_AGAIN));
            return None;
        }
        Some(End::Dropped)
    }

    /// Saves and ends, unless a message has arrived.
    async fn passivate(&mut self) -> Option<End> {
        let mut saved = match self.save().await {
            Ok(saved) => saved,
            Err(error) => {
                self.say(&error);
                if !error.may_pass() {
                    return Some(End::Dropped);
                }
                self.slot.take_back_passivation();
                (self.save_at, self.idle_at) = (None, clock::now() + SAVE_AGAIN);
                return None;
            }
        };
        if saved == Saved::Kept && self.remove_if_new().await {
            saved = Saved::Removed;
        }
        if self.slot.close_if_empty() { Some(End::Passive) } else { saved.end() }
    }

    /// Saves and ends. The messages that wait get `error`.
    async fn leave(&mut self, error: &AskError) -> End {
        match self.save().await {
            Ok(Saved::Kept) => _ = self.remove_if_new().await,
            Ok(Saved::Removed) => {}
            Err(error) => self.say(&error),
        }
        self.slot.close(error);
        End::Passive
    }

    /// A key that was only asked leaves no record behind. Whether it was one; if its removal fails, a later instance
    /// claims the record.
    async fn remove_if_new(&mut self) -> bool {
        let is_new = self.instance.as_mut().map(|instance| contain(|| instance.stored().is_new()));
        if !matches!(is_new, Some(Ok(true))) {
            return false;
        }
        let _ = self.write(Write::Remove).await;
        true
    }

    /// Counts and logs a failed save.
    fn say(&self, error: &SaveError) {
        let (kind, key) = (&*self.kind.name, &*self.slot.key);
        let is_conflict = matches!(error, SaveError::Store(StoreError::Conflict));
        let result = if is_conflict { SaveResult::Conflict } else { SaveResult::Failed };
        self.kind.metrics.saves[result as usize].inc();
        self.kind.log_key(|| match error {
            SaveError::Store(StoreError::Conflict) => {
                tracing::warn!(parent: None, kind, key, "a later instance has claimed the key: this one is fenced off and ends");
            }
            error => tracing::warn!(parent: None, kind, key, %error, "the state of a key was not saved"),
        });
    }
}

pub(super) fn moved() -> AskError {
    AskError::Moved { node: String::new() }
}

fn span(context: &KeyContext) -> Span {
    info_span!(target: "callboard::actor", parent: None, "keyed", kind = context.kind(), key = context.key())
}

fn stored_of<K: Keyed>(state: Option<Bytes>) -> Result<Stored<K::State>, String> {
    let Some(state) = state else { return Ok(Stored::fresh(K::State::default())) };
    // What was saved must be readable, whatever its shape. Nothing in it is compressed; a store that others can write
    // might have a part that is, and that unpacks to gigabytes.
    let limits = DecodeLimits { max_bytes: state.len(), max_decompressed_bytes: 0, ..DecodeLimits::UNLIMITED };
    let mut decoder = EnvelopeDecoder::new(&limits);
    let read = decoder.push(state).and_then(|()| decoder.finish_as::<K::State>());
    read.map(Stored::loaded).map_err(|error| format!("the saved state cannot be read: {error}"))
}
