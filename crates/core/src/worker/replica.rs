//! What a worker knows about itself when it is built.

use std::time::Duration;

use callboard_codec::Map;

use crate::client::LocalClient;
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
    pub(crate) client: LocalClient,
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

    /// What this replica alone was told; see [`StageSettings::replica_settings`](crate::StageSettings::replica_settings).
    #[must_use]
    pub fn settings(&self) -> &Map {
        &self.settings
    }

    /// A client of the node that runs it, to keep in the worker. A call that is made for an item goes
    /// [within](LocalClient::within) that item's call; any other is a call of its own.
    ///
    /// ```
    /// use callboard_core::{Batch, Failure, LocalClient, Stage, Worker};
    ///
    /// /// Gives each text the length that another route counts.
    /// struct Lengths(LocalClient);
    ///
    /// impl Worker for Lengths {
    ///     type In = String;
    ///     type Out = usize;
    ///
    ///     fn call(&mut self, batch: Batch<String>) -> Vec<Result<usize, Failure>> {
    ///         let client = |index| self.0.within(&batch.context(index)).blocking();
    ///         let texts = batch.iter().enumerate();
    ///         texts.map(|(index, text)| Ok(client(index).call("/count", text.clone())?)).collect()
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let count = Stage::each("count", |text: &String| Ok(text.len()));
    /// let lengths = Stage::worker("lengths", |replica| Ok(Lengths(replica.client())));
    /// let app = callboard_core::App::new().route("/count", count).route("/lengths", lengths);
    /// let node = app.start_blocking()?;
    /// assert_eq!(node.client().call::<_, usize>("/lengths", "four".to_owned())?, 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.client.clone()
    }

    /// The largest batch it will be handed, so that it can warm up and allocate for that.
    #[must_use]
    pub fn max_batch_size(&self) -> usize {
        self.max_batch_size
    }
}
