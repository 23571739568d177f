//! What a worker knows about itself when it is built.

use crate::id::StageName;

/// Which replica of which stage is being built, and for which time.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) stage: StageName,
    pub(crate) index: usize,
    pub(crate) generation: u64,
    pub(crate) max_batch_size: usize,
}

impl Replica {
    /// The stage.
    #[must_use]
    pub fn stage(&self) -> &StageName {
        &self.stage
    }

    /// The number of this replica among its stage's, from 0. A restart keeps it; use it to pick a device.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// How often this replica was started before: 0 the first time.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The largest batch it will be handed, so that it can warm up and allocate for that.
    #[must_use]
    pub fn max_batch_size(&self) -> usize {
        self.max_batch_size
    }
}
