//! Keyed actors: one live instance for each key, made when the key is asked, with the state that a store has of it.
//!
//! A *kind* is declared by a [`KeyedSpec`] and started with [`App::keyed`](crate::App::keyed). Its instances answer
//! [questions by name](crate::actor::Question), which a [`KeyedRef`] brings to a key. An instance that nobody asks is
//! saved and dropped. A passive key costs nothing but its row in the store.
//!
//! * **One at a time:** the messages of a key are handled in their order, those of different keys at once.
//! * **Full:** the mailbox of each key has a bound, and so have the active keys of a kind. Beyond these, the longest
//!   idle keys are passivated early.
//! * **Late:** an ask has a deadline, also while its key is loaded. A message that waits longer is not handled.
//! * **Crash:** a message whose handler panics fails alone. The instance is dropped with what it has not saved, and the
//!   next message loads the key again.
//! * **Timers:** an instance [sends itself messages](KeyContext::tell_after) later. They keep it active, and end with
//!   it.
//! * **Hand-over:** an owner that lives saves a key before another node loads it, also one that is saved seldom.
//! * **Fence:** an instance claims its key in the store when it is loaded. An earlier instance, on whichever node,
//!   cannot save from then on: it ends, and its asker is told [`Lost`](crate::actor::AskError::Lost).

mod context;
mod fence_check;
mod handover;
mod instance;
mod kind;
mod kinds;
mod letter;
mod placement;
mod reference;
mod shards;
mod spec;
mod store;
mod stored;
#[cfg(test)]
mod tests;
mod timers;
mod write;

pub use context::KeyContext;
pub use reference::KeyedRef;
pub use spec::{Answers, Keyed, KeyedSpec, SavePolicy};
pub use store::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
pub use stored::Stored;
pub use timers::KeyTimer;

pub(crate) use handover::ReleaseKey;
pub(crate) use kind::KindNode;
pub(crate) use kinds::KeyedKinds;
pub(crate) use placement::published_name;
pub(crate) use spec::KindStart;
