//! The outcome of a call as frames, written at the pace of its caller.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Done, FrameKind, FrameRun, Item, Load, WireError};
use callboard_codec::{Account, Envelope, Payload};
use callboard_core::edge::{LARGE_BYTES, Pace, PaceLimits};
use callboard_core::remote::StageReply;
use callboard_core::{CallError, Deadline, ErrorKind, Instant, LocalClient, ResponseFields, Timing};

use super::NetConfig;
use super::fault::{StreamFault, StreamRefusal};
use crate::stream::FrameSender;
use crate::{offload, wire};

/// An encoded output, its timing, and the number of stages that it went through.
pub(super) struct EncodedOutput {
    envelope: Envelope,
    timing: Timing,
    stages: usize,
    response: Option<ResponseFields>,
    /// Holds the bytes of the envelope.
    held: Arc<dyn Account>,
}

/// The outcome of one call without a stream.
pub(super) struct EntryOutcome {
    pub(super) entry: u16,
    pub(super) outcome: Result<EncodedOutput, CallError>,
    /// The length of the queue of its stage.
    pub(super) queued: usize,
}

impl EncodedOutput {
    /// The length of the envelope.
    pub(super) fn bytes(&self) -> usize {
        self.envelope.len()
    }

    /// The answer to an order, which no stage has run. `held` holds its bytes.
    pub(super) fn of_order(envelope: Envelope, held: Arc<dyn Account>) -> Self {
        Self { envelope, timing: Timing::default(), stages: 0, response: None, held }
    }
}

/// Writes the pieces. A caller that reads too slowly is an error, so that it holds no memory.
pub(super) async fn write(
    config: &NetConfig,
    outgoing: &mut FrameSender,
    mut pieces: &mut [Bytes],
) -> Result<(), StreamFault> {
    let mut pace = write_pace(config);
    while !pieces.is_empty() {
        let written = pace.wait_for(outgoing.write_some(pieces)).await.map_err(|_slow| StreamRefusal::SlowReader)?;
        let (bytes, chunks) = written.map_err(|_| StreamFault::Left)?;
        pace.moved(Instant::now(), bytes);
        pieces = &mut pieces[chunks..];
    }
    Ok(())
}

/// The required pace of a caller that reads.
pub(super) fn write_pace(config: &NetConfig) -> Pace {
    Pace::new(Instant::now(), PaceLimits::new(config.write_progress_timeout, config.min_bytes_per_second))
}

/// Encodes the output of a call. An output that cannot be encoded is an error of this node, unless a later stage
/// refused it: then the caller gets that refusal.
pub(super) async fn answered(
    node: &LocalClient,
    deadline: Deadline,
    ran: Result<StageReply, CallError>,
) -> Result<EncodedOutput, CallError> {
    let ran = ran?;
    let (timing, stages, response) = (ran.reply.timing, ran.stages, ran.response);
    let encoded = encode(node, deadline, ran.reply.payload).await;
    let (envelope, held) = encoded.map_err(|error| ran.refused.unwrap_or(error))?;
    Ok(EncodedOutput { envelope, timing, stages, response, held })
}

/// Encodes a value. Returns the account that holds its bytes until they are sent.
pub(super) async fn encode(
    node: &LocalClient,
    deadline: Deadline,
    payload: Payload,
) -> Result<(Envelope, Arc<dyn Account>), CallError> {
    let account: Arc<dyn Account> = Arc::new(node.edge().held_bytes());
    let budget = node.edge().codec_budget(Arc::clone(&account), deadline);
    let (bytes, write) =
        (payload.size_up_to(LARGE_BYTES), move || offload::contain(move || Ok(payload.to_envelope()?)));
    let encoded = budget.run_once((), bytes, write).await.and_then(|((), envelope)| envelope);
    let charged = encoded.and_then(|envelope| budget.charge_outcome(envelope.len()).map(|()| envelope));
    // The call has run, even if its output cannot be sent.
    charged.map(|envelope| (envelope, account)).map_err(|error| {
        let mut parts = error.into_parts();
        parts.started = true;
        parts.into()
    })
}

/// Appends the frame of an outcome. Returns the account that holds its bytes until it is sent. Whether the caller is
/// sent the trace of an error is known by its role and the listener.
pub(super) fn put_outcome(
    frames: &mut FrameRun,
    entry: u16,
    outcome: Result<EncodedOutput, CallError>,
    load: Load,
    sends_traces: bool,
) -> Option<Arc<dyn Account>> {
    let mut holding = None;
    let put = match outcome {
        Ok(EncodedOutput { envelope, timing, stages, response, held }) => {
            holding = Some(held);
            let stages = u32::try_from(stages).unwrap_or(u32::MAX);
            let response = response.map(wire::response_head);
            let done = Done { stages, times: wire::times(timing), load, response };
            frames.push(FrameKind::Done, entry, &done, envelope.parts())
        }
        Err(error) if sends_traces => put_error(frames, entry, error, load),
        Err(error) => put_error(frames, entry, error.without_trace(), load),
    };
    // Only an error whose text does not fit into a header fails here.
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
    let (fail, details) = wire::fail(error, load);
    frames.push(FrameKind::Fail, entry, &fail, details.as_ref().map(Envelope::parts).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_codec::Local;
    use callboard_core::{App, Reply};

    use super::*;

    #[tokio::test]
    async fn an_output_that_cannot_be_encoded_is_answered_with_the_refusal_of_the_next_stage() {
        let node = App::new().start().await.unwrap();
        let deadline = Deadline::from(Duration::from_secs(10));
        let reply = || StageReply::new(Reply::new(Payload::new(Local(1_u64)), Timing::default()), 1);
        let refusal = CallError::new(ErrorKind::Overloaded, "full");
        let refused = answered(&node.client(), deadline, Ok(reply().with_refusal(refusal))).await;
        assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Overloaded));
        let failed = answered(&node.client(), deadline, Ok(reply())).await;
        assert_ne!(failed.err().map(|error| error.kind()), Some(ErrorKind::Overloaded));
    }
}
