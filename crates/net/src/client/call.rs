//! One call on a stream of its own, driven by its caller's future: dropped, it resets the stream, and with that the call.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Call, Done, Fail, FrameHead, FrameKind, FrameLimits, FramePart, frame_head};
use callboard_codec::{Account, DecodeLimits, Envelope, EnvelopeDecoder, charged_to};
use callboard_core::{CallError, ErrorKind};
use futures_util::TryFutureExt;

use super::fault::{early, not_started, read_fault, unknown, unreadable};
use super::link::Link;
use crate::stream::{Incoming, Outgoing, ReadFault, WriteFault};
use crate::{contained, convert};

/// A successful outcome, its body received and not yet read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) done: Done,
    pub(crate) body: EnvelopeDecoder,
}

/// Reads an output, off the runtime where it is large. Whatever is wrong with it, or panics in reading it, ends this call alone; the call
/// itself has run. `account` pays for the body and for what it becomes, where a caller of this node waits for it.
pub(crate) fn read_output<T: Send + 'static, E: std::fmt::Display>(
    body: EnvelopeDecoder,
    account: Option<Arc<dyn Account>>,
    read: impl FnOnce(EnvelopeDecoder) -> Result<T, E> + Send + 'static,
) -> impl Future<Output = Result<T, CallError>> + Send {
    let bytes = body.total_bytes().unwrap_or_default();
    let work = move || match &account {
        Some(account) => {
            account.charge(bytes).map_err(unreadable)?;
            charged_to(account, || read(body).map_err(unreadable))
        }
        None => read(body).map_err(unreadable),
    };
    contained::run(bytes, work).map_err(|error| {
        let mut parts = error.into_parts();
        parts.started = true;
        parts.into()
    })
}

/// Both halves of a call's stream.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    limits: DecodeLimits,
    /// Keeps the connection while the call is on it, although newer calls may go elsewhere.
    link: Arc<Link>,
    _open: Arc<()>,
}

impl Talk {
    /// Opens a stream; waits while the node has no room for one more.
    pub(crate) async fn open(link: &Arc<Link>, frames: &FrameLimits, limits: &DecodeLimits) -> Result<Self, CallError> {
        let opened = link.connection().open_bi().await;
        let (send, receive) = opened.map_err(|error| not_started(format!("no stream could be opened: {error}")))?;
        let (outgoing, incoming) = (Outgoing::new(send), Incoming::new(receive, frames.clone()));
        Ok(Self {
            outgoing,
            incoming,
            limits: limits.clone(),
            link: Arc::clone(link),
            _open: Arc::clone(link.streams()),
        })
    }

    /// Makes the call, whole, and waits for its outcome.
    pub(crate) async fn call(mut self, call: &Call, envelope: Envelope) -> Result<Answer, CallError> {
        let early = self.send(call, envelope, true).await?;
        let head = match early {
            Some(head) => head,
            None => self.next_head().await?,
        };
        self.answer(&head).await
    }

    /// Sends the call. The node may answer before it has all of it: that it will not take it.
    pub(crate) async fn send(
        &mut self,
        call: &Call,
        envelope: Envelope,
        last: bool,
    ) -> Result<Option<FrameHead>, CallError> {
        self.link.check_input(envelope.len())?;
        let head = frame_head(FrameKind::Call, 0, call, envelope.len());
        let head = head.map_err(|error| CallError::new(ErrorKind::InvalidInput, error.to_string()))?;
        let mut pieces: Vec<Bytes> = std::iter::once(head).chain(envelope.into_parts()).collect();
        let written = tokio::select! {
            biased;
            written = self.outgoing.write(&mut pieces) => written,
            head = self.incoming.next_head() => return early(head).map(Some),
        };
        match written {
            Ok(()) => {
                if last {
                    self.outgoing.finish();
                }
                Ok(None)
            }
            Err(WriteFault::Stopped(_)) => early(self.incoming.next_head().await).map(Some),
            // The node starts nothing whose body it has not read to its end.
            Err(fault @ WriteFault::Lost(_)) => Err(not_started(fault.to_string())),
        }
    }

    pub(crate) async fn next_head(&mut self) -> Result<FrameHead, CallError> {
        match self.incoming.next_head().await {
            Ok(Some(head)) => Ok(head),
            Ok(None) => Err(unknown("the stream ended without an outcome")),
            Err(fault) => Err(read_fault(&fault)),
        }
    }

    pub(crate) async fn answer(&mut self, head: &FrameHead) -> Result<Answer, CallError> {
        match head.kind {
            FrameKind::Done => {
                let done = head.done().map_err(unreadable)?;
                let body = self.body(head).await?;
                Ok(Answer { done, body })
            }
            FrameKind::Fail => Err(self.fail(head).await),
            kind => Err(unknown(&format!("a frame of the kind {kind} came instead of an outcome"))),
        }
    }

    /// The body behind a head, in a decoder that shares or fills its segments as they come.
    pub(crate) async fn body(&mut self, head: &FrameHead) -> Result<EnvelopeDecoder, CallError> {
        let mut decoder = EnvelopeDecoder::new(&self.limits);
        let mut left = head.body_bytes;
        while left > 0 {
            match self.incoming.next_part().await {
                Ok(Some(FramePart::Body { bytes, .. })) => {
                    left -= bytes.len();
                    decoder.push(bytes).map_err(unreadable)?;
                }
                Ok(_) => return Err(read_fault(&ReadFault::Ended)),
                Err(fault) => return Err(read_fault(&fault)),
            }
        }
        Ok(decoder)
    }

    pub(crate) async fn fail(&mut self, head: &FrameHead) -> CallError {
        if head.body_bytes > convert::max_details_bytes() {
            return unknown("an error came with more details than fit");
        }
        let fail = match head.header::<Fail>() {
            Ok(fail) => fail,
            Err(error) => return unreadable(error),
        };
        match self.incoming.short_body(head).await {
            Ok(details) => convert::error(fail, &details),
            // What happened is known; what was attached is not.
            Err(_) => convert::error(fail, &Bytes::new()),
        }
    }
}
