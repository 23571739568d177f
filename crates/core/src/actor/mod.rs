//! Actors of the library's users: under the node's supervision tree, reached by references that outlive their crashes.
//!
//! An [`Actor`] handles messages of one type. It is declared by an [`ActorSpec`], alone or in an [`ActorGroup`] with a
//! strategy, and reached by an [`ActorRef`]. Names are kept in a directory of the node, not of the process.
//!
//! * **Full:** a message needs a place before it enters the mailbox. [`ActorRef::tell`] gives back what has none;
//!   [`ActorRef::ask`] says so at once.
//! * **Late:** an ask has a deadline. A message that waits beyond it is not handled; the actor that has one in hand can
//!   see it ([`ReplyPort::is_wanted`]).
//! * **Crash:** the asker of the message in hand is told at once. An ask that waits goes to the next life, a tell that
//!   waits is lost. The actor starts again after a back-off, with what its strategy takes along, until its group's
//!   intensity is exceeded.

mod context;
mod directory;
mod group;
mod life;
mod mailbox;
mod spec;
mod strategy;

pub use context::{ActorContext, ActorTimer};
pub use life::Actor;
pub use mailbox::{ActorRef, DEFAULT_MAILBOX, ReplyPort, TellError};

pub use crate::error::AskError;
pub use spec::{ActorError, ActorGroup, ActorSpec};
pub use strategy::{RestartPolicy, RestartStrategy};

pub use directory::ActorState;
pub(crate) use directory::{ActorStatus, Directory, SpawnActors};
pub(crate) use group::{GroupActor, GroupArgs, GroupMessage};
pub(crate) use mailbox::{AskFn, ask_step};
