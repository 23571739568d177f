//! The actors of a node by name, and the state of each.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::mailbox::{ActorRef, Mailbox};
use super::question::PublishedActor;
use super::spec::{ActorError, ActorGroup};
use super::watch::{LocalEnd, MAX_WATCHES_AWAY};
use crate::clock::Instant;
use crate::error::AskError;

/// The maximum count of remembered reasons why an actor ended.
const REMEMBERED: usize = 8;

/// The maximum count of remembered actors that have failed.
const REMEMBERED_FAILURES: usize = 16;

/// The maximum count of groups that wait for their start. One more is refused with [`ActorError::Busy`].
const MAX_WAITING_STARTS: usize = 64;

/// The most actors of a node that other nodes can find: each of these has the list.
const MAX_PUBLISHED: usize = 1_024;

/// The most bytes of the name of an actor that other nodes can find.
const MAX_PUBLISHED_NAME_BYTES: usize = 128;

callboard_codec::words! {
    /// The state of an actor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum ActorState {
        /// The first start is in progress.
        Starting => "starting",
        /// The actor takes messages.
        Up => "up",
        /// The actor crashed, or was stopped with another actor, and will start again.
        Restarting => "restarting",
        /// The actor has done its work.
        Ended => "ended",
        /// It crashed and does not start again.
        Failed => "failed",
    }
}

/// The public state of one actor.
#[derive(Debug)]
pub(crate) struct ActorStatus {
    name: Arc<str>,
    group: Mutex<Arc<str>>,
    capacity: usize,
    places: Arc<Semaphore>,
    refused: AtomicU64,
    /// Whether the node is ready only while it is up.
    is_needed: AtomicBool,
    life: Mutex<LifeStory>,
    /// How it ended, once it has.
    end: watch::Sender<Option<LocalEnd>>,
}

#[derive(Debug)]
struct LifeStory {
    state: ActorState,
    since: Option<Instant>,
    restarts: u64,
    reasons: VecDeque<String>,
}

impl LifeStory {
    fn remember(&mut self, reason: String) {
        if self.reasons.len() == REMEMBERED {
            self.reasons.pop_front();
        }
        self.reasons.push_back(reason);
    }
}

impl ActorStatus {
    pub(crate) fn new(name: &str, capacity: usize) -> Self {
        let story = LifeStory { state: ActorState::Starting, since: None, restarts: 0, reasons: VecDeque::new() };
        Self {
            name: name.into(),
            group: Mutex::new(name.into()),
            capacity,
            places: Arc::new(Semaphore::new(capacity)),
            refused: AtomicU64::new(0),
            is_needed: AtomicBool::new(false),
            life: Mutex::new(story),
            end: watch::Sender::new(None),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn set_group(&self, group: &Arc<str>) {
        *self.group.lock() = Arc::clone(group);
    }

    pub(crate) fn group(&self) -> Arc<str> {
        Arc::clone(&self.group.lock())
    }

    pub(super) fn set_needed(&self) {
        self.is_needed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    pub(super) fn places(&self) -> &Arc<Semaphore> {
        &self.places
    }

    /// Takes a place in the mailbox for a message that has still to arrive.
    pub(crate) fn reserve(&self) -> Result<OwnedSemaphorePermit, AskError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.inspect_err(|_| self.refused()).map_err(|_| AskError::Full)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The count of waiting messages.
    pub(crate) fn waiting(&self) -> usize {
        self.capacity.saturating_sub(self.places.available_permits())
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Enters a state. `Ended` and `Failed` are final.
    pub(crate) fn enter(&self, state: ActorState, now: Instant, reason: Option<&str>) {
        let mut life = self.life.lock();
        if matches!(life.state, ActorState::Ended | ActorState::Failed) {
            return;
        }
        if life.state == ActorState::Restarting && state == ActorState::Up {
            life.restarts += 1;
        }
        life.state = state;
        life.since = Some(now);
        if let Some(reason) = reason {
            life.remember(reason.to_owned());
        }
        drop(life);
        match state {
            ActorState::Ended => _ = self.end.send_replace(Some(LocalEnd::Ended)),
            ActorState::Failed => {
                self.end.send_replace(Some(LocalEnd::Failed(reason.unwrap_or_default().to_owned())));
            }
            ActorState::Starting | ActorState::Up | ActorState::Restarting => {}
        }
    }

    /// Waits until it has ended.
    pub(super) async fn until_ended(&self) -> LocalEnd {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        // It is not dropped meanwhile.
        ended.ok().and_then(|end| end.clone()).unwrap_or(LocalEnd::Ended)
    }

    /// Notes a crash of a part, after which it is started again.
    pub(crate) fn crashed(&self, reason: String) {
        let mut life = self.life.lock();
        life.restarts += 1;
        life.remember(reason);
    }

    /// State, since when, restarts, and the last reasons, the newest last.
    pub(crate) fn life(&self) -> (ActorState, Option<Instant>, u64, Vec<String>) {
        let life = self.life.lock();
        (life.state, life.since, life.restarts, life.reasons.iter().cloned().collect())
    }
}

/// A group of actors to be started under the root of the node.
#[derive(Debug)]
pub(crate) struct SpawnActors {
    pub(crate) group: ActorGroup,
    /// Gets the outcome: all actors are up, or the reason why not.
    pub(crate) started: oneshot::Sender<Result<(), ActorError>>,
    /// One of the permits that bound the root's mailbox.
    pub(crate) turn: OwnedSemaphorePermit,
}

/// Sends a group to the root of the node. False: the root is gone.
pub(crate) type SpawnPort = Box<dyn Fn(SpawnActors) -> bool + Send + Sync>;

/// The actors of one node by name.
pub(crate) struct Directory {
    listed: Mutex<ActorList>,
    /// The names of the last actors that have failed, and whose names are free.
    failed: Mutex<VecDeque<String>>,
    root: Mutex<Option<SpawnPort>>,
    /// One permit per group that waits for its start: the bound of the root's mailbox.
    turns: Arc<Semaphore>,
    /// Whether the node has begun to drain: other nodes do not ask its actors any more.
    leaving: watch::Sender<bool>,
    /// The places of watches of actors on other nodes.
    watches_away: Arc<Semaphore>,
}

#[derive(Default)]
struct ActorList {
    /// In the order of their declaration.
    entries: BTreeMap<u64, DirectoryEntry>,
    /// The keys of the entries.
    by_name: HashMap<Arc<str>, u64>,
    next: u64,
    /// The actors that other nodes can find.
    published: BTreeMap<Arc<str>, Arc<PublishedActor>>,
}

/// An actor, as its group declares it.
pub(super) struct DirectoryEntry {
    pub(super) status: Arc<ActorStatus>,
    /// A `Mailbox<M>` for some `M`.
    pub(super) mailbox: Arc<dyn Any + Send + Sync>,
    /// If it accepts questions.
    pub(super) published: Option<Arc<PublishedActor>>,
}

impl ActorList {
    /// Whether these may be added together.
    fn check(&self, actors: &[DirectoryEntry]) -> Result<(), ActorError> {
        for (position, DirectoryEntry { status, .. }) in actors.iter().enumerate() {
            let is_earlier = || actors[..position].iter().any(|other| other.status.name() == status.name());
            if self.by_name.contains_key(status.name()) || is_earlier() {
                return Err(ActorError::NameTaken { name: status.name().to_owned() });
            }
        }
        let published = || actors.iter().filter(|actor| actor.published.is_some());
        if let Some(long) = published().find(|actor| actor.status.name().len() > MAX_PUBLISHED_NAME_BYTES) {
            let (name, limit) = (long.status.name().to_owned(), MAX_PUBLISHED_NAME_BYTES);
            return Err(ActorError::LongName { name, limit });
        }
        if self.published.len() + published().count() > MAX_PUBLISHED {
            return Err(ActorError::TooManyPublished { limit: MAX_PUBLISHED });
        }
        Ok(())
    }

    fn add(&mut self, actor: DirectoryEntry) {
        let name = Arc::clone(&actor.status.name);
        if let Some(published) = &actor.published {
            self.published.insert(Arc::clone(&name), Arc::clone(published));
        }
        self.by_name.insert(name, self.next);
        self.entries.insert(self.next, actor);
        self.next += 1;
    }

    /// Its key, unless a later actor has the name.
    fn key(&self, status: &Arc<ActorStatus>) -> Option<u64> {
        let key = *self.by_name.get(status.name())?;
        self.entries.get(&key).filter(|entry| Arc::ptr_eq(&entry.status, status)).map(|_| key)
    }

    fn unpublish(&mut self, status: &Arc<ActorStatus>) {
        if self.key(status).is_some() {
            self.published.remove(status.name());
        }
    }

    fn remove(&mut self, status: &Arc<ActorStatus>) {
        if let Some(key) = self.key(status) {
            self.entries.remove(&key);
            self.by_name.remove(status.name());
            self.published.remove(status.name());
        }
    }
}

impl Directory {
    pub(crate) fn new() -> Self {
        let turns = Arc::new(Semaphore::new(MAX_WAITING_STARTS));
        let leaving = watch::Sender::new(false);
        let watches_away = Arc::new(Semaphore::new(MAX_WATCHES_AWAY));
        Self {
            listed: Mutex::default(),
            failed: Mutex::default(),
            root: Mutex::default(),
            turns,
            leaving,
            watches_away,
        }
    }

    /// The node is withdrawn or drains: watches of its actors end.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// A place for a watch of an actor on another node.
    pub(super) fn reserve_watch(&self) -> Result<OwnedSemaphorePermit, AskError> {
        Arc::clone(&self.watches_away).try_acquire_owned().map_err(|_| AskError::Full)
    }

    pub(super) fn watch_leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    pub(crate) fn set_root(&self, root: SpawnPort) {
        *self.root.lock() = Some(root);
    }

    /// Asks the root for a group and waits until it is up.
    pub(crate) async fn spawn(&self, group: ActorGroup) -> Result<(), ActorError> {
        let busy = |_| ActorError::Busy { limit: MAX_WAITING_STARTS };
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(busy)?;
        let (started, outcome) = oneshot::channel();
        let sent = self.root.lock().as_ref().is_some_and(|root| root(SpawnActors { group, started, turn }));
        if !sent {
            return Err(ActorError::Ending);
        }
        outcome.await.unwrap_or(Err(ActorError::Ending))
    }

    /// Lists all actors or none.
    pub(super) fn list(&self, actors: Vec<DirectoryEntry>) -> Result<(), ActorError> {
        let mut listed = self.listed.lock();
        listed.check(&actors)?;
        let is_listed = |name: &String| actors.iter().any(|actor| actor.status.name() == name);
        self.failed.lock().retain(|name| !is_listed(name));
        actors.into_iter().for_each(|actor| listed.add(actor));
        Ok(())
    }

    pub(super) fn remove(&self, status: &Arc<ActorStatus>) {
        self.listed.lock().remove(status);
    }

    /// This actor has ended, while its group lives on: other nodes and this one look for its name elsewhere.
    pub(super) fn unpublish(&self, status: &Arc<ActorStatus>) {
        self.listed.lock().unpublish(status);
    }

    /// This actor has failed: its name is free.
    pub(super) fn remove_failed(&self, status: &Arc<ActorStatus>) {
        self.remove(status);
        let mut failed = self.failed.lock();
        if failed.len() == REMEMBERED_FAILURES {
            failed.pop_front();
        }
        failed.push_back(status.name().to_owned());
    }

    /// The last actors that have failed, the newest last.
    pub(crate) fn failed(&self) -> Vec<String> {
        self.failed.lock().iter().cloned().collect()
    }

    /// The actor of this name, if it takes messages of this type.
    pub(crate) fn find<M: Send + 'static>(&self, name: &str) -> Option<ActorRef<M>> {
        let listed = self.listed.lock();
        let found = listed.entries.get(listed.by_name.get(name)?)?;
        Arc::clone(&found.mailbox).downcast::<Mailbox<M>>().ok().map(ActorRef::new)
    }

    /// The actor of this name, if other nodes can find it.
    pub(crate) fn published(&self, name: &str) -> Option<Arc<PublishedActor>> {
        self.listed.lock().published.get(name).cloned()
    }

    /// The names of the actors that other nodes can find, sorted.
    pub(crate) fn published_names(&self) -> Vec<String> {
        self.listed.lock().published.keys().map(|name| (**name).to_owned()).collect()
    }

    pub(crate) fn statuses(&self) -> Vec<Arc<ActorStatus>> {
        self.listed.lock().entries.values().map(|listed| Arc::clone(&listed.status)).collect()
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.listed.lock().entries.values().map(|listed| &listed.status)).finish()
    }
}
