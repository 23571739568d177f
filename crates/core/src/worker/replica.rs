//! What a worker knows about itself when it is built.

use std::time::Duration;

use callboard_codec::Map;

use crate::host::OpaqueHandle;
use crate::id::StageName;

/// Which replica of which stage is being built, and for which time.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) stage: StageName,
    pub(crate) index: usize,
    pub(crate) generation: u64,
    pub(crate) max_batch_size: usize,
    pub(crate) settings: Map,
    pub(crate) timeout: Option<Duration>,
    pub(crate) client: OpaqueHandle,
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

    /// What this replica alone was told; see
    /// [`StageSettings::replica_settings`](crate::StageSettings::replica_settings).
    #[must_use]
    pub fn settings(&self) -> &Map {
        &self.settings
    }

    /// The largest batch it will be handed, so that it can warm up and allocate for that.
    #[must_use]
    pub fn max_batch_size(&self) -> usize {
        self.max_batch_size
    }
}
