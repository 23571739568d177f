//! The declarations of actors and groups.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, SpawnErr};
use tokio::sync::Semaphore;

use super::context::ActorContext;
use super::directory::ActorStatus;
use super::life::{Actor, ActorFactory, ActorLife};
use super::mailbox::{ActorRef, Mailbox, ReplyPort};
use super::question::{AcceptedQuestion, Question};
use super::strategy::{RestartPolicy, RestartStrategy};
use crate::call::CallOptions;
use crate::host::HostNode;
use crate::restart::{BackoffPolicy, RestartIntensity};

/// How long an actor may take to end by default.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// The start of one life: the running actor, or why it did not start.
pub(super) type StartFuture = Pin<Box<dyn Future<Output = Result<ActorCell, String>> + Send>>;

/// Starts a life of an actor on a node, with its number, in a group.
type StartFn = dyn Fn(Arc<dyn HostNode>, u64, ActorCell) -> StartFuture + Send + Sync;

/// The declaration of one actor: its name, how to build it for each life, and the bound of its mailbox.
#[must_use = "an actor starts once it is given to an app or a node"]
pub struct ActorSpec<M> {
    mailbox: Arc<Mailbox<M>>,
    child: Child,
}

/// An actor without its type.
pub(super) struct Child {
    pub(super) status: Arc<ActorStatus>,
    pub(super) restart: RestartPolicy,
    pub(super) stop_within: Duration,
    pub(super) mailbox: Arc<dyn Any + Send + Sync>,
    /// Starts the life with this number.
    pub(super) start: Box<StartFn>,
    pub(super) set_down: Box<dyn Fn() + Send + Sync>,
    pub(super) set_over: Box<dyn Fn() + Send + Sync>,
    /// What it accepts from other nodes.
    pub(super) accepted: Vec<AcceptedQuestion>,
}

impl<M: Send + 'static> ActorSpec<M> {
    /// Messages that may wait for one actor: enough for a burst, and a few hundred KiB at most for small messages.
    pub const DEFAULT_MAILBOX: usize = 1024;

    /// An actor called `name`. `build` makes it for each life; a panic of `build` is a failed start.
    pub fn new<A, F>(name: &str, build: F) -> Self
    where
        A: Actor<Message = M>,
        F: Fn(&ActorContext<A>) -> A + Send + Sync + 'static,
    {
        Self::with_mailbox(name, Self::DEFAULT_MAILBOX, build)
    }

    /// The same with a mailbox for this many messages, 1 to 2³². Each costs the size of a message while it waits.
    /// Default [`DEFAULT_MAILBOX`](Self::DEFAULT_MAILBOX).
    pub fn with_mailbox<A, F>(name: &str, messages: usize, build: F) -> Self
    where
        A: Actor<Message = M>,
        F: Fn(&ActorContext<A>) -> A + Send + Sync + 'static,
    {
        let status = Arc::new(ActorStatus::new(name, messages.clamp(1, Semaphore::MAX_PERMITS.min(1 << 32))));
        let mailbox = Mailbox::new(Arc::clone(&status));
        let build: ActorFactory<A> = Arc::new(build);
        let (up, down, over) = (Arc::clone(&mailbox), Arc::clone(&mailbox), Arc::clone(&mailbox));
        let start = move |node: Arc<dyn HostNode>, number: u64, group: ActorCell| -> StartFuture {
            let mailbox = Arc::clone(&up);
            let life =
                ActorLife { build: Arc::clone(&build), node, reference: ActorRef::new(Arc::clone(&mailbox)), number };
            Box::pin(async move {
                let (actor, _) = ractor::Actor::spawn_linked(None, life, (), group).await.map_err(start_error)?;
                let cell = actor.get_cell();
                mailbox.set_up(actor);
                Ok(cell)
            })
        };
        let child = Child {
            status,
            restart: RestartPolicy::default(),
            stop_within: STOP_WITHIN,
            mailbox: Arc::clone(&mailbox) as Arc<dyn Any + Send + Sync>,
            start: Box::new(start),
            set_down: Box::new(move || down.set_down()),
            set_over: Box::new(move || over.set_over()),
            accepted: Vec::new(),
        };
        Self { mailbox, child }
    }

    /// Which ends of the actor cause a restart. Default: [crashes](RestartPolicy::Crashed).
    pub fn restart(mut self, when: RestartPolicy) -> Self {
        self.child.restart = when;
        self
    }

    /// How long it may take to end when its group stops or starts again. Then it is killed. Default 5 s.
    pub fn stop_within(mut self, time: Duration) -> Self {
        self.child.stop_within = time;
        self
    }

    /// The node is ready only while this actor is up. By default an actor does not matter to the health of its node,
    /// whatever becomes of it. A group with a needed actor does not give up: beyond its
    /// [intensity](ActorGroup::intensity) it starts again after waits of up to a minute.
    pub fn needed(self) -> Self {
        self.child.status.set_needed();
        self
    }

    /// Accepts questions of this type by name: `message` makes a message of each. From then on the actor is
    /// *published*: a [`RemoteRef`](super::RemoteRef) finds it on this node and on other nodes of the cluster. Nothing
    /// else of the actor can be reached from there. `message` runs in the task of the asker, or of the connection.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use callboard_core::actor::{Actor, ActorContext, ActorSpec, Question, ReplyPort};
    /// use callboard_core::{App, Failure};
    /// use serde::{Deserialize, Serialize};
    ///
    /// struct Counter(u64);
    ///
    /// enum Order {
    ///     Count(Count),
    ///     Reset(ReplyPort<u64>),
    /// }
    ///
    /// /// Counts on by so much.
    /// #[derive(Serialize, Deserialize)]
    /// struct Count(u64);
    ///
    /// impl Question for Count {
    ///     const NAME: &str = "count";
    ///     type Answer = ();
    /// }
    ///
    /// /// Begins again. The answer is the last count.
    /// #[derive(Serialize, Deserialize)]
    /// struct Reset;
    ///
    /// impl Question for Reset {
    ///     const NAME: &str = "reset";
    ///     type Answer = u64;
    /// }
    ///
    /// impl Actor for Counter {
    ///     type Message = Order;
    ///
    ///     async fn handle(&mut self, order: Order, _: &ActorContext<Self>) -> Result<(), Failure> {
    ///         match order {
    ///             Order::Count(Count(by)) => self.0 += by,
    ///             Order::Reset(answer) => answer.send(std::mem::take(&mut self.0)),
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let counter = ActorSpec::new("counter", |_| Counter(0))
    ///     .accepts_tell(Order::Count)
    ///     .accepts(|Reset, answer| Order::Reset(answer));
    /// let node = App::new().actor(counter).start().await?;
    /// // On this node or, once it has joined a cluster, on any other:
    /// let counter = node.remote_actor("counter");
    /// counter.tell(Duration::from_secs(1), Count(3)).await?;
    /// assert_eq!(counter.ask(Duration::from_secs(1), Reset).await?, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn accepts<Q: Question>(self, message: impl Fn(Q, ReplyPort<Q::Answer>) -> M + Send + Sync + 'static) -> Self {
        self.accepts_with(move |question, port, _| message(question, port))
    }

    /// The same; `message` also gets the options of the asker, such as the [name of its caller](CallOptions::caller),
    /// which the node of the asker has checked.
    pub fn accepts_with<Q: Question>(
        mut self,
        message: impl Fn(Q, ReplyPort<Q::Answer>, &CallOptions) -> M + Send + Sync + 'static,
    ) -> Self {
        self.child.accepted.push(AcceptedQuestion::asked(self.reference(), message));
        self
    }

    /// Accepts messages of this type by name that nobody waits for: as [`accepts`](Self::accepts), without an answer.
    pub fn accepts_tell<Q: Question>(mut self, message: impl Fn(Q) -> M + Send + Sync + 'static) -> Self {
        self.child.accepted.push(AcceptedQuestion::told(self.reference(), message));
        self
    }

    /// A reference to it, good from now on: stages and other actors can be built with it before it runs.
    #[must_use]
    pub fn reference(&self) -> ActorRef<M> {
        ActorRef::new(Arc::clone(&self.mailbox))
    }
}

fn start_error(error: SpawnErr) -> String {
    match error {
        SpawnErr::StartupFailed(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

impl<M> fmt::Debug for ActorSpec<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorSpec").field("name", &self.child.status.name()).finish_non_exhaustive()
    }
}

/// Actors under one supervisor. They start in order and stop in reverse order; when one dies, the strategy selects the
/// actors that start again with it.
#[must_use = "a group starts once it is given to an app or a node"]
pub struct ActorGroup {
    pub(super) name: Arc<str>,
    pub(super) strategy: RestartStrategy,
    pub(super) intensity: RestartIntensity,
    pub(super) backoff: BackoffPolicy,
    pub(super) children: Vec<Child>,
}

impl ActorGroup {
    /// An empty group.
    pub fn new(name: &str, strategy: RestartStrategy) -> Self {
        Self {
            name: name.into(),
            strategy,
            intensity: RestartIntensity::default(),
            backoff: BackoffPolicy::default(),
            children: Vec::new(),
        }
    }

    /// Adds an actor after the others.
    pub fn actor<M: Send + 'static>(mut self, spec: ActorSpec<M>) -> Self {
        spec.child.status.set_group(&self.name);
        self.children.push(spec.child);
        self
    }

    /// The crash rate above which the group gives up, which ends its actors and frees their names. Here every crash
    /// counts. Default 5 in 10 s.
    pub fn intensity(mut self, intensity: RestartIntensity) -> Self {
        self.intensity = intensity;
        self
    }

    /// How long to wait between a crash and the next start.
    pub fn backoff(mut self, backoff: BackoffPolicy) -> Self {
        self.backoff = backoff;
        self
    }
}

impl<M: Send + 'static> From<ActorSpec<M>> for ActorGroup {
    /// A group of one, with its name.
    fn from(spec: ActorSpec<M>) -> Self {
        Self::new(spec.child.status.name(), RestartStrategy::OneForOne).actor(spec)
    }
}

impl fmt::Debug for ActorGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.children.iter().map(|child| child.status.name().to_owned()).collect();
        let Self { name, strategy, .. } = self;
        f.debug_struct("ActorGroup").field("name", name).field("strategy", strategy).field("actors", &names).finish()
    }
}

/// Why actors were not started. None of them runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActorError {
    /// Another actor of the node has this name.
    #[error("another actor is named `{name}`")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The actor accepts questions, and its name is too long for that.
    #[error("the name `{name}` of an actor that accepts questions has {} bytes, more than {limit}", name.len())]
    LongName {
        /// The name.
        name: String,
        /// The bound.
        limit: usize,
    },
    /// Too many actors of the node accept questions.
    #[error("{limit} actors of the node accept questions already")]
    TooManyPublished {
        /// The bound.
        limit: usize,
    },
    /// The actor could not be built or started. There was no second attempt.
    #[error("actor `{name}` did not start: {message}")]
    Start {
        /// The actor.
        name: String,
        /// The actor's own message.
        message: String,
    },
    /// Too many groups are starting at once.
    #[error("{limit} starts wait already")]
    Busy {
        /// The bound.
        limit: usize,
    },
    /// The node drains or has ended.
    #[error("the node is ending")]
    Ending,
}
