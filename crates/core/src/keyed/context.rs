//! What the code of an instance sees of its key and of the message in hand.

use std::fmt;
use std::sync::Arc;

use crate::call::CallOptions;
use crate::deadline::Deadline;
use crate::host::HostNode;

/// What an instance sees of its key, its node and the message in hand.
#[derive(Clone)]
pub struct KeyContext {
    pub(super) kind: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) epoch: u64,
    pub(super) deadline: Deadline,
    pub(super) options: CallOptions,
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
}

impl fmt::Debug for KeyContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, epoch, .. } = self;
        f.debug_struct("KeyContext").field("kind", kind).field("key", key).field("epoch", epoch).finish_non_exhaustive()
    }
}
