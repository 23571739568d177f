//! A streaming call: outputs at the pace of their reader, who says how many it has room for.
//!
//! Without credit nothing is asked of the call, so its worker waits; the reader of a slow network or program is the one who decides, until the
//! deadline: then it is told, and nothing is held for it any more.

use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::wire::{Credit, FrameKind, FramePart, FrameRun};
use callboard_codec::{Account, Payload};
use callboard_core::edge::{ErrorParts, PayloadReplies};
use callboard_core::{CallError, Deadline, ErrorKind, LocalClient};
use futures_util::StreamExt;

use super::Serving;
use super::answer::{encode, put_end, put_item, put_outcome, write};
use super::exchange::load;
use super::fault::{Fault, StreamRefusal};
use crate::endpoint::send_now;
use crate::stream::{Incoming, Outgoing, ReadFault};

/// The input is read, and the call begins.
pub(super) type Opening = Pin<Box<dyn Future<Output = Result<PayloadReplies, CallError>> + Send>>;

/// A call that answers with a stream, ready to be run.
pub(super) struct StreamingCall {
    pub(super) entry: u16,
    pub(super) credit: u32,
    pub(super) node: Arc<LocalClient>,
    pub(super) opening: Opening,
    /// When it ends, whoever waits for whom.
    pub(super) due: Deadline,
}

pub(super) async fn answer(
    serving: &Arc<Serving>,
    call: StreamingCall,
    outgoing: &mut Outgoing,
    incoming: &mut Incoming,
) -> Result<(), Fault> {
    let StreamingCall { entry, mut credit, node, opening, due } = call;
    let writer = Writer { serving, node, entry, due };
    let mut replies = Replies::Opening(opening);
    let stopped = outgoing.stopped();
    tokio::pin!(stopped);
    let mut ended = false;
    loop {
        let mut frames = FrameRun::default();
        // What holds the bytes of an output until it is written.
        let mut held = None;
        let is_over = tokio::select! {
            biased;
            part = incoming.next_part(), if !ended => {
                match hear(entry, part)? {
                    Heard::Nothing => {}
                    Heard::Credit(items) => credit = credit.saturating_add(items),
                    Heard::End => ended = true,
                }
                continue;
            }
            _ = &mut stopped => return Err(Fault::Left),
            item = replies.next(), if credit > 0 => {
                credit -= 1;
                writer.put(&mut frames, item, &mut held).await
            }
            // Without credit nothing is asked of the call, so it cannot say that its time is up.
            () = tokio::time::sleep_until(due.instant()) => {
                let message = "the deadline passed before the stream was read";
                let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, message);
                parts.started = true;
                writer.put(&mut frames, Some(Err(parts.into())), &mut held).await
            }
        };
        write(&serving.config, outgoing, &mut frames.into_pieces()).await?;
        drop(held);
        if is_over {
            outgoing.finish();
            return Ok(());
        }
        // Before the next output is encoded.
        send_now();
    }
}

/// What the caller has said.
enum Heard {
    /// Nothing that matters here.
    Nothing,
    /// It has room for so many more outputs.
    Credit(u32),
    /// It says no more.
    End,
}

fn hear(entry: u16, part: Result<Option<FramePart>, ReadFault>) -> Result<Heard, Fault> {
    match part {
        Ok(Some(FramePart::Head(head))) if head.kind == FrameKind::Credit && head.entry == entry => {
            let more: Credit = head.header()?;
            Ok(Heard::Credit(more.items))
        }
        Ok(Some(FramePart::Head(head))) if head.kind == FrameKind::Cancel => match head.entry == entry {
            true => Err(Fault::Left),
            // Another one is over, or never was.
            false => Ok(Heard::Nothing),
        },
        Ok(Some(_)) => Err(StreamRefusal::UnexpectedKind.into()),
        Ok(None) => Ok(Heard::End),
        Err(ReadFault::Wire(error)) => Err(error.into()),
        Err(ReadFault::Ended | ReadFault::Reset(_) | ReadFault::Lost(_)) => Err(Fault::Left),
    }
}

/// Writes the outputs of one call.
struct Writer<'a> {
    serving: &'a Serving,
    node: Arc<LocalClient>,
    entry: u16,
    due: Deadline,
}

impl Writer<'_> {
    /// Appends the frame of the next output, of the end, or of an error; says whether nothing comes behind it.
    async fn put(
        &self,
        frames: &mut FrameRun,
        item: Option<Result<Payload, CallError>>,
        held: &mut Option<Arc<dyn Account>>,
    ) -> bool {
        let put = match item {
            None => {
                put_end(frames, self.entry, load(self.serving));
                return true;
            }
            Some(Ok(payload)) => match encode(&self.node, self.due, payload).await {
                Ok((envelope, account)) => {
                    *held = Some(account);
                    put_item(frames, self.entry, &envelope)
                }
                Err(error) => Err(error),
            },
            Some(Err(error)) => Err(error),
        };
        let Err(error) = put else { return false };
        put_outcome(frames, self.entry, Err(error), load(self.serving));
        true
    }
}

/// The outputs, as soon as there are any.
enum Replies {
    Opening(Opening),
    Open(PayloadReplies),
    Refused,
}

impl Replies {
    /// The next output.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost when it is dropped.
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
