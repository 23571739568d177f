//! Actors of the library's users. The node supervises them, and references to them survive their crashes.
//!
//! An [`Actor`] handles messages of one type. It is declared by an [`ActorSpec`], alone or in an [`ActorGroup`] with a
//! strategy, and reached by an [`ActorRef`]. Names are kept in a directory of the node, not of the process. Actors
//! start with an app ([`App::actor`](crate::App::actor)) or on a running node
//! ([`NodeHandle::spawn_actor`](crate::NodeHandle::spawn_actor)), such as one for each user. None of them matters to
//! the readiness of its node, unless it is [needed](ActorSpec::needed).
//!
//! An actor that [accepts](ActorSpec::accepts) questions by name is reached by a [`RemoteRef`] from every node of a
//! cluster, which also [tells](RemoteRef::watch) its end, and reaches [all](RemoteRef::members) actors of a name.
//!
//! * **Full:** a message needs a place in the mailbox. Without one, [`ActorRef::tell`] gives the message back, and
//!   [`ActorRef::ask`] fails at once.
//! * **Late:** an ask has a deadline. A message that waits longer is not handled; a handler can check whether its
//!   answer is still needed ([`ReplyPort::is_wanted`]).
//! * **Crash:** the asker of the message in hand gets an error at once, also where the question was handed on to the
//!   actor that crashed. Messages that wait go to the next life. The actor starts again after a back-off, with the
//!   others that its strategy selects, until its group's intensity is exceeded. Then its name is free.

mod context;
mod directory;
mod group;
mod life;
mod lost;
mod mailbox;
mod members;
mod question;
mod remote_ref;
mod spec;
mod strategy;
mod watch;

pub use context::{ActorContext, ActorTimer};
pub use life::Actor;
pub use mailbox::{ActorRef, ReplyPort, TellError};
pub use question::Question;
pub use remote_ref::RemoteRef;
pub use watch::ActorEnd;

pub use crate::error::AskError;
pub use spec::{ActorError, ActorGroup, ActorSpec};
pub use strategy::{RestartPolicy, RestartStrategy};

pub use directory::ActorState;
pub(crate) use directory::{ActorStatus, Directory, SpawnActors};
pub(crate) use group::{GroupActor, GroupArgs, GroupMessage};
pub(crate) use mailbox::{AskFn, ask_step, call_error};
pub(crate) use question::{
    AcceptedQuestion, AnswerFuture, PublishedActor, QuestionForm, QuestionOrder, ReservedPlace, owned,
};
pub(crate) use watch::WatchActor;
