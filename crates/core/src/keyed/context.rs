//! What the code of an instance sees of its key and of the message in hand.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;

use super::timers::{KeyTimer, KeyTimers};
use crate::actor::Question;
use crate::call::CallOptions;
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::host::HostNode;

/// What an instance sees of its key, its node and the message in hand.
#[derive(Clone)]
pub struct KeyContext {
    pub(super) kind: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) epoch: u64,
    pub(super) deadline: Deadline,
    pub(super) options: CallOptions,
    pub(super) timers: Arc<KeyTimers>,
    pub(crate) node: Arc<dyn HostNode>,
}

impl KeyContext {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The number of this instance among all instances of the key, on whichever nodes. It rises with each. A system that
    /// remembers the highest number that it has seen of a key can refuse what an earlier instance still sends.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The time at which the asker of the message in hand stops waiting. While the key is loaded, that of the load.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The options of the asker of the message in hand, such as its [caller](CallOptions::caller).
    #[must_use]
    pub fn options(&self) -> &CallOptions {
        &self.options
    }

    /// Tells this key a message after `delay`. Its handler runs as for any message: its change is saved if the kind is
    /// durable. Nobody gets its answer. It takes turns with the messages that wait.
    ///
    /// A timer belongs to this instance and is not saved. While one waits, the key stays active, whatever its
    /// `idle_after` is. The timers end with the instance: when it crashes, cannot save, or moves, when an operator or a
    /// key without a place has it passivated, and when the node stops. A time that must outlast that is kept in the
    /// state: the load hook, which runs at the next message, gets a context as well and sets the timer again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use callboard_core::actor::Question;
    /// use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
    /// use callboard_core::testing::MemoryStore;
    /// use callboard_core::{App, Failure};
    /// use serde::{Deserialize, Serialize};
    ///
    /// /// A cart that empties itself half an hour after its last item.
    /// #[derive(Default, Serialize, Deserialize)]
    /// struct Cart {
    ///     items: u64,
    ///     changes: u64,
    /// }
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Add(u64);
    ///
    /// /// Empties a cart that has had no more changes than these.
    /// #[derive(Serialize, Deserialize)]
    /// struct Empty(u64);
    ///
    /// # impl Question for Add {
    /// #     const NAME: &str = "add";
    /// #     type Answer = u64;
    /// # }
    /// # impl Question for Empty {
    /// #     const NAME: &str = "empty";
    /// #     type Answer = ();
    /// # }
    /// impl Answers<Add> for Stored<Cart> {
    ///     async fn answer(&mut self, Add(items): Add, context: &KeyContext) -> Result<u64, Failure> {
    ///         if items > 0 {
    ///             self.items += items;
    ///             self.changes += 1;
    ///             context.tell_after(Duration::from_secs(1_800), Empty(self.changes))?;
    ///         }
    ///         Ok(self.items)
    ///     }
    /// }
    ///
    /// impl Answers<Empty> for Stored<Cart> {
    ///     async fn answer(&mut self, Empty(changes): Empty, _: &KeyContext) -> Result<(), Failure> {
    ///         if self.changes == changes {
    ///             self.items = 0;
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let store = Arc::new(MemoryStore::new());
    /// let carts = KeyedSpec::new("cart", store, |_, cart: Stored<Cart>| async { Ok(cart) });
    /// let node = App::new().keyed(carts.accepts::<Add>().accepts::<Empty>()).start().await?;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(node.keyed("cart").ask("ann", second, Add(2)).await?, 2);
    /// tokio::time::sleep(1_801 * second).await;
    /// assert_eq!(node.keyed("cart").ask("ann", second, Add(0)).await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotAccepted`: the kind does not accept the question, or the clock cannot represent the time. `Full`: the
    /// instance has 64 timers that wait. `Unreachable`: the instance has ended.
    pub fn tell_after<Q: Question>(&self, delay: Duration, question: Q) -> Result<KeyTimer, AskError> {
        self.timers.set(delay, Q::NAME, Payload::new(question))
    }
}

impl fmt::Debug for KeyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, epoch, .. } = self;
        f.debug_struct("KeyContext").field("kind", kind).field("key", key).field("epoch", epoch).finish_non_exhaustive()
    }
}
