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
    change: Change,
    is_new: bool,
}

/// What the store does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Change {
    #[default]
    None,
    Changed,
    Forgotten,
}

impl<S> Stored<S> {
    /// A state as the store has it.
    pub(super) fn loaded(state: S) -> Self {
        Self { state, change: Change::None, is_new: false }
    }

    /// The state of a key that was never saved.
    pub(super) fn fresh(state: S) -> Self {
        Self { state, change: Change::None, is_new: true }
    }

    /// Whether the store has no state of the key yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether it was borrowed mutably, or forgotten, since its last save.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.change != Change::None
    }

    /// Makes the key as if it had never been asked. The state is the default from now on, and where it would be saved,
    /// its record is removed from the store. The instance ends then, with its timers; the next message makes a new one.
    /// A state that is borrowed mutably after this is saved as ever.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use callboard_core::actor::Question;
    /// # use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, StateKey, StateStore, Stored};
    /// # use callboard_core::testing::MemoryStore;
    /// # use callboard_core::{App, Failure};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct CheckOut;
    /// # impl Question for CheckOut {
    /// #     const NAME: &str = "check_out";
    /// #     type Answer = Vec<String>;
    /// # }
    /// impl Answers<CheckOut> for Stored<Vec<String>> {
    ///     async fn answer(&mut self, _: CheckOut, _: &KeyContext) -> Result<Vec<String>, Failure> {
    ///         let items = self.to_vec();
    ///         self.forget();
    ///         Ok(items)
    ///     }
    /// }
    /// # let store = Arc::new(MemoryStore::new());
    /// # let carts = KeyedSpec::new("cart", store.clone(), |_, cart: Stored<Vec<String>>| async { Ok(cart) });
    /// # let node = App::new().keyed(carts.accepts::<CheckOut>()).start().await?;
    /// # node.keyed("cart").ask("ann", Duration::from_secs(1), CheckOut).await?;
    /// # assert_eq!(store.load(StateKey { kind: "cart", key: "ann" }).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(&mut self)
    where
        S: Default,
    {
        (self.state, self.change) = (S::default(), Change::Forgotten);
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.change == Change::Forgotten
    }

    pub(super) fn set_saved(&mut self) {
        (self.change, self.is_new) = (Change::None, false);
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
        self.change = Change::Changed;
        &mut self.state
    }
}

impl<S: fmt::Debug> fmt::Debug for Stored<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("state", &self.state).field("change", &self.change).finish()
    }
}
