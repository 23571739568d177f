//! The outcomes of a stream that wait to be written, and the pieces that are being written.
//!
//! A stream writes while it reads and runs calls, so a caller that reads slowly can still cancel, and its other calls
//! continue. Small outcomes are written together. A large one ends the group, so that later outcomes can still be
//! cancelled. The number of waiting outcomes is bounded by the calls that a stream may have at once.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::Account;
use callboard_codec::wire::{FrameRun, Load};
use callboard_core::Instant;
use callboard_core::edge::{LARGE_BYTES, Pace};

use super::NetConfig;
use super::answer::{EntryOutcome, put_outcome, write_pace};
use super::fault::StreamFault;
use crate::stream::FrameSender;

/// Writes the outcomes of a stream.
pub(super) struct OutcomeWriter {
    ready: VecDeque<EntryOutcome>,
    pieces: Vec<Bytes>,
    /// The number of pieces that were written.
    written: usize,
    /// The number of outcomes in the pieces.
    outcomes: usize,
    /// Hold the bytes of the pieces.
    held: Vec<Arc<dyn Account>>,
    /// The reading rate of the caller.
    pace: Pace,
    /// Whether the caller is sent the trace of an error.
    sends_traces: bool,
}

impl OutcomeWriter {
    pub(super) fn new(config: &NetConfig, sends_traces: bool) -> Self {
        let (ready, pieces) = (VecDeque::new(), Vec::new());
        Self { ready, pieces, written: 0, outcomes: 0, held: Vec::new(), pace: write_pace(config), sends_traces }
    }

    /// Adds an outcome.
    pub(super) fn push(&mut self, answer: EntryOutcome) {
        self.ready.push_back(answer);
    }

    /// Removes a cancelled outcome. `false`: it does not wait here. An outcome that is being written is completed.
    pub(super) fn remove(&mut self, entry: u16) -> bool {
        let before = self.ready.len();
        self.ready.retain(|ready| ready.entry != entry);
        self.ready.len() < before
    }

    /// The number of outcomes that are not completely written.
    pub(super) fn unwritten(&self) -> usize {
        self.ready.len() + self.outcomes
    }

    /// Whether outcomes wait while nothing is being written.
    pub(super) fn can_begin(&self) -> bool {
        self.pieces.is_empty() && !self.ready.is_empty()
    }

    /// Begins to write the waiting outcomes: small ones together.
    pub(super) fn begin(&mut self, config: &NetConfig, load: Load) {
        let mut frames = FrameRun::default();
        while frames.bytes() < LARGE_BYTES
            && let Some(EntryOutcome { entry, outcome, queued }) = self.ready.pop_front()
        {
            let load = Load { queued: u32::try_from(queued).unwrap_or(u32::MAX), ..load };
            self.held.extend(put_outcome(&mut frames, entry, outcome, load, self.sends_traces));
            self.outcomes += 1;
        }
        self.pieces = frames.into_pieces();
        self.pace = write_pace(config);
    }

    /// Writes as much as fits; waits while there is no room.
    ///
    /// # Cancellation
    ///
    /// A dropped future has written nothing.
    pub(super) async fn write_some(&mut self, outgoing: &mut FrameSender) -> Result<(), StreamFault> {
        let progress = outgoing.write_some(&mut self.pieces[self.written..]).await;
        let (bytes, pieces) = progress.map_err(|_| StreamFault::Left)?;
        self.pace.moved(Instant::now(), bytes);
        self.written += pieces;
        if self.written == self.pieces.len() {
            self.pieces.clear();
            self.held.clear();
            (self.written, self.outcomes) = (0, 0);
        }
        Ok(())
    }

    /// The time at which the caller reads too slowly. `None`: it has nothing to read.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.pieces.is_empty()).then(|| self.pace.end().0)
    }
}
