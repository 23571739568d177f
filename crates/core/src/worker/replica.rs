//! The data that a worker gets when it is built.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use callboard_codec::Map;

use super::exit::ExitPort;
use crate::contract::Contract;
use crate::host::HostNode;
use crate::id::StageName;
use crate::metrics::{ProcessUsage, UsagePort};

/// A longer note is cut.
const MAX_NOTE_CHARS: usize = 1000;

/// The note that the workers of a stage leave for its operators.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotePort(Arc<OnceLock<String>>);

impl NotePort {
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// The replica that is being built: its stage, its index and its generation.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) stage: StageName,
    pub(crate) index: usize,
    pub(crate) generation: u64,
    pub(crate) count: usize,
    pub(crate) max_batch_size: usize,
    pub(crate) settings: Map,
    pub(crate) timeout: Option<Duration>,
    pub(crate) contract: Contract,
    pub(crate) core: Option<usize>,
    pub(crate) node: Arc<dyn HostNode>,
    pub(crate) exit: ExitPort,
    pub(crate) usage: UsagePort,
    pub(crate) note: NotePort,
}

impl Replica {
    /// The stage.
    #[must_use]
    pub fn stage(&self) -> &StageName {
        &self.stage
    }

    /// The index of this replica in its stage, from 0. A restart keeps it; use it to pick a device.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The most replicas that its stage has; see [`StageSettings::replicas`](crate::StageSettings::replicas).
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The count of earlier starts of this replica: 0 the first time.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The settings of this replica; see [`StageSettings::replica_settings`](crate::StageSettings::replica_settings).
    #[must_use]
    pub fn settings(&self) -> &Map {
        &self.settings
    }

    /// The size of its largest batch, for warm-up and allocation.
    #[must_use]
    pub fn max_batch_size(&self) -> usize {
        self.max_batch_size
    }

    /// The CPU core that the stage pins it to; see [`StageSettings::affinity`](crate::StageSettings::affinity). A
    /// thread of the node is pinned already; a worker that runs its code elsewhere does it itself.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// Leaves a note about the stage for operators, in the node's description: what only a start could find. A note of
    /// its [settings](crate::StageSettings::note) comes before it, and the first one of its workers holds. Of a long
    /// one the first 1,000 characters are kept.
    pub fn leave_note(&self, note: &str) {
        let _ = self.note.0.set(note.chars().take(MAX_NOTE_CHARS).collect());
    }

    /// Shows what the replica's process uses in the description and the metrics of the node, for the rest of this life.
    /// `measure` is called when one of them is asked for. `None`: the process has ended, or the system does not tell.
    pub fn measure_usage_by(&self, measure: impl Fn() -> Option<ProcessUsage> + Send + Sync + 'static) {
        self.usage.connect(measure);
    }

    /// The longest that one batch may take; see [`StageSettings::timeout`](crate::StageSettings::timeout).
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether its batches may run twice; see [`StageSettings::contract`](crate::StageSettings::contract).
    #[must_use]
    pub fn contract(&self) -> Contract {
        self.contract
    }
}
