//! An ordered stream of calls in one request: frames with inputs or arguments in, frames with outcomes out, in the same
//! order.
//!
//! * **Begun:** the response begins at once, so that a client may wait for its head before the first call.
//! * **Full:** frames are read ahead of the reader up to the route's look-ahead; then the client waits. A client that
//!   sends without reading is blocked, and cut after a time.
//! * **Late:** a late result fails its own call with `deadline_exceeded`; the stream continues.
//! * **Aborted:** when the node ends before the stream, the last frame has that error.
//! * **Cancelled:** a client that leaves, or truncates its body, cancels all open calls.
//!
//! An error concerns its own call; the first ten of a stream are logged. An invalid frame ends the stream: the error is
//! its last frame, without an end frame.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::Value;
use callboard_core::edge::{CAPACITY_POLL_INTERVAL, HeldBytes, Route};
use callboard_core::{CallError, CallOptions, Deadline, Instant, LocalClient};
use futures_util::{Stream, StreamExt, stream};
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;

use super::CallStyle;
use super::frames::{FrameReader, StreamState};
use crate::call::RequestContext;
use crate::call::context::with_head;
use crate::call::method::with_method_and_client;
use crate::error::ApiError;
use crate::error::catch_panic::caught_within;
use crate::observe::stream_log::StreamedItems;
use crate::request::head::RequestHead;
use crate::request_id::RequestId;
use crate::respond::frame::{Frame, FrameKind};
use crate::respond::stream::{AbandonGuard, StreamForm};
use crate::upgrade::EdgeLife;
use callboard_telemetry::RequestSpan;

/// Answers a stream of calls.
pub(crate) fn answer(
    context: RequestContext<'_>,
    route: &Arc<Route>,
    style: CallStyle,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let head = RequestHead::read(request.headers())?;
    if let Some(accept) = &head.accept
        && StreamForm::from_accept(Some(accept), route.output())? != StreamForm::Envelopes
        && **accept != "*/*"
    {
        return Err(ApiError::not_acceptable(StreamForm::Envelopes.media_type()));
    }
    if head.coding.is_some() {
        return Err(ApiError::packed_stream());
    }
    if route.streams() {
        return Err(ApiError::no_calls_of_streams(route.name()));
    }
    let options = with_head(CallOptions::new(), &head);
    let parts = (request.uri(), request.headers(), request.extensions());
    let options = context.with_request(options, route, parts)?;
    let options = with_method_and_client(options, route, style, &request);
    let attributes = context.client.edge().held_bytes();
    attributes.grow(options.attribute_bytes() as u64)?;
    let timeout = head.timeout;
    let shared = Arc::default();
    let body = request.into_body();
    let frames = FrameReader::new(body, context, route, style, timeout, Arc::clone(&shared));
    let calls = context.client.stream_from::<_, Value>(route.name(), frames.into_inputs())?.options(options);
    let outcomes = Box::pin(timeout.into_iter().fold(calls, callboard_core::CallStream::timeout));
    let items = StreamedItems::default();
    let stream_body = CallStreamBody {
        outcomes,
        life: Arc::clone(context.life),
        client: context.client.clone(),
        shared,
        unsent: VecDeque::new(),
        is_over: false,
        id: context.id.clone(),
        sends_traces: context.sends_traces,
        route: route.name().to_owned(),
        errors_to_log: MAX_LOGGED_ERRORS,
        panics: context.metrics.requests.panics.clone(),
        leaving: AbandonGuard::new(context.metrics.requests.abandoned.clone()),
        items: items.clone(),
        _attributes: attributes,
        _span: context.span.cloned(),
    };
    let body = stream::unfold(stream_body, async |mut stream_body| {
        stream_body.next().await.map(|piece| (Ok::<_, Infallible>(piece), stream_body))
    });
    let mut response = Response::new(Body::from_stream(body));
    let media_type = HeaderValue::from_static(StreamForm::Envelopes.media_type());
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response.extensions_mut().insert(items);
    Ok(response)
}

type Outcomes = Pin<Box<dyn Stream<Item = Result<Value, CallError>> + Send>>;

/// The response body of one stream of calls.
struct CallStreamBody {
    outcomes: Outcomes,
    life: Arc<EdgeLife>,
    client: LocalClient,
    shared: Arc<StreamState>,
    unsent: VecDeque<Bytes>,
    is_over: bool,
    id: RequestId,
    sends_traces: bool,
    route: String,
    /// The number of further errors to log.
    errors_to_log: u32,
    /// Counts panics of user code in codecs.
    panics: Counter,
    leaving: AbandonGuard,
    items: StreamedItems,
    /// The bytes of what all of its calls have for user code beside their inputs.
    _attributes: HeldBytes,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

/// The most errors of one stream that are logged: a million failing calls should not fill the log.
const MAX_LOGGED_ERRORS: u32 = 10;

impl CallStreamBody {
    /// The next piece of the body.
    async fn next(&mut self) -> Option<Bytes> {
        while self.unsent.is_empty() && !self.is_over {
            let outcome = tokio::select! {
                biased;
                outcome = async { self.life.aborting.unless_begun(pin!(self.outcomes.next())).await } => match outcome {
                    Some(outcome) => outcome,
                    None => {
                        self.outcomes = Box::pin(stream::empty());
                        *self.shared.fault.lock() = Some(ApiError::ending());
                        None
                    }
                },
                // The client left: no call needs to continue.
                () = self.shared.truncated.notified() => {
                    self.outcomes = Box::pin(stream::empty());
                    self.leaving.abandon();
                    None
                }
            };
            let frame = match outcome {
                Some(outcome) => {
                    self.shared.open.fetch_sub(1, Ordering::Relaxed);
                    self.shared.accounts.lock().pop_front();
                    self.items.count();
                    self.frame_of(outcome).await
                }
                None => {
                    self.is_over = true;
                    self.leaving.ended();
                    let fault = self.shared.fault.lock().take();
                    fault.map_or(Frame::END, |fault| self.problem(&fault))
                }
            };
            frame.write(&mut self.unsent);
        }
        self.unsent.pop_front()
    }

    async fn frame_of(&mut self, outcome: Result<Value, CallError>) -> Frame {
        let frame = match outcome {
            Ok(value) => encode(&self.client, &self.panics, value).await,
            Err(error) => Err(error.into()),
        };
        frame.unwrap_or_else(|error| self.problem(&error))
    }

    fn problem(&mut self, error: &ApiError) -> Frame {
        if let Some(remaining) = self.errors_to_log.checked_sub(1) {
            self.errors_to_log = remaining;
            error.log(self.id.as_str(), Some(&self.route));
        }
        Frame::from_problem(error, self.id.as_str(), self.sends_traces)
    }
}

/// The frame of a value, charged until it is sent. Without room it waits: earlier frames make room.
async fn encode(client: &LocalClient, panics: &Counter, value: Value) -> Result<Frame, ApiError> {
    let (value, end) = (Arc::new(value), Instant::now() + Deadline::DEFAULT_TIMEOUT);
    loop {
        match write(client, panics, Arc::clone(&value), end).await {
            Err(error) if error.is_overloaded() && Instant::now() < end => sleep(CAPACITY_POLL_INTERVAL).await,
            frame => return frame,
        }
    }
}

async fn write(client: &LocalClient, panics: &Counter, value: Arc<Value>, end: Instant) -> Result<Frame, ApiError> {
    let budget = client.edge().codec_budget(Arc::new(client.edge().held_bytes()), Deadline::at(end));
    let write = move || value.to_envelope().and_then(|envelope| Frame::try_new(FrameKind::Value, envelope));
    let frame = caught_within(panics, Box::pin(budget.run_outcome(0, write))).await?;
    let frame = frame.map_err(ApiError::unencodable)?;
    budget.charge_outcome(frame.shared_bytes())?;
    Ok(frame.held(&budget))
}
