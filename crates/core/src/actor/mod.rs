//! Actors of the library's users: under the node's supervision tree, reached by references that outlive their crashes.
//!
//! An actor is a plain [`ractor::Actor`] whose messages come in [`Mail`]. It is declared by an [`ActorSpec`], alone or in an
//! [`ActorGroup`] with a strategy, and reached by a [`Ref`]. Names are kept in a directory of the node, not of the process.
//!
//! * **Full:** a message needs a place before it enters the mailbox. [`Ref::tell`] gives back what has none;
//!   [`Ref::ask`] says so at once.
//! * **Late:** an ask has a deadline; whoever asked is told when it passes, and the actor can see it
//!   ([`Answer::is_wanted`]).
//! * **Crash:** what waits in the mailbox is lost with the actor, at most once delivered; whoever asked is told at once. The
//!   actor starts again after a back-off, with what its strategy takes along, until its group's intensity is exceeded.

mod directory;
mod group;
mod post;
mod spec;
mod strategy;

pub use post::{Answer, AskError, DEFAULT_MAILBOX, Mail, Ref, TellError};
pub use spec::{ActorContext, ActorError, ActorGroup, ActorSpec};
pub use strategy::{RestartWhen, Strategy};

pub use directory::ActorState;
pub(crate) use directory::{ActorStatus, Directory};
pub(crate) use group::{GroupActor, GroupArgs, GroupMessage};
pub(crate) use post::{AskFn, ask_step};
