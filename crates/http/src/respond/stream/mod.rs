//! A streamed response: the outcomes of one call of a streaming route, as they arrive.
//!
//! * **Begun:** the status waits for the first item, so that a call that fails at once has an error status. An event
//!   stream waits at most for its heartbeat; then it begins, and an error is an event in it.
//! * **Explained:** an event stream whose request asked for its timeline has it in an event before the last one.
//! * **Full:** further outcomes are taken once the connection has taken earlier ones, up to [a limit](send_buffer). A
//!   slow reader uses up only the credit of its own call.
//! * **Broken:** an item that cannot be encoded, or a panic of user code, is the error that ends the stream. Plain text
//!   has no place for it: its body is cut.
//! * **Late:** the deadline covers the whole stream. When it passes, or the node ends, the last item is that error.
//! * **Cancelled:** dropping the body, as hyper does when the client leaves, cancels the call; the request counts as
//!   abandoned.

mod form;
mod heartbeat;
mod joined;
mod send_buffer;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, VARY};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::Payload;
use callboard_core::edge::{HeldBytes, LARGE_BYTES, PayloadReplies};
use callboard_core::timeline::Recorder;
use callboard_core::{Deadline, LocalClient};
use futures_util::{FutureExt as _, StreamExt, stream};
use prometheus_client::metrics::counter::Counter;
use thiserror::Error;

pub(crate) use self::form::{StreamForm, one_line};
pub(crate) use self::heartbeat::Heartbeat;
pub(crate) use self::joined::{JoinedStream, StreamSource};
pub(crate) use self::send_buffer::SendBuffer;

use self::form::{EncodedItem, StreamWriter};
use crate::error::ApiError;
use crate::error::catch_panic::caught_within;
use crate::observe::timeline_header;
use crate::request::coding::ContentCoding;
use crate::request_id::RequestId;
use crate::respond::ChosenResponse;
use crate::respond::compressor::Compressor;
use crate::upgrade::EdgeLife;
use callboard_telemetry::RequestSpan;

/// The part of a request that its stream keeps.
#[derive(Debug)]
pub(crate) struct StreamContext {
    pub(crate) form: StreamForm,
    /// Charges the encoded items.
    pub(crate) client: LocalClient,
    /// The deadline of the whole stream.
    pub(crate) deadline: Deadline,
    /// Aborts the stream.
    pub(crate) life: Arc<EdgeLife>,
    pub(crate) id: RequestId,
    /// Ends with the stream.
    pub(crate) span: Option<Arc<RequestSpan>>,
    /// The recorder, if the client asked for the timeline.
    pub(crate) explained: Option<Recorder>,
    /// The route's name, for the log.
    pub(crate) route: String,
    /// Counts requests whose client left.
    pub(crate) abandoned: Counter,
    /// Counts requests that panicked.
    pub(crate) panics: Counter,
    /// The longest silence of an event stream.
    pub(crate) heartbeat: Duration,
    /// Whether its caller is sent the trace of an error.
    pub(crate) sends_traces: bool,
    pub(crate) coding: Option<ContentCoding>,
}

/// The response of a call with many outcomes.
pub(crate) async fn begin(replies: PayloadReplies, streamed: StreamContext) -> Result<Response, ApiError> {
    let form = streamed.form;
    // A compressor is as large as many calls: without room for it the stream is not compressed.
    let compressor_charge = streamed.client.edge().held_bytes();
    let coding = streamed.coding.filter(|coding| compressor_charge.try_grow(coding.compressor_bytes() as u64));
    let compressor = coding.and_then(|coding| Compressor::new(coding).ok());
    let coding = coding.filter(|_| compressor.is_some());
    let source = ReplySource {
        replies,
        client: streamed.client,
        deadline: streamed.deadline,
        life: streamed.life,
        writer: StreamWriter::new(form),
        is_broken: false,
        panics: streamed.panics,
        sends_traces: streamed.sends_traces,
        id: streamed.id,
        route: streamed.route,
        explained: streamed.explained,
        _span: streamed.span,
    };
    let mut joined = JoinedStream::new(source, form.has_heartbeats().then(|| Heartbeat::new(streamed.heartbeat)));
    joined.begin().await?;
    let chosen = joined.source.replies.response().map(ChosenResponse::try_for_stream).transpose()?;
    joined.count_leaving(streamed.abandoned);
    let items = joined.items();
    let stream_body = ReplyStreamBody { joined, compressor, _compressor_charge: compressor_charge };
    let body = stream::unfold(stream_body, async |mut stream_body| Some((stream_body.next().await?, stream_body)));
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(items);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Otherwise nginx and similar proxies buffer a page of events before they send any.
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    if let Some(chosen) = chosen {
        chosen.apply(&mut response);
    }
    Ok(response)
}

/// The error of a body that ends early: its client reads that it was cut.
#[derive(Debug, Error)]
#[error("the stream ended with an error")]
pub(crate) struct BrokenStream;

pub(crate) const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The response body of one stream.
struct ReplyStreamBody {
    joined: JoinedStream<ReplySource>,
    compressor: Option<Compressor>,
    _compressor_charge: HeldBytes,
}

impl ReplyStreamBody {
    /// The next piece of the body.
    async fn next(&mut self) -> Option<Result<Bytes, BrokenStream>> {
        if let Some(piece) = self.joined.next().await {
            return Some(Ok(match &mut self.compressor {
                None => piece,
                // Compressing into memory does not fail.
                Some(compressor) => compressor.piece(&piece).unwrap_or_default(),
            }));
        }
        if std::mem::take(&mut self.joined.source.is_broken) {
            self.compressor = None;
            // hyper sends the pieces that it has when it waits, and drops them at an error.
            tokio::task::yield_now().await;
            return Some(Err(BrokenStream));
        }
        self.compressor.take().and_then(|compressor| compressor.finish().ok()).map(Ok)
    }
}

/// The outcomes of a call.
struct ReplySource {
    replies: PayloadReplies,
    client: LocalClient,
    deadline: Deadline,
    life: Arc<EdgeLife>,
    writer: StreamWriter,
    /// It has ended with an error that its form cannot tell.
    is_broken: bool,
    panics: Counter,
    sends_traces: bool,
    id: RequestId,
    route: String,
    explained: Option<Recorder>,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl StreamSource for ReplySource {
    type Item = Payload;

    async fn next(&mut self) -> Option<Result<Payload, ApiError>> {
        next_reply(&mut self.replies, &self.life).await
    }

    /// Without a look at the life of the edge, whose lock all connections share.
    fn ready(&mut self) -> Poll<Option<Result<Payload, ApiError>>> {
        match self.replies.next().now_or_never() {
            Some(reply) => Poll::Ready(reply.map(|reply| reply.map_err(ApiError::from))),
            None => Poll::Pending,
        }
    }

    /// JSON that is long is encoded on another thread. An envelope shares the memory of the outcome.
    fn bytes(&self, payload: &Payload) -> usize {
        if self.writer.form().is_json() { payload.size_up_to(LARGE_BYTES) } else { 0 }
    }

    /// Encodes an item. User code may panic here, on the connection's own task: that ends this stream only. The item is
    /// charged to an account of its own until it is sent.
    async fn write(&mut self, payload: Payload, out: &mut SendBuffer) -> Result<(), ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let (bytes, form) = (self.bytes(&payload), self.writer.form());
        let encoding = Box::pin(budget.run_outcome(bytes, move || EncodedItem::try_new(&payload, form)));
        let item = caught_within(&self.panics, encoding).await?;
        self.writer.item(item.map_err(ApiError::unencodable)?.held(&budget)?, out);
        Ok(())
    }

    fn end(&mut self, out: &mut SendBuffer) {
        self.explain(out);
        self.writer.end(out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut SendBuffer) {
        error.log(self.id.as_str(), Some(&self.route));
        self.explain(out);
        self.is_broken = !self.writer.error(error, self.id.as_str(), self.sends_traces, out);
    }
}

impl ReplySource {
    fn explain(&mut self, out: &mut SendBuffer) {
        if let Some(recorder) = self.explained.take() {
            self.writer.timeline(&timeline_header::document(&recorder), out);
        }
    }
}

/// The next reply of a stream, or the error of a stream that is aborted.
pub async fn next_reply(replies: &mut PayloadReplies, life: &EdgeLife) -> Option<Result<Payload, ApiError>> {
    match life.aborting.unless_begun(pin!(replies.next())).await {
        Some(reply) => reply.map(|reply| reply.map_err(ApiError::from)),
        None => Some(Err(ApiError::ending())),
    }
}

/// Counts a reader that leaves, if it is dropped before the end of the stream.
#[derive(Debug)]
pub struct AbandonGuard {
    abandoned: Counter,
    ended: bool,
}

impl AbandonGuard {
    /// Counts with this counter.
    #[must_use]
    pub fn new(abandoned: Counter) -> Self {
        Self { abandoned, ended: false }
    }

    /// Records that the reader left before the end.
    pub(crate) fn abandon(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.abandoned.inc();
        }
    }

    /// The stream has ended: a reader that leaves now has everything.
    pub fn ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        self.abandon();
    }
}
