//! A streaming call: its outputs are sent at the pace of its reader, which grants credit for a number of outputs.
//!
//! Without credit the call is not polled, so its worker waits for a slow network or program. At the deadline the call
//! ends with an error, and nothing is held for the reader any more.

use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::wire::{Credit, FrameKind, FramePart, FrameRun};
use callboard_codec::{Account, Payload};
use callboard_core::edge::{CallEnd, ErrorParts, PayloadReplies};
use callboard_core::{CallError, Deadline, ErrorKind, LocalClient};
use futures_util::StreamExt;

use super::ServerState;
use super::answer::{encode, put_end, put_item, put_outcome, write};
use super::exchange::load;
use super::fault::{StreamFault, StreamRefusal};
use super::record::CallRecord;
use crate::endpoint::flush_now;
use crate::stream::{FrameReceiver, FrameSender, ReadFault};

/// Decodes the input and starts the call.
pub(super) type OpeningReplies = Pin<Box<dyn Future<Output = Result<PayloadReplies, CallError>> + Send>>;

/// A call that answers with a stream, ready to run.
pub(super) struct StreamingCall {
    pub(super) entry: u16,
    pub(super) credit: u32,
    pub(super) node: Arc<LocalClient>,
    pub(super) opening: OpeningReplies,
    pub(super) deadline: Deadline,
}

pub(super) async fn answer(
    server: &Arc<ServerState>,
    call: StreamingCall,
    mut record: Option<CallRecord>,
    sends_traces: bool,
    outgoing: &mut FrameSender,
    incoming: &mut FrameReceiver,
) -> Result<(), StreamFault> {
    let StreamingCall { entry, mut credit, node, opening, deadline } = call;
    record.iter_mut().for_each(CallRecord::streams);
    let mut writer = OutputWriter { server, node, entry, deadline, sends_traces, record };
    let mut replies = OutputSource::Opening(opening);
    let stopped = outgoing.stopped();
    tokio::pin!(stopped);
    let mut has_ended = false;
    loop {
        let mut frames = FrameRun::default();
        // Holds the bytes of an output until it is written.
        let mut held = None;
        let is_last = tokio::select! {
            biased;
            part = incoming.next_part(), if !has_ended => {
                match read_caller(entry, part)? {
                    CallerFrame::Other => {}
                    CallerFrame::Credit(items) => credit = credit.saturating_add(items),
                    CallerFrame::End => has_ended = true,
                }
                continue;
            }
            _ = &mut stopped => return Err(StreamFault::Left),
            item = replies.next(), if credit > 0 => {
                credit -= 1;
                writer.put(&mut frames, item, &mut held).await
            }
            // Without credit the call is not polled, so it cannot report its deadline itself.
            () = tokio::time::sleep_until(deadline.instant()) => {
                let message = "the deadline passed before the stream was read";
                let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, message);
                parts.started = true;
                writer.put(&mut frames, Some(Err(parts.into())), &mut held).await
            }
        };
        write(&server.config, outgoing, &mut frames.into_pieces()).await?;
        drop(held);
        if is_last {
            outgoing.finish();
            return Ok(());
        }
        // Sent before the next output is encoded.
        flush_now();
    }
}

enum CallerFrame {
    /// Room for more outputs.
    Credit(u32),
    /// The end of the caller's half of the stream.
    End,
    /// A frame without an effect here.
    Other,
}

fn read_caller(entry: u16, part: Result<Option<FramePart>, ReadFault>) -> Result<CallerFrame, StreamFault> {
    match part {
        Ok(Some(FramePart::Head(head))) if head.kind == FrameKind::Credit && head.entry == entry => {
            let more: Credit = head.header()?;
            Ok(CallerFrame::Credit(more.items))
        }
        Ok(Some(FramePart::Head(head))) if head.kind == FrameKind::Cancel && head.entry == entry => {
            Err(StreamFault::Left)
        }
        // Another call, which was answered or never began.
        Ok(Some(FramePart::Head(head))) if head.kind == FrameKind::Cancel => Ok(CallerFrame::Other),
        Ok(Some(_)) => Err(StreamRefusal::UnexpectedKind.into()),
        Ok(None) => Ok(CallerFrame::End),
        Err(ReadFault::Wire(error)) => Err(error.into()),
        Err(ReadFault::Ended | ReadFault::Reset(_) | ReadFault::Lost(_)) => Err(StreamFault::Left),
    }
}

/// Writes the outputs of one call.
struct OutputWriter<'a> {
    server: &'a ServerState,
    node: Arc<LocalClient>,
    entry: u16,
    deadline: Deadline,
    sends_traces: bool,
    /// Until the call has ended.
    record: Option<CallRecord>,
}

impl OutputWriter<'_> {
    /// Appends the frame of the next output, of the end, or of an error. `true`: it is the last frame.
    async fn put(
        &mut self,
        frames: &mut FrameRun,
        item: Option<Result<Payload, CallError>>,
        held: &mut Option<Arc<dyn Account>>,
    ) -> bool {
        let put = match item {
            None => {
                self.end(CallEnd::Answered);
                put_end(frames, self.entry, load(self.server));
                return true;
            }
            Some(Ok(payload)) => match encode(&self.node, self.deadline, payload).await {
                Ok((envelope, account)) => {
                    *held = Some(account);
                    self.record.iter_mut().for_each(|record| record.add_output(envelope.len()));
                    put_item(frames, self.entry, &envelope)
                }
                Err(error) => Err(error),
            },
            Some(Err(error)) => Err(error),
        };
        let Err(error) = put else { return false };
        self.end(CallEnd::Failed(&error));
        put_outcome(frames, self.entry, Err(error), load(self.server), self.sends_traces);
        true
    }

    fn end(&mut self, end: CallEnd<'_>) {
        if let Some(record) = self.record.take() {
            record.end(end);
        }
    }
}

/// The source of the outputs, before and after the call has started.
enum OutputSource {
    Opening(OpeningReplies),
    Open(PayloadReplies),
    Refused,
}

impl OutputSource {
    /// The next output.
    ///
    /// # Cancellation
    ///
    /// Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Result<Payload, CallError>> {
        if let Self::Opening(opening) = self {
            match opening.await {
                Ok(replies) => *self = Self::Open(replies),
                Err(error) => {
                    *self = Self::Refused;
                    return Some(Err(error));
                }
            }
        }
        match self {
            Self::Open(replies) => replies.next().await,
            Self::Opening(_) | Self::Refused => None,
        }
    }
}
