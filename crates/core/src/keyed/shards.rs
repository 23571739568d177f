//! The active keys of a kind, and the mailbox of each.
//!
//! A message finds its slot, or makes it, under the lock of one shard. A slot that ends is closed first and removed
//! then: a message that finds it closed makes the next one, so none is lost between two instances of a key.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::letter::Delivery;
use crate::call::SessionKey;
use crate::clock::Instant;
use crate::error::AskError;

/// Enough that 64 threads seldom meet.
const SHARDS: usize = 64;

/// The slots of one shard at which a search for an idle key looks.
const LOOKS: usize = 16;

/// What an instance is asked to do by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotOrder {
    None,
    /// Save and end, once no message waits: another key needs the place.
    Passivate,
    /// Save and end, and send waiting messages to the new owner.
    Release,
    /// Save and end: the node stops.
    Stop,
}

/// One active key.
pub(super) struct Slot<K> {
    pub(super) key: Arc<str>,
    mail: Mutex<Mail<K>>,
    /// Notified of a message, an order or a timer.
    pub(super) wake: Arc<Notify>,
    order: AtomicU8,
    /// Whether it had a message since the last search for an idle key.
    is_touched: AtomicBool,
    /// Whether the instance has to ask the store, before its next message, if a later one has claimed the key.
    needs_fence_check: AtomicBool,
    task: Mutex<SlotTask>,
}

/// The task of a slot.
#[derive(Debug)]
enum SlotTask {
    NotStarted,
    Started(AbortHandle),
    Aborted,
}

struct Mail<K> {
    // Boxed: an idle mailbox keeps the room of a few places.
    waiting: VecDeque<Box<Delivery<K>>>,
    is_closed: bool,
}

/// What became of a message.
pub(super) enum Put<K> {
    Done,
    /// The mailbox is full.
    Full,
    /// The key is not active.
    Passive(Box<Delivery<K>>),
    /// The key was not active. This is its slot, whose task is to be started.
    New(Arc<Slot<K>>),
}

impl<K> Slot<K> {
    pub(super) fn new(key: Arc<str>, first: Box<Delivery<K>>) -> Arc<Self> {
        Arc::new(Self {
            key,
            mail: Mutex::new(Mail { waiting: VecDeque::from([first]), is_closed: false }),
            wake: Arc::default(),
            order: AtomicU8::new(SlotOrder::None as u8),
            is_touched: AtomicBool::new(true),
            needs_fence_check: AtomicBool::new(false),
            task: Mutex::new(SlotTask::NotStarted),
        })
    }

    fn put(&self, delivery: Box<Delivery<K>>, mailbox: usize, now: Instant) -> Put<K> {
        {
            let mut mail = self.mail.lock();
            if mail.is_closed {
                return Put::Passive(delivery);
            }
            if mail.waiting.len() >= mailbox {
                // Those that nobody waits for have no place.
                mail.waiting.retain(|waiting| waiting.is_wanted(now));
                if mail.waiting.len() >= mailbox {
                    return Put::Full;
                }
            }
            mail.waiting.push_back(delivery);
        }
        self.is_touched.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        Put::Done
    }

    pub(super) fn next(&self) -> Option<Box<Delivery<K>>> {
        self.mail.lock().waiting.pop_front()
    }

    /// Closes it if no message waits.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut mail = self.mail.lock();
        mail.is_closed = mail.is_closed || mail.waiting.is_empty();
        mail.is_closed
    }

    /// Closes it. The messages that wait are not handled.
    pub(super) fn close(&self, error: &AskError) {
        let waiting = {
            let mut mail = self.mail.lock();
            mail.is_closed = true;
            std::mem::take(&mut mail.waiting)
        };
        waiting.into_iter().for_each(|delivery| delivery.refuse(error.clone()));
    }

    /// Fails the messages that wait. It stays open.
    pub(super) fn refuse_waiting(&self, error: &AskError) {
        let waiting = std::mem::take(&mut self.mail.lock().waiting);
        waiting.into_iter().for_each(|delivery| delivery.refuse(error.clone()));
    }

    pub(super) fn order(&self) -> SlotOrder {
        match self.order.load(Ordering::Acquire) {
            order if order == SlotOrder::Passivate as u8 => SlotOrder::Passivate,
            order if order == SlotOrder::Release as u8 => SlotOrder::Release,
            order if order == SlotOrder::Stop as u8 => SlotOrder::Stop,
            _ => SlotOrder::None,
        }
    }

    /// Whether it was asked to end, and still has its place.
    pub(super) fn is_ending(&self) -> bool {
        self.order() != SlotOrder::None && !self.mail.lock().is_closed
    }

    /// Gives an order. A later one is never weaker.
    pub(super) fn give(&self, order: SlotOrder) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// The fence has to be checked before the next message.
    pub(super) fn set_fence_check(&self) {
        self.needs_fence_check.store(true, Ordering::Release);
    }

    /// Whether the fence had to be checked.
    pub(super) fn take_fence_check(&self) -> bool {
        self.needs_fence_check.load(Ordering::Acquire) && self.needs_fence_check.swap(false, Ordering::AcqRel)
    }

    /// Its task has been started.
    pub(super) fn started(&self, handle: AbortHandle) {
        let mut task = self.task.lock();
        if matches!(*task, SlotTask::NotStarted) {
            *task = SlotTask::Started(handle);
            return;
        }
        drop(task);
        handle.abort();
    }

    /// Ends its task, also one that is still to be started.
    fn abort(&self) {
        let task = std::mem::replace(&mut *self.task.lock(), SlotTask::Aborted);
        if let SlotTask::Started(handle) = task {
            handle.abort();
        }
    }

    /// The key got a message after all.
    pub(super) fn take_back_passivation(&self) {
        let (from, to) = (SlotOrder::Passivate as u8, SlotOrder::None as u8);
        let _ = self.order.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// All active keys.
pub(super) struct Shards<K> {
    shards: Vec<Mutex<Shard<K>>>,
    is_over: AtomicBool,
}

struct Shard<K> {
    slots: HashMap<Arc<str>, Arc<Slot<K>>>,
    /// The slots in the order of the search for idle keys, with some that have ended.
    clock: VecDeque<Arc<Slot<K>>>,
}

impl<K> Shards<K> {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(Shard { slots: HashMap::new(), clock: VecDeque::new() });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), is_over: AtomicBool::new(false) }
    }

    fn position(key: &str) -> usize {
        // The remainder is below the number of shards.
        (SessionKey::new(key).number() % SHARDS as u64) as usize
    }

    /// The slot of an active key.
    pub(super) fn find(&self, key: &str) -> Option<Arc<Slot<K>>> {
        let found = self.shards[Self::position(key)].lock().slots.get(key).cloned();
        found.filter(|slot| !slot.mail.lock().is_closed)
    }

    /// Puts a message into the mailbox of its key, if that is active.
    pub(super) fn put(&self, key: &str, delivery: Box<Delivery<K>>, mailbox: usize, now: Instant) -> Put<K> {
        let found = self.shards[Self::position(key)].lock().slots.get(key).cloned();
        match found {
            Some(slot) => slot.put(delivery, mailbox, now),
            None => Put::Passive(delivery),
        }
    }

    /// The same, or makes its slot: `New`, or `Passive` once all is over. The caller starts the task without the lock of
    /// the shard: a runtime that has ended drops the task at once, which removes the slot.
    pub(super) fn put_or_add(&self, key: Arc<str>, delivery: Box<Delivery<K>>, mailbox: usize, now: Instant) -> Put<K> {
        let mut shard = self.shards[Self::position(&key)].lock();
        if self.is_over.load(Ordering::Acquire) {
            return Put::Passive(delivery);
        }
        let delivery = match shard.slots.get(&key) {
            None => delivery,
            Some(slot) => match slot.put(delivery, mailbox, now) {
                Put::Passive(delivery) => delivery,
                put => return put,
            },
        };
        let slot = Slot::new(Arc::clone(&key), delivery);
        shard.clock.push_back(Arc::clone(&slot));
        shard.slots.insert(key, Arc::clone(&slot));
        Put::New(slot)
    }

    /// Removes a slot that has ended.
    pub(super) fn remove(&self, slot: &Arc<Slot<K>>) {
        let mut shard = self.shards[Self::position(&slot.key)].lock();
        if shard.slots.get(&slot.key).is_some_and(|found| Arc::ptr_eq(found, slot)) {
            shard.slots.remove(&slot.key);
        }
        if shard.clock.len() > 2 * shard.slots.len() + LOOKS {
            shard.clock.retain(|slot| !slot.mail.lock().is_closed);
            shard.clock.shrink_to(LOOKS);
        }
    }

    /// Asks a key that had no message for long to end, and returns its slot: a second chance, as in a clock.
    pub(super) fn passivate_one(&self, near: &str) -> Option<Arc<Slot<K>>> {
        let first = Self::position(near);
        (0..2 * SHARDS).find_map(|step| self.shards[(first + step) % SHARDS].lock().passivate_one())
    }

    /// Calls `see` for each active key.
    pub(super) fn for_each(&self, mut see: impl FnMut(&Arc<Slot<K>>)) {
        for shard in &self.shards {
            let slots: Vec<_> = shard.lock().clock.iter().cloned().collect();
            slots.iter().filter(|slot| !slot.mail.lock().is_closed).for_each(&mut see);
        }
    }

    /// From now on no key becomes active, and each active one gets this order.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.for_each(|slot| slot.give(SlotOrder::Stop));
    }

    /// Ends all at once. Returns how many there were.
    pub(super) fn abort(&self) -> usize {
        self.is_over.store(true, Ordering::Release);
        let mut count = 0;
        self.for_each(|slot| {
            count += 1;
            slot.abort();
        });
        count
    }

    /// The count of keys of which it still holds something.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock()).map(|shard| shard.slots.len().max(shard.clock.len())).sum()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl<K> Shard<K> {
    fn passivate_one(&mut self) -> Option<Arc<Slot<K>>> {
        for _ in 0..self.clock.len().min(LOOKS) {
            let slot = self.clock.pop_front()?;
            let (is_closed, is_busy) = {
                let mail = slot.mail.lock();
                (mail.is_closed, !mail.waiting.is_empty())
            };
            if is_closed {
                continue;
            }
            let is_idle =
                !is_busy && !slot.is_touched.swap(false, Ordering::Relaxed) && slot.order() == SlotOrder::None;
            self.clock.push_back(Arc::clone(&slot));
            if is_idle {
                slot.give(SlotOrder::Passivate);
                return Some(slot);
            }
        }
        None
    }
}
