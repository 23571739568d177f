//! The state of a key, and whether it has changed since its last save.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// The state of one key. Reading it costs nothing. Borrowing it mutably marks it as changed, and a changed state is
/// saved: see [`SavePolicy`](super::SavePolicy).
///
/// An instance without other fields is a `Stored` itself, which implements [`Keyed`](super::Keyed).
#[derive(Default)]
pub struct Stored<S> {
    state: S,
    has_changed: bool,
    is_new: bool,
}

impl<S> Stored<S> {
    /// A state as the store has it.
    pub(super) fn loaded(state: S) -> Self {
        Self { state, has_changed: false, is_new: false }
    }

    /// The state of a key that was never saved.
    pub(super) fn fresh(state: S) -> Self {
        Self { state, has_changed: false, is_new: true }
    }

    /// Whether the store has no state of the key yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether it was borrowed mutably since its last save.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    pub(super) fn set_saved(&mut self) {
        (self.has_changed, self.is_new) = (false, false);
    }
}

impl<S> Deref for Stored<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Stored<S> {
    fn deref_mut(&mut self) -> &mut S {
        self.has_changed = true;
        &mut self.state
    }
}

impl<S: fmt::Debug> fmt::Debug for Stored<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("state", &self.state).field("has_changed", &self.has_changed).finish()
    }
}
