//! One call on a stream of its own, driven by its caller's future: dropping it resets the stream, and so cancels the
//! call.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{Call, Done, Fail, FrameHead, FrameKind, FrameLimits, FramePart, frame_head};
use callboard_codec::{Data, DecodeError, DecodeLimits, Envelope, EnvelopeDecoder};
use callboard_core::edge::CodecBudget;
use callboard_core::{CallError, ErrorKind};
use serde::Serialize;

use super::coalesce::ROOM_WAIT;
use super::connection::NodeConnection;
use super::fault::{CallFault, early, read_fault, unreadable, unreadable_as};
use crate::counter::CountGuard;
use crate::stream::{FrameReceiver, FrameSender, ReadFault, WriteFault};
use crate::{offload, wire};

/// A successful outcome: its body was received, but not decoded.
#[derive(Debug)]
pub(crate) struct CallResponse {
    pub(crate) done: Done,
    pub(crate) body: EnvelopeDecoder,
}

/// Decodes an output; a large one on another thread. An error or a panic affects only this call, which has run. The
/// `budget` of a node pays for the body and for the decoded output.
pub(crate) async fn read_output<T: Send + 'static, E: std::fmt::Display>(
    body: EnvelopeDecoder,
    budget: Option<CodecBudget<'_>>,
    read: impl FnOnce(EnvelopeDecoder) -> Result<T, E> + Send + 'static,
) -> Result<T, CallError> {
    let bytes = body.total_bytes().unwrap_or_default();
    let work = move || read(body).map_err(unreadable);
    let done = match budget {
        None => offload::run(bytes, work).await,
        Some(budget) => {
            budget.charge(bytes).map_err(unreadable)?;
            let done = budget.run_once((), bytes, move || offload::contain(work)).await;
            done.and_then(|((), done)| done)
        }
    };
    done.map_err(|error| {
        let mut parts = error.into_parts();
        (parts.started, parts.retry_after) = (true, None);
        parts.into()
    })
}

/// The form in which a caller wants its outputs.
pub(super) trait OutputForm: Send + 'static {
    type Output: Send + 'static;
    /// Whether bodies are received unread.
    const IS_ENCODED: bool;

    fn read(body: EnvelopeDecoder, route: &str) -> impl Future<Output = Result<Self::Output, CallError>> + Send;
}

/// Outputs of the type that the caller asks for.
pub(super) struct Decoded<Out>(PhantomData<Out>);

impl<Out: Data> OutputForm for Decoded<Out> {
    type Output = Out;
    const IS_ENCODED: bool = false;

    async fn read(body: EnvelopeDecoder, route: &str) -> Result<Out, CallError> {
        let read = read_output(body, None, |body| Ok::<_, DecodeError>(body.finish_as::<Out>())).await?;
        read.map_err(|error| unreadable_as::<Out>(route, &error))
    }
}

/// How the body of a reply is received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimits<'a> {
    pub(crate) frames: &'a FrameLimits,
    pub(crate) decode: &'a DecodeLimits,
    /// Whether it stays encoded.
    pub(crate) is_encoded: bool,
}

impl ReplyLimits<'_> {
    pub(super) fn decoder(&self) -> EnvelopeDecoder {
        if self.is_encoded { EnvelopeDecoder::unread(self.decode) } else { EnvelopeDecoder::new(self.decode) }
    }
}

/// The behaviour of a caller while the node has no room for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomPolicy {
    /// It waits, within its deadline.
    Wait,
    /// It fails after [`ROOM_WAIT`], to try another node.
    FailFast,
}

/// Both halves of a call's own stream.
#[derive(Debug)]
pub(crate) struct CallExchange {
    pub(crate) outgoing: FrameSender,
    pub(crate) incoming: FrameReceiver,
    limits: DecodeLimits,
    is_encoded: bool,
    /// Keeps the connection open for this call, although newer calls may use another one.
    node: Arc<NodeConnection>,
    _open: CountGuard,
}

impl CallExchange {
    /// Opens a stream.
    pub(crate) async fn open(
        node: &Arc<NodeConnection>,
        limits: ReplyLimits<'_>,
        room: RoomPolicy,
    ) -> Result<Self, CallFault> {
        // A call that waits for a stream is watched, too.
        let open = node.link().begin();
        let opening = node.connection().open_bi();
        let opened = match room {
            RoomPolicy::Wait => opening.await,
            RoomPolicy::FailFast => tokio::time::timeout(ROOM_WAIT, opening).await.map_err(|_| CallFault::no_room())?,
        };
        let (send, receive) = opened.map_err(|error| CallFault::no_stream(&error))?;
        Ok(Self {
            outgoing: FrameSender::new(send),
            incoming: FrameReceiver::new(receive, limits.frames.clone()).watched_by(Arc::clone(node.link())),
            limits: limits.decode.clone(),
            is_encoded: limits.is_encoded,
            node: Arc::clone(node),
            _open: open,
        })
    }

    /// Makes the call, and waits for its outcome.
    pub(crate) async fn call(mut self, call: &Call, envelope: Envelope) -> Result<CallResponse, CallFault> {
        let early = self.send(call, envelope, true).await?;
        let head = match early {
            Some(head) => head,
            None => self.next_head().await?,
        };
        self.response(&head).await
    }

    /// Sends an order, and waits for its outcome.
    pub(super) async fn order(mut self, kind: FrameKind, header: &impl Serialize) -> Result<CallResponse, CallFault> {
        let head = frame_head(kind, 0, header, 0);
        let head = head.map_err(|error| CallError::new(ErrorKind::InvalidInput, error.to_string()))?;
        self.outgoing.write(&mut [head]).await.map_err(CallFault::not_started)?;
        self.outgoing.finish();
        let head = self.next_head().await?;
        self.response(&head).await
    }

    /// Sends the call. Returns the node's answer if it comes before the call is sent completely.
    pub(crate) async fn send(
        &mut self,
        call: &Call,
        envelope: Envelope,
        is_last: bool,
    ) -> Result<Option<FrameHead>, CallFault> {
        self.node.check_input(envelope.len())?;
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
                if is_last {
                    self.outgoing.finish();
                }
                Ok(None)
            }
            Err(WriteFault::Stopped(_)) => early(self.incoming.next_head().await).map(Some),
            // A node starts no call before it has the whole body.
            Err(fault @ WriteFault::Lost(_)) => Err(CallFault::not_started(fault)),
        }
    }

    pub(crate) async fn next_head(&mut self) -> Result<FrameHead, CallFault> {
        match self.incoming.next_head().await {
            Ok(Some(head)) => Ok(head),
            Ok(None) => Err(CallFault::lost(&"the stream ended without an outcome")),
            Err(fault) => Err(read_fault(&fault)),
        }
    }

    pub(crate) async fn response(&mut self, head: &FrameHead) -> Result<CallResponse, CallFault> {
        match head.kind {
            FrameKind::Done => {
                let done = head.done().map_err(unreadable)?;
                let body = self.body(head).await?;
                Ok(CallResponse { done, body })
            }
            FrameKind::Fail => Err(self.fail(head).await),
            kind => Err(CallFault::unexpected_frame(kind)),
        }
    }

    /// Receives the body that follows a head, in a decoder that shares or fills its segments as they arrive.
    pub(crate) async fn body(&mut self, head: &FrameHead) -> Result<EnvelopeDecoder, CallFault> {
        let new = if self.is_encoded { EnvelopeDecoder::unread } else { EnvelopeDecoder::new };
        let mut decoder = new(&self.limits);
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

    pub(crate) async fn fail(&mut self, head: &FrameHead) -> CallFault {
        if head.body_bytes > wire::max_details_bytes() {
            return CallFault::lost(&"an error came with more details than fit");
        }
        let fail = match head.header::<Fail>() {
            Ok(fail) => fail,
            Err(error) => return unreadable(error).into(),
        };
        // Without readable details, the error itself is still known.
        let details = self.incoming.short_body(head).await.unwrap_or_default();
        wire::error(fail, &details).into()
    }
}
