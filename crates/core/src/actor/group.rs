//! The supervisor of one group: starts its actors in order, and again when they die.
//!
//! Actors are built, started and stopped in separate tasks, so a slow actor does not block the supervisor.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef as EngineRef, SupervisionEvent};
use tokio::sync::oneshot;

use super::directory::{ActorState, Directory, DirectoryEntry};
use super::question::PublishedActor;
use super::spec::{ActorError, ActorGroup, Child};
use crate::clock::{self, Instant};
use crate::host::HostNode;
use crate::restart::{Recovery, RestartDecision, RestartIntensity, RestartWindow};
use crate::supervisor::{EarlyDeath, EarlyDeaths};
use crate::text::limit_error_text;

/// The actor that supervises one group.
pub(crate) struct GroupActor;

pub(crate) struct GroupArgs {
    pub(crate) group: ActorGroup,
    pub(crate) node: Arc<dyn HostNode>,
    pub(crate) directory: Arc<Directory>,
    /// Gets the outcome once: all actors are up, or the reason why not.
    pub(crate) started: oneshot::Sender<Result<(), ActorError>>,
}

/// Messages to the supervisor of one group; at most a few per actor.
#[derive(Debug)]
pub(crate) enum GroupMessage {
    /// The outcome of a start, from the task of that start.
    Started(usize, Result<ActorCell, String>),
    /// Start these actors: the stopped ones are gone and the back-off has passed. From the task that waited.
    Restart(Vec<usize>),
    /// Stop all actors in reverse order. From the root.
    Stop(oneshot::Sender<()>),
    /// All actors are stopped. From the task that waited.
    Stopped(Option<oneshot::Sender<()>>),
}

pub(crate) struct GroupState {
    group: ActorGroup,
    node: Arc<dyn HostNode>,
    directory: Arc<Directory>,
    lives: Vec<ChildLife>,
    window: RestartWindow,
    /// The waits of a group that may not give up.
    recovery: Recovery,
    /// Crashes in a row without a quiet time between them.
    attempt: u32,
    last_crash: Option<Instant>,
    /// Actors to start, one after the other.
    queue: VecDeque<usize>,
    starting: Option<usize>,
    /// The start in progress is outdated by the crash of another actor: it is stopped once it is up, then these start.
    outdated: Option<Vec<usize>>,
    started: Option<oneshot::Sender<Result<(), ActorError>>>,
    /// Why the group did not start. Sent when all its actors are gone.
    refused: Option<(oneshot::Sender<Result<(), ActorError>>, ActorError)>,
    /// Actors that the supervisor itself ended.
    expected: Vec<ActorId>,
    /// Actors that died before their start was read.
    early_deaths: EarlyDeaths,
    is_stopping: bool,
}

#[derive(Default)]
struct ChildLife {
    starts: u64,
    actor: Option<ActorCell>,
    is_over: bool,
    /// The count of stops and back-offs that delay the next start.
    held_by: u32,
}

impl Actor for GroupActor {
    type Msg = GroupMessage;
    type State = GroupState;
    type Arguments = GroupArgs;

    async fn pre_start(
        &self,
        myself: EngineRef<GroupMessage>,
        args: GroupArgs,
    ) -> Result<GroupState, ActorProcessingErr> {
        let GroupArgs { group, node, directory, started } = args;
        let mut state = GroupState {
            lives: group.children.iter().map(|_| ChildLife::default()).collect(),
            window: RestartWindow::new(group.intensity),
            recovery: Recovery::default(),
            queue: (0..group.children.len()).collect(),
            group,
            node,
            directory,
            attempt: 0,
            last_crash: None,
            starting: None,
            outdated: None,
            started: Some(started),
            refused: None,
            expected: Vec::new(),
            early_deaths: EarlyDeaths::default(),
            is_stopping: false,
        };
        state.list(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: EngineRef<GroupMessage>,
        message: GroupMessage,
        state: &mut GroupState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GroupMessage::Started(index, outcome) => state.has_started(&myself, index, outcome),
            GroupMessage::Restart(indices) if !state.is_stopping => {
                state.release(&indices);
                state.enqueue(indices);
                state.start_next(&myself);
            }
            GroupMessage::Restart(_) => {}
            GroupMessage::Stop(stopped) => state.stop(&myself, Some(stopped)),
            GroupMessage::Stopped(stopped) => {
                if let Some(stopped) = stopped {
                    let _ = stopped.send(());
                }
                myself.stop(None);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: EngineRef<GroupMessage>,
        event: SupervisionEvent,
        state: &mut GroupState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(who, error) => {
                state.child_ended(&myself, who.get_id(), true, &limit_error_text(error.to_string()));
            }
            SupervisionEvent::ActorTerminated(who, last_state, reason) => {
                // ractor keeps no state of an actor that was killed.
                let crashed = last_state.is_none();
                state.child_ended(&myself, who.get_id(), crashed, reason.as_deref().unwrap_or("it stopped"));
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl GroupState {
    fn list(&mut self, myself: &EngineRef<GroupMessage>) {
        let entries = self.group.children.iter_mut().map(|child| DirectoryEntry {
            status: Arc::clone(&child.status),
            mailbox: Arc::clone(&child.mailbox),
            published: PublishedActor::of(
                &child.status,
                std::mem::take(&mut child.accepted),
                self.directory.watch_leaving(),
            ),
        });
        match self.directory.list(entries.collect()) {
            Ok(()) => self.start_next(myself),
            Err(error) => {
                self.queue.clear();
                self.refuse_start(myself, error);
            }
        }
    }

    fn child(&self, index: usize) -> &Child {
        &self.group.children[index]
    }

    /// Delays the start of these actors. An actor with a delay does not start: two lives of an actor never run at once,
    /// and no actor starts while another is about to be stopped.
    fn hold(&mut self, indices: &[usize]) {
        for index in indices {
            self.lives[*index].held_by += 1;
        }
    }

    fn release(&mut self, indices: &[usize]) {
        for index in indices {
            self.lives[*index].held_by -= 1;
        }
    }

    /// Releases one delay of these actors when `before` is done, and starts the actors that have no other delay.
    fn restart_after(
        &self,
        myself: &EngineRef<GroupMessage>,
        indices: Vec<usize>,
        before: impl Future<Output = ()> + Send + 'static,
    ) {
        let myself = myself.clone();
        tokio::spawn(async move {
            before.await;
            let _ = myself.cast(GroupMessage::Restart(indices));
        });
    }

    fn enqueue(&mut self, indices: Vec<usize>) {
        let is_missing = |index: &usize| {
            let life = &self.lives[*index];
            !life.is_over
                && life.actor.is_none()
                && life.held_by == 0
                && self.starting != Some(*index)
                && !self.queue.contains(index)
        };
        let missing: Vec<usize> = indices.into_iter().filter(is_missing).collect();
        self.queue.extend(missing);
    }

    fn start_next(&mut self, myself: &EngineRef<GroupMessage>) {
        if self.is_stopping || self.starting.is_some() {
            return;
        }
        let Some(index) = self.queue.pop_front() else {
            // An actor that crashed in the meantime starts again first, with the actors that were still queued.
            let all_up = self.lives.iter().all(|life| life.is_over || life.actor.is_some());
            if all_up && let Some(started) = self.started.take() {
                let _ = started.send(Ok(()));
            }
            return;
        };
        self.starting = Some(index);
        let life = &mut self.lives[index];
        let number = life.starts;
        life.starts += 1;
        let starting = (self.child(index).start)(self.node.clone(), number, myself.get_cell());
        let myself = myself.clone();
        tokio::spawn(async move {
            let outcome = starting.await;
            // If the supervisor is gone, its actors have ended with it.
            let _ = myself.cast(GroupMessage::Started(index, outcome));
        });
    }

    fn has_started(&mut self, myself: &EngineRef<GroupMessage>, index: usize, outcome: Result<ActorCell, String>) {
        self.starting = None;
        if self.is_stopping {
            if let Ok(actor) = outcome {
                actor.kill();
            }
            return;
        }
        if let Some(waiting) = self.outdated.take() {
            // Other actors have restarted since. This start does not count, even if it succeeded.
            if let Ok(actor) = &outcome
                && self.early_deaths.take(actor.get_id()).is_none()
            {
                self.expected.push(actor.get_id());
            }
            (self.child(index).set_down)();
            let within = self.child(index).stop_within;
            let started = outcome.into_iter().map(|actor| (actor, within)).collect();
            return self.restart_after(myself, waiting, end_all(started));
        }
        match outcome {
            Ok(actor) => {
                let id = actor.get_id();
                self.child(index).status.enter(ActorState::Up, clock::now(), None);
                self.lives[index].actor = Some(actor);
                self.recovery.recovered(clock::now());
                if let Some(EarlyDeath { has_crashed, why, .. }) = self.early_deaths.take(id) {
                    self.child_ended(myself, id, has_crashed, &why);
                }
            }
            Err(message) if self.started.is_some() => {
                let name = self.child(index).status.name().to_owned();
                return self.refuse_start(myself, ActorError::Start { name, message });
            }
            Err(message) => self.crashed(myself, index, &message),
        }
        self.start_next(myself);
    }

    fn child_ended(&mut self, myself: &EngineRef<GroupMessage>, who: ActorId, has_crashed: bool, why: &str) {
        if let Some(ordered) = self.expected.iter().position(|expected| *expected == who) {
            self.expected.swap_remove(ordered);
            return;
        }
        if self.is_stopping {
            return;
        }
        let is_it = |life: &ChildLife| life.actor.as_ref().is_some_and(|actor| actor.get_id() == who);
        let Some(index) = self.lives.iter().position(is_it) else {
            self.early_deaths.keep(EarlyDeath { who, has_crashed, why: why.to_owned() }, self.lives.len() + 1);
            return;
        };
        self.lives[index].actor = None;
        if self.child(index).restart.after(has_crashed) {
            self.crashed(myself, index, why);
        } else if has_crashed {
            self.end(index, ActorState::Failed, why);
        } else {
            self.end(index, ActorState::Ended, why);
        }
        if !self.is_stopping && self.lives.iter().all(|life| life.is_over) {
            // All actors were up, if only for a moment.
            if let Some(started) = self.started.take() {
                let _ = started.send(Ok(()));
            }
            self.stop(myself, None);
        }
    }

    fn end(&mut self, index: usize, state: ActorState, why: &str) {
        self.lives[index].is_over = true;
        let child = self.child(index);
        child.status.enter(state, clock::now(), Some(why));
        (child.set_over)();
        self.directory.unpublish(&child.status);
        // A needed one stays listed, as the reason why its node is not ready.
        if state == ActorState::Failed && !child.status.is_needed() {
            self.directory.remove_failed(&child.status);
        }
    }

    /// Starts the actor again, with the others that the strategy selects, unless the intensity is exceeded.
    fn crashed(&mut self, myself: &EngineRef<GroupMessage>, index: usize, why: &str) {
        let now = clock::now();
        let name = self.child(index).status.name().to_owned();
        tracing::error!(parent: None, group = %self.group.name, actor = name, why, "actor died");
        let (mut why, mut wait) = (why.to_owned(), None);
        if self.window.record(now) == RestartDecision::GiveUp {
            let RestartIntensity { max_restarts, within } = self.group.intensity;
            why = limit_error_text(format!("more than {max_restarts} crashes in {within:?}, the last: {name}: {why}"));
            let may_give_up = self.started.is_some() || !self.group.children.iter().any(|it| it.status.is_needed());
            if may_give_up {
                return self.give_up(myself, &why);
            }
            let delay = self.recovery.failed(now, fastrand::f64());
            let group = &self.group.name;
            tracing::error!(
                parent: None, %group, reason = why, wait = ?delay, "a group of actors waits to start again"
            );
            wait = Some(delay);
        }
        let affected = self.group.strategy.affected(index, self.lives.len());
        let mut stopping = Vec::new();
        for other in affected.clone().rev() {
            if self.lives[other].is_over {
                continue;
            }
            let reason = if other == index { why.clone() } else { format!("`{name}` died") };
            self.child(other).status.enter(ActorState::Restarting, now, Some(&reason));
            (self.child(other).set_down)();
            if let Some(actor) = self.lives[other].actor.take() {
                self.expected.push(actor.get_id());
                stopping.push((actor, self.child(other).stop_within));
            }
        }
        // Includes the actors that were still queued.
        let queued = std::mem::take(&mut self.queue);
        let mut again: Vec<usize> = affected.filter(|index| !self.lives[*index].is_over).chain(queued).collect();
        again.sort_unstable();
        again.dedup();

        let quiet =
            self.last_crash.is_none_or(|last| now.saturating_duration_since(last) >= self.group.intensity.within);
        self.attempt = if quiet { 0 } else { self.attempt + 1 };
        self.last_crash = Some(now);
        let delay = wait.unwrap_or_else(|| self.group.backoff.delay(self.attempt, fastrand::f64()));
        if self.starting.is_some_and(|starting| again.contains(&starting)) {
            self.hold(&again);
            self.outdated.get_or_insert_default().extend(&again);
        }
        self.hold(&again);
        self.restart_after(myself, again, async move {
            end_all(stopping).await;
            tokio::time::sleep(delay).await;
        });
    }

    /// All actors that run, in the order in which they stop.
    fn take_actors(&mut self) -> Vec<StoppingActor> {
        let lives = self.lives.iter_mut().zip(&self.group.children).rev();
        lives.filter_map(|(life, child)| life.actor.take().map(|actor| (actor, child.stop_within))).collect()
    }

    fn give_up(&mut self, myself: &EngineRef<GroupMessage>, reason: &str) {
        tracing::error!(parent: None, group = %self.group.name, reason, "a group of actors has failed");
        for index in 0..self.lives.len() {
            if !self.lives[index].is_over {
                self.end(index, ActorState::Failed, reason);
            }
        }
        if self.started.is_some() {
            let (name, message) = (self.group.name.to_string(), reason.to_owned());
            return self.refuse_start(myself, ActorError::Start { name, message });
        }
        self.stop(myself, None);
    }

    fn refuse_start(&mut self, myself: &EngineRef<GroupMessage>, error: ActorError) {
        self.refused = self.started.take().map(|started| (started, error));
        self.stop(myself, None);
    }

    fn stop(&mut self, myself: &EngineRef<GroupMessage>, stopped: Option<oneshot::Sender<()>>) {
        self.is_stopping = true;
        let actors = self.take_actors();
        let myself = myself.clone();
        tokio::spawn(async move {
            stop_all(actors).await;
            let _ = myself.cast(GroupMessage::Stopped(stopped));
        });
    }
}

/// An actor that is to end, and how long it may take.
type StoppingActor = (ActorCell, Duration);

/// Stops these actors and waits until killed ones have ended as well: only then may their next lives start.
async fn end_all(actors: Vec<StoppingActor>) {
    stop_all(actors.clone()).await;
    for (actor, _) in actors {
        // Without a timeout, waiting cannot fail.
        let _ = actor.wait(None).await;
    }
}

/// Stops the actors one after the other, in this order. An actor that does not end in time is killed.
async fn stop_all(actors: Vec<StoppingActor>) {
    for (actor, within) in actors {
        if actor.stop_and_wait(None, Some(within)).await.is_err() {
            actor.kill();
        }
    }
}

impl Drop for GroupState {
    /// The group has ended, for any reason: its actors take no messages, and its names are free.
    fn drop(&mut self) {
        for child in &self.group.children {
            child.status.enter(ActorState::Ended, clock::now(), None);
            (child.set_over)();
            self.directory.remove(&child.status);
        }
        if let Some((started, error)) = self.refused.take() {
            let _ = started.send(Err(error));
        }
    }
}
