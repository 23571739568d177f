//! The bounded mailbox of one actor: the reference, the messages, and the port for an answer.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_codec::{Data, Payload};
use parking_lot::Mutex;
use ractor::{ActorRef as EngineRef, MessagingErr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::directory::ActorStatus;
use super::lost::{self, Crash, CrashPort};
use crate::call::Flight;
use crate::clock;
use crate::containment::{contain, drop_contained};
use crate::deadline::Deadline;
use crate::error::{AskError, CallError, ErrorKind, Failure};
use crate::id::StageName;

/// A message in the engine, with the place that it takes in the mailbox until it is opened.
pub(super) struct Delivery<M> {
    /// `None` once it is opened.
    message: Option<M>,
    place: Option<OwnedSemaphorePermit>,
    way_back: Option<ReturnPort<M>>,
    /// The next life, for a message without a waiting sender.
    next_life: Option<NextLife<M>>,
}

/// Keeps a message, with its place in the mailbox, for the next life of its actor.
type NextLife<M> = Arc<dyn Fn(M, OwnedSemaphorePermit) + Send + Sync>;

/// Tells a waiting sender: `None` when the actor takes the message, else the message.
type ReturnPort<M> = oneshot::Sender<Option<M>>;

impl<M> Delivery<M> {
    /// A message that needs no place, or has none yet.
    pub(super) fn new(message: M, way_back: Option<ReturnPort<M>>) -> Self {
        Self { message: Some(message), place: None, way_back, next_life: None }
    }

    /// A message of the actor to itself, which ends with this life.
    pub(super) fn with_place(message: M, place: OwnedSemaphorePermit) -> Self {
        Self { message: Some(message), place: Some(place), way_back: None, next_life: None }
    }

    /// The message, unless its waiting sender left. Frees the place in the mailbox.
    pub(super) fn open(mut self) -> Option<M> {
        let has_sender = self.way_back.take().is_none_or(|way_back| way_back.send(None).is_ok());
        self.message.take().filter(|_| has_sender)
    }
}

impl<M> Drop for Delivery<M> {
    /// The life ended and did not take this message.
    fn drop(&mut self) {
        let Some(message) = self.message.take() else { return };
        match (self.way_back.take(), self.next_life.take(), self.place.take()) {
            (Some(way_back), _, place) => {
                // The place must be free before the sender tries again.
                drop(place);
                let _ = way_back.send(Some(message));
            }
            (None, Some(next_life), Some(place)) => next_life(message, place),
            (None, ..) => drop_contained(message),
        }
    }
}

/// The address of an actor over all its lives.
pub(crate) struct Mailbox<M> {
    status: Arc<ActorStatus>,
    places: Arc<Semaphore>,
    target: watch::Sender<Target<M>>,
    /// Messages that an ended life did not take, until the next one is up.
    waiting: Mutex<VecDeque<(M, OwnedSemaphorePermit)>>,
    next_life: NextLife<M>,
}

/// The receiver of the messages.
enum Target<M> {
    /// The actor is starting, for the first time or again.
    Down,
    Up(EngineRef<Delivery<M>>),
    /// The actor has ended.
    Over,
}

impl<M: Send + 'static> Mailbox<M> {
    pub(super) fn new(status: Arc<ActorStatus>) -> Arc<Self> {
        Arc::new_cyclic(|mailbox: &Weak<Self>| {
            let mailbox = Weak::clone(mailbox);
            let next_life = move |message, place| match mailbox.upgrade() {
                Some(mailbox) => mailbox.keep(message, place),
                None => drop_contained(message),
            };
            Self {
                places: Arc::clone(status.places()),
                status,
                target: watch::Sender::new(Target::Down),
                waiting: Mutex::default(),
                next_life: Arc::new(next_life),
            }
        })
    }

    pub(super) fn set_up(&self, actor: EngineRef<Delivery<M>>) {
        // Messages that wait were sent first: a new one finds the actor only behind them.
        let mut waiting = self.waiting.lock();
        let sent = std::mem::take(&mut *waiting).into_iter();
        let unsent = sent.filter_map(|(message, place)| self.send(&actor, message, None, place).err());
        *waiting = unsent.filter_map(|(message, place)| Some((message, place?))).collect();
        self.change(Target::Up(actor));
    }

    /// Passes a message on to the next life of the actor, now or when that is up.
    fn keep(&self, message: M, place: OwnedSemaphorePermit) {
        let mut waiting = self.waiting.lock();
        let (unsent, is_over) = match &*self.target.borrow() {
            Target::Up(actor) => (self.send(actor, message, None, place).err(), false),
            Target::Down => (Some((message, Some(place))), false),
            Target::Over => (Some((message, Some(place))), true),
        };
        match unsent {
            Some((message, Some(place))) if !is_over => waiting.push_back((message, place)),
            unsent => {
                drop(waiting);
                drop_contained(unsent);
            }
        }
    }

    /// Hands a message to a life, or gives it back with its place.
    fn send(
        &self,
        actor: &EngineRef<Delivery<M>>,
        message: M,
        way_back: Option<ReturnPort<M>>,
        place: OwnedSemaphorePermit,
    ) -> Result<(), (M, Option<OwnedSemaphorePermit>)> {
        let next_life = way_back.is_none().then(|| Arc::clone(&self.next_life));
        match actor.send_message(Delivery { message: Some(message), place: Some(place), way_back, next_life }) {
            Err(MessagingErr::SendErr(mut delivery)) => {
                delivery.message.take().map_or(Ok(()), |message| Err((message, delivery.place.take())))
            }
            // The type always fits, and ractor gives back a message that a closed mailbox did not take.
            Ok(()) | Err(MessagingErr::ChannelClosed | MessagingErr::InvalidActorType) => Ok(()),
        }
    }

    pub(super) fn set_down(&self) {
        self.change(Target::Down);
    }

    /// `Over` is final: an actor that was still starting when its group gave up cannot change it.
    fn change(&self, next: Target<M>) {
        self.target.send_if_modified(|target| {
            let goes_on = !matches!(target, Target::Over);
            if goes_on {
                *target = next;
            }
            goes_on
        });
    }

    pub(super) fn set_over(&self) {
        self.target.send_replace(Target::Over);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(|(message, _)| drop_contained(message));
    }
}

/// A reference to an actor. Cloning it is cheap; it stays good when the actor crashes and starts again, and it does not
/// keep the actor alive.
pub struct ActorRef<M>(Arc<Mailbox<M>>);

impl<M: Send + 'static> ActorRef<M> {
    pub(super) fn new(mailbox: Arc<Mailbox<M>>) -> Self {
        Self(mailbox)
    }

    /// The actor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.status.name()
    }

    /// Sends a message without waiting for anything. It is handled at most once, in the order of sending. If the actor
    /// crashes first, a message that waits goes to its next life, with the [`ReplyPort`] that it may carry.
    ///
    /// # Errors
    ///
    /// The message itself, if the mailbox is full or the actor is not up. It was not handled.
    pub fn tell(&self, message: M) -> Result<(), TellError<M>> {
        self.put(message, None, None).map_err(|unsent| match unsent {
            Unsent::Full(message) => {
                self.0.status.refused();
                TellError::Full(message)
            }
            Unsent::Down(message, _) => TellError::Down(message),
            Unsent::Over(message) => TellError::Over(message),
        })
    }

    /// Sends with `place`, or with a free place in the mailbox.
    fn put(
        &self,
        message: M,
        way_back: Option<ReturnPort<M>>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Unsent<M>> {
        let actor = match &*self.0.target.borrow() {
            Target::Up(actor) => actor.clone(),
            Target::Down => return Err(Unsent::Down(message, place)),
            Target::Over => return Err(Unsent::Over(message)),
        };
        let Some(place) = place.or_else(|| Arc::clone(&self.0.places).try_acquire_owned().ok()) else {
            return Err(Unsent::Full(message));
        };
        self.0.send(&actor, message, way_back, place).map_err(|(message, place)| Unsent::Down(message, place))
    }

    /// Sends a message with a port for its answer, and waits for the answer: a [`Duration`](std::time::Duration) from
    /// now, or until a [`Deadline`], such as that of the [call](crate::CallContext::deadline) or of the [message in
    /// hand](ReplyPort::deadline). If the actor restarts, the message goes to the next life. The actor takes it at most
    /// once.
    ///
    /// # Errors
    ///
    /// See [`AskError`], which says whether the message [was taken](AskError::was_taken).
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a waiting message is not handled. If the actor has taken the message,
    /// [`ReplyPort::is_wanted`] tells the actor that the answer is not needed.
    pub async fn ask<T>(
        &self,
        within: impl Into<Deadline>,
        message: impl FnOnce(ReplyPort<T>) -> M,
    ) -> Result<T, AskError> {
        let deadline = within.into();
        let (port, answer) = ReplyPort::pair(deadline);
        self.wait(deadline, message(port), answer, None).await
    }

    /// The same with a place that was [reserved](ActorStatus::reserve), for a message that may not come about.
    pub(super) async fn ask_with<T>(
        &self,
        place: Option<OwnedSemaphorePermit>,
        deadline: Deadline,
        message: impl FnOnce(ReplyPort<T>) -> Result<M, AskError>,
    ) -> Result<T, AskError> {
        let (port, answer) = ReplyPort::pair(deadline);
        self.wait(deadline, message(port)?, answer, place).await
    }

    /// Puts a message into the mailbox, in a place that was reserved. Waits while the actor restarts.
    pub(super) async fn tell_with(
        &self,
        mut place: Option<OwnedSemaphorePermit>,
        deadline: Deadline,
        mut message: M,
    ) -> Result<(), AskError> {
        let mut target = self.0.target.subscribe();
        loop {
            target.borrow_and_update();
            message = match self.put(message, None, place.take()) {
                Ok(()) => return Ok(()),
                Err(unsent) => self.kept(unsent, &mut place)?,
            };
            until_changed(&mut target, deadline).await?;
        }
    }

    /// The message of an actor that is down, which waits for the next life with its place; else why nobody takes it.
    fn kept(&self, unsent: Unsent<M>, place: &mut Option<OwnedSemaphorePermit>) -> Result<M, AskError> {
        match unsent {
            Unsent::Full(_) => {
                self.0.status.refused();
                Err(AskError::Full)
            }
            Unsent::Over(_) => Err(AskError::Over),
            Unsent::Down(message, kept) => {
                *place = kept;
                Ok(message)
            }
        }
    }

    async fn wait<T>(
        &self,
        deadline: Deadline,
        mut message: M,
        answer: AnswerReceiver<T>,
        mut place: Option<OwnedSemaphorePermit>,
    ) -> Result<T, AskError> {
        let mut target = self.0.target.subscribe();
        loop {
            target.borrow_and_update();
            let (way_back, back) = oneshot::channel();
            message = match self.put(message, Some(way_back), place.take()) {
                Ok(()) => match until_taken(back, deadline).await? {
                    // It had a place in a life that has ended. It waits for the next life with a place again, ahead of
                    // new messages, so that the mailbox has a bound while the actor is down.
                    Some(message) => {
                        let free = Arc::clone(&self.0.places).acquire_owned();
                        let free = tokio::time::timeout_at(deadline.instant(), free).await;
                        place = free.map_err(|_| AskError::DeadlineExceeded { taken: false })?.ok();
                        message
                    }
                    None => break,
                },
                Err(unsent) => {
                    let message = self.kept(unsent, &mut place)?;
                    until_changed(&mut target, deadline).await?;
                    message
                }
            };
        }
        let answered = async {
            match answer.answer.await {
                Ok(answered) => answered.map_err(AskError::Failed),
                Err(_) => Err(match answer.crash.await {
                    Ok(Crash { actor, reason }) => AskError::Crashed { actor, reason },
                    Err(_) => AskError::Lost,
                }),
            }
        };
        let answered = tokio::time::timeout_at(deadline.instant(), answered).await;
        answered.unwrap_or(Err(AskError::DeadlineExceeded { taken: true }))
    }

    /// Lets the actor finish the message in hand and end. Messages that wait are not handled. The actor does not start
    /// again, unless it is declared to do so [always](super::RestartPolicy::Always).
    pub fn stop(&self) {
        if let Target::Up(actor) = &*self.0.target.borrow() {
            actor.stop(None);
        }
    }
}

impl<M> Clone for ActorRef<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for ActorRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActorRef").field(&self.0.status.name()).finish()
    }
}

/// A message that was not sent, and why.
enum Unsent<M> {
    Full(M),
    /// With its place, if it has one: it is kept for the next life.
    Down(M, Option<OwnedSemaphorePermit>),
    Over(M),
}

/// Waits for the next change of the receiver. Its sender lives: the reference that waits holds the mailbox.
async fn until_changed<M>(target: &mut watch::Receiver<Target<M>>, deadline: Deadline) -> Result<(), AskError> {
    let changed = tokio::time::timeout_at(deadline.instant(), target.changed()).await;
    changed.map(drop).map_err(|_| AskError::DeadlineExceeded { taken: false })
}

/// `None` once the actor has taken the message; the message if its life ended before.
async fn until_taken<M>(mut back: oneshot::Receiver<Option<M>>, deadline: Deadline) -> Result<Option<M>, AskError> {
    match tokio::time::timeout_at(deadline.instant(), &mut back).await {
        Ok(back) => back.map_err(|_| AskError::Lost),
        Err(_) => {
            // Closed first, so that the actor cannot take the message after this check.
            back.close();
            back.try_recv().map_err(|_| AskError::DeadlineExceeded { taken: false })
        }
    }
}

/// The port for one answer, sent along with a question. An actor may hand it on in a message to another one, by
/// [`tell`](ActorRef::tell): the answer then comes from there. If it is dropped unused, the asker gets
/// [`AskError::Lost`], or [`AskError::Crashed`] where an actor crashed with it.
#[derive(Debug)]
pub struct ReplyPort<T> {
    /// `None` once it was used.
    sender: Option<oneshot::Sender<Result<T, Failure>>>,
    /// `None` once it was dropped.
    crash: Option<CrashPort>,
    deadline: Deadline,
}

impl<T> Drop for ReplyPort<T> {
    fn drop(&mut self) {
        if let (Some(_), Some(crash)) = (&self.sender, self.crash.take()) {
            lost::dropped(crash);
        }
    }
}

/// The other end of the port.
struct AnswerReceiver<T> {
    answer: oneshot::Receiver<Result<T, Failure>>,
    crash: oneshot::Receiver<Crash>,
}

impl<T> ReplyPort<T> {
    fn pair(deadline: Deadline) -> (Self, AnswerReceiver<T>) {
        let ((sender, answer), (crashed, crash)) = (oneshot::channel(), oneshot::channel());
        (Self { sender: Some(sender), crash: Some(crashed), deadline }, AnswerReceiver { answer, crash })
    }

    /// Sends the answer. If the asker left, the answer is dropped.
    pub fn send(self, answer: T) {
        self.end(Ok(answer));
    }

    fn end(mut self, answer: Result<T, Failure>) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(answer);
        }
    }

    /// Sends a failure: the asker gets [`AskError::Failed`], the caller of a [pipeline's step](crate::Pipeline::ask) an
    /// error with the details of the failure.
    ///
    /// ```
    /// use callboard_core::actor::ReplyPort;
    /// use callboard_core::Failure;
    ///
    /// fn withdraw(balance: &mut u64, amount: u64, answer: ReplyPort<u64>) {
    ///     match balance.checked_sub(amount) {
    ///         Some(rest) => {
    ///             *balance = rest;
    ///             answer.send(rest);
    ///         }
    ///         None => answer.fail(Failure::new("not enough money").with_status(402)),
    ///     }
    /// }
    /// ```
    pub fn fail(self, failure: impl Into<Failure>) {
        self.end(Err(failure.into()));
    }

    /// The time at which the asker stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Whether the asker still waits. A handler that works long for one answer should check it now and then.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| !sender.is_closed()) && !self.deadline.is_expired(clock::now())
    }
}

/// Why a message was not sent. Contains the message.
#[derive(PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TellError<M> {
    /// The mailbox is full. Try again later, or drop the message.
    #[error("the mailbox is full")]
    Full(M),
    /// The actor has not started yet, or is being started again after a crash.
    #[error("the actor is not up at the moment")]
    Down(M),
    /// The actor has ended and will not start again.
    #[error("the actor has ended")]
    Over(M),
}

impl<M> TellError<M> {
    /// The message.
    pub fn into_message(self) -> M {
        match self {
            Self::Full(message) | Self::Down(message) | Self::Over(message) => message,
        }
    }
}

impl<M> fmt::Debug for TellError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Down(_) => "Down(..)",
            Self::Over(_) => "Over(..)",
        })
    }
}

/// A question to an actor as a step of a pipeline, without its types.
pub(crate) type AskFn = Arc<dyn Fn(Payload, Arc<Flight>) -> AskFuture + Send + Sync>;

/// The future of an answer.
pub(crate) type AskFuture = Pin<Box<dyn Future<Output = Result<Payload, CallError>> + Send>>;

/// Makes each item a message to `actor`, with the deadline of its call, or with `timeout` if that ends earlier.
pub(crate) fn ask_step<In, Out, M, F>(actor: ActorRef<M>, timeout: Option<Duration>, message: F) -> AskFn
where
    In: Data,
    Out: Data,
    M: Send + 'static,
    F: Fn(&In, ReplyPort<Out>) -> M + Send + Sync + 'static,
{
    let message = Arc::new(message);
    Arc::new(move |payload, flight| {
        let (actor, message) = (actor.clone(), Arc::clone(&message));
        Box::pin(async move {
            let deadline = timeout.map_or(flight.deadline, |timeout| flight.deadline.min(timeout.into()));
            let (port, answer) = ReplyPort::pair(deadline);
            // User code in the caller's future, like the conversion and the drop of the input: its panic is this call's
            // error.
            let encoded = payload.encoded_bytes();
            let read = || flight.reading(encoded, || payload.into_arc::<In>());
            let made = contain(|| read().map(|input| message(&input, port)));
            let made = made.map_err(|words| {
                let error = CallError::new(ErrorKind::WorkerFailed, format!("the message's maker panicked: {words}"));
                error.at_stage(&StageName::new(actor.name())).with_trace(words.trace())
            })??;
            let answer = actor.wait(deadline, made, answer, None).await;
            answer.map(Payload::new).map_err(|error| call_error(error, actor.name()))
        })
    })
}

/// The error of a call whose step has asked this actor.
pub(crate) fn call_error(error: AskError, actor: &str) -> CallError {
    let name = StageName::new(actor);
    match error {
        AskError::Failed(failure) => CallError::from_failure(failure, &name).in_run(false),
        // Its message names the actor that crashed, which may be another one.
        error @ AskError::Crashed { .. } => CallError::from(error).at_stage(&name),
        error => {
            let message = format!("actor `{actor}`: {error}");
            CallError::from(error).with_message(message).at_stage(&name)
        }
    }
}
