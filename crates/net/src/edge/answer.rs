//! What goes back for one call: its outcome as frames, at the pace of a caller that reads.

use bytes::Bytes;
use callboard_codec::Envelope;
use callboard_codec::wire::{Done, FrameKind, FrameRun, Item, Load, WireError};
use callboard_core::{CallError, ErrorKind, Instant, StageReply, Timing};

use super::NetConfig;
use super::fault::{Fault, StreamRefusal};
use super::pace::Pace;
use crate::stream::Outgoing;
use crate::{contained, convert};

/// An output as it is sent, where the time went, and how many stages it came through.
pub(super) struct Answered {
    envelope: Envelope,
    timing: Timing,
    stages: usize,
}

/// What goes back for one call that was not streamed.
pub(super) struct Answer {
    pub(super) entry: u16,
    pub(super) outcome: Result<Answered, CallError>,
    /// How many calls wait where it ran.
    pub(super) queued: usize,
}

/// Hands over the pieces to a caller that takes them: one that does not, or too slowly, is given up, so that nothing is kept for it.
pub(super) async fn write(config: &NetConfig, outgoing: &mut Outgoing, mut pieces: &mut [Bytes]) -> Result<(), Fault> {
    let mut pace = Pace::new(Instant::now(), config.write_progress_timeout, config.min_bytes_per_second);
    while !pieces.is_empty() {
        let (bytes, chunks) = tokio::select! {
            biased;
            written = outgoing.write_some(pieces) => written.map_err(|_| Fault::Left)?,
            () = tokio::time::sleep_until(pace.end()) => return Err(StreamRefusal::SlowReader.into()),
        };
        pace.moved(Instant::now(), bytes);
        pieces = &mut pieces[chunks..];
    }
    Ok(())
}

/// What is sent for a call that ended well. An output that cannot be encoded is an error of this node's.
pub(super) async fn answered(ran: Result<StageReply, CallError>) -> Result<Answered, CallError> {
    let ran = ran?;
    let (timing, stages) = (ran.reply.timing, ran.stages);
    Ok(Answered { envelope: contained::encode(ran.reply.payload).await?, timing, stages })
}

/// Appends the frame of an outcome.
pub(super) fn put_outcome(frames: &mut FrameRun, entry: u16, outcome: Result<Answered, CallError>, load: Load) {
    let put = match outcome {
        Ok(Answered { envelope, timing, stages }) => {
            let stages = u32::try_from(stages).unwrap_or(u32::MAX);
            let done = Done { stages, times: convert::times(timing), load };
            frames.push(FrameKind::Done, entry, &done, envelope.parts())
        }
        Err(error) => put_error(frames, entry, error, load),
    };
    // Only an error whose texts do not fit into a header at all comes here.
    if put.is_err() {
        let error = CallError::new(ErrorKind::Internal, "the outcome could not be written");
        let _ = put_error(frames, entry, error, load);
    }
}

/// Appends the frame of one output of a stream.
pub(super) fn put_item(frames: &mut FrameRun, entry: u16, envelope: &Envelope) -> Result<(), CallError> {
    frames
        .push(FrameKind::Item, entry, &Item {}, envelope.parts())
        .map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))
}

/// Appends the frame that ends a stream of outputs.
pub(super) fn put_end(frames: &mut FrameRun, entry: u16, load: Load) {
    let done = Done { load, ..Done::default() };
    let _ = frames.push(FrameKind::Done, entry, &done, &[]);
}

fn put_error(frames: &mut FrameRun, entry: u16, error: CallError, load: Load) -> Result<(), WireError> {
    let (fail, details) = convert::fail(error, load);
    frames.push(FrameKind::Fail, entry, &fail, details.as_ref().map(Envelope::parts).unwrap_or_default())
}
