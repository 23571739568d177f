//! Outcomes on their way out: those that wait, and the pieces of those that are being handed over.
//!
//! Writing is one thing that a stream does among others, so a caller that takes its answers slowly is still heard, and its other calls go
//! on. Small outcomes go together; a large one goes with what was before it, so that one behind it can still be given up. Nothing here
//! bounds what waits: a stream begins no call while as many are run or unwritten as a pack may have.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::Account;
use callboard_codec::wire::{FrameRun, Load};
use callboard_core::Instant;

use super::NetConfig;
use super::answer::{Answer, put_outcome};
use super::fault::Fault;
use super::pace::Pace;
use crate::contained::LARGE_BYTES;
use crate::stream::Outgoing;

/// What is to be written on a stream.
pub(super) struct Writing {
    ready: VecDeque<Answer>,
    pieces: Vec<Bytes>,
    /// How many of the pieces were handed over.
    handed: usize,
    /// How many outcomes the pieces are of.
    outcomes: usize,
    /// What holds their bytes.
    held: Vec<Arc<dyn Account>>,
    /// How the caller takes the pieces.
    pace: Pace,
}

impl Writing {
    pub(super) fn new(config: &NetConfig) -> Self {
        let (ready, pieces) = (VecDeque::new(), Vec::new());
        Self { ready, pieces, handed: 0, outcomes: 0, held: Vec::new(), pace: pace(config) }
    }

    /// An answer that is to be written.
    pub(super) fn push(&mut self, answer: Answer) {
        self.ready.push_back(answer);
    }

    /// Nobody waits for this one any more; says whether it waits here. One that is being handed over goes on.
    pub(super) fn forget(&mut self, entry: u16) -> bool {
        let before = self.ready.len();
        self.ready.retain(|ready| ready.entry != entry);
        self.ready.len() < before
    }

    /// Outcomes that are not all handed over.
    pub(super) fn outcomes(&self) -> usize {
        self.ready.len() + self.outcomes
    }

    /// Whether outcomes wait while nothing is being handed over.
    pub(super) fn is_due(&self) -> bool {
        self.pieces.is_empty() && !self.ready.is_empty()
    }

    /// Begins with those that wait, in one go as far as they are small.
    pub(super) fn begin(&mut self, config: &NetConfig, load: Load) {
        let mut frames = FrameRun::default();
        while frames.bytes() < LARGE_BYTES
            && let Some(Answer { entry, outcome, queued }) = self.ready.pop_front()
        {
            let load = Load { queued: u32::try_from(queued).unwrap_or(u32::MAX), ..load };
            self.held.extend(put_outcome(&mut frames, entry, outcome, load));
            self.outcomes += 1;
        }
        self.pieces = frames.into_pieces();
        self.pace = pace(config);
    }

    /// Hands over what there is room for; waits while there is none.
    ///
    /// # Cancellation
    ///
    /// Nothing was handed over.
    pub(super) async fn write_some(&mut self, outgoing: &mut Outgoing) -> Result<(), Fault> {
        let written = outgoing.write_some(&mut self.pieces[self.handed..]).await;
        let (bytes, pieces) = written.map_err(|_| Fault::Left)?;
        self.pace.moved(Instant::now(), bytes);
        self.handed += pieces;
        if self.handed == self.pieces.len() {
            self.pieces.clear();
            self.held.clear();
            (self.handed, self.outcomes) = (0, 0);
        }
        Ok(())
    }

    /// When its caller takes the pieces too slowly, if it takes no more; without pieces it owes nothing.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.pieces.is_empty()).then(|| self.pace.end())
    }
}

fn pace(config: &NetConfig) -> Pace {
    Pace::new(Instant::now(), config.write_progress_timeout, config.min_bytes_per_second)
}
