//! What goes back for one call: its outcome as frames, at the pace of a caller that reads.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Done, FrameKind, FrameRun, Item, Load, WireError};
use callboard_codec::{Account, ChargeError, EncodeError, Envelope, Payload, charged_to};
use callboard_core::remote::StageReply;
use callboard_core::{CallError, Deadline, ErrorKind, Instant, LocalClient, Timing};

use super::NetConfig;
use super::fault::{Fault, StreamRefusal};
use super::pace::Pace;
use crate::contained::{self, Paying};
use crate::convert;
use crate::stream::Outgoing;

/// An output as it is sent, where the time went, and how many stages it came through.
pub(super) struct Answered {
    envelope: Envelope,
    timing: Timing,
    stages: usize,
    held: Arc<dyn Account>,
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

/// What is sent for a call that ended well. An output that cannot be encoded is an error of this node's, unless a later
/// stage refused: then its caller is told of that.
pub(super) async fn answered(
    node: &LocalClient,
    due: Deadline,
    ran: Result<StageReply, CallError>,
) -> Result<Answered, CallError> {
    let ran = ran?;
    let (timing, stages) = (ran.reply.timing, ran.stages);
    let encoded = encode(node, due, ran.reply.payload).await;
    let (envelope, held) = encoded.map_err(|error| ran.refused.unwrap_or(error))?;
    Ok(Answered { envelope, timing, stages, held })
}

/// A value as it is sent, and the account that holds its bytes until that has happened. What it is made of is dropped where it was written.
pub(super) async fn encode(
    node: &LocalClient,
    due: Deadline,
    payload: Payload,
) -> Result<(Envelope, Arc<dyn Account>), CallError> {
    let account: Arc<dyn Account> = Arc::new(node.held_bytes());
    let bytes = payload.size_up_to(contained::LARGE_BYTES);
    let encoded = if bytes < contained::LARGE_BYTES {
        contained::contain(|| charged_to(&account, move || Ok(payload.to_envelope()?)))
    } else {
        let paying = Paying { account: Arc::clone(&account), due };
        let encoded = contained::run_for(node, ((), bytes), paying, move || Ok(payload.to_envelope()?)).await;
        encoded.map(|((), envelope)| envelope)
    };
    let charged = encoded.and_then(|envelope| match account.charge(envelope.len()) {
        Ok(()) => Ok(envelope),
        Err(error @ ChargeError::Exhausted(_)) => Err(CallError::new(ErrorKind::Overloaded, error.to_string())),
        Err(error) => Err(EncodeError::from(error).into()),
    });
    // The call has run, whatever becomes of its output.
    charged.map(|envelope| (envelope, account)).map_err(|error| {
        let mut parts = error.into_parts();
        parts.started = true;
        parts.into()
    })
}

/// Appends the frame of an outcome.
/// Gives what holds its bytes until it is sent.
pub(super) fn put_outcome(
    frames: &mut FrameRun,
    entry: u16,
    outcome: Result<Answered, CallError>,
    load: Load,
) -> Option<Arc<dyn Account>> {
    let mut holding = None;
    let put = match outcome {
        Ok(Answered { envelope, timing, stages, held }) => {
            holding = Some(held);
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
    holding
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_codec::Local;
    use callboard_core::{App, Reply};

    use super::*;

    #[tokio::test]
    async fn an_output_that_cannot_leave_is_answered_with_the_refusal_of_the_next_stage() {
        let node = App::new().start().await.unwrap();
        let due = Deadline::from(Duration::from_secs(10));
        let reply = || StageReply::new(Reply::new(Payload::new(Local(1_u64)), Timing::default()), 1);
        let refusal = CallError::new(ErrorKind::Overloaded, "full");
        let refused = answered(&node.client(), due, Ok(reply().refused_with(refusal))).await;
        assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Overloaded));
        let failed = answered(&node.client(), due, Ok(reply())).await;
        assert_ne!(failed.err().map(|error| error.kind()), Some(ErrorKind::Overloaded));
    }
}
