//! A protocol's answer as server-sent events, with what every stream of the edge has.
//!
//! * **Begun:** the status waits for the first event or comment, so that a call that fails at once has an error status.
//! * **Silent:** a comment breaks a silence, also at the beginning.
//! * **Broken:** an error after the beginning is logged, and is the last event.
//! * **Full, cancelled:** a slow client is waited for; one that leaves drops the source, and counts as abandoned.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::Instant;
use callboard_telemetry::RequestSpan;
use futures_util::{StreamExt, stream};

use super::RequestContext;
use crate::error::ApiError;
use crate::observe::server_timing::{SERVER_TIMING, first};
use crate::observe::stream_log::StreamedItems;
use crate::request_id::RequestId;
use crate::respond::stream::{AbandonGuard, HEARTBEAT, Heartbeat, X_ACCEL_BUFFERING, one_line};

/// Where a protocol's events come from.
pub trait EventSource: Send + 'static {
    /// What becomes an event.
    type Item: Send;

    /// The next item; `None` after the last one. Nothing is lost if the future is dropped before it is ready: a silence
    /// does that.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, ApiError>>> + Send;

    /// The bytes of an item's [event](event_bytes).
    fn event(&mut self, item: Self::Item) -> impl Future<Output = Result<Bytes, ApiError>> + Send;

    /// What follows the last item.
    fn end(&mut self) -> Option<Bytes> {
        None
    }

    /// The last event of a stream that has failed.
    fn failed(&mut self, error: &ApiError) -> Bytes;
}

/// Answers with the events of a source. `since` is when the call began, for the header `server-timing`.
///
/// # Errors
///
/// The error of the first item.
pub async fn events<S: EventSource>(
    context: &RequestContext<'_>,
    route: &str,
    since: Instant,
    source: S,
) -> Result<Response, ApiError> {
    let items = StreamedItems::default();
    let mut events = Events {
        source,
        request_id: context.id.clone(),
        route: route.to_owned(),
        heartbeat: Heartbeat::new(context.config.stream_heartbeat),
        leaving: None,
        items: items.clone(),
        _span: context.span.cloned(),
    };
    let first_event = events.next().await.transpose()?;
    // Before this, the request has no response, and the edge counts a client that leaves.
    events.leaving = Some(AbandonGuard::new(context.metrics.requests.abandoned.clone()));
    let rest = stream::unfold(Some(events), async |events| {
        let mut events = events?;
        match events.next().await {
            Some(Ok(event)) => Some((event, Some(events))),
            Some(Err(error)) => Some((events.failed(&error), None)),
            None => events.end().map(|event| (event, None)),
        }
    });
    let body = stream::iter(first_event).chain(rest).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(items);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SERVER_TIMING, first(since.elapsed()));
    // Otherwise nginx and similar proxies buffer a page of events before they send any.
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// An event with JSON as its data.
#[must_use]
pub fn event_bytes(json: &[u8]) -> Vec<u8> {
    [b"data: ", &*one_line(json), b"\n\n"].concat()
}

/// One stream.
struct Events<S> {
    source: S,
    request_id: RequestId,
    route: String,
    heartbeat: Heartbeat,
    /// `None` before the stream begins.
    leaving: Option<AbandonGuard>,
    items: StreamedItems,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl<S: EventSource> Events<S> {
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let item = tokio::select! {
            biased;
            item = self.source.next() => item?,
            () = self.heartbeat.silence() => return Some(Ok(HEARTBEAT)),
        };
        self.heartbeat.sent();
        self.items.count();
        Some(match item {
            Ok(item) => self.source.event(item).await,
            Err(error) => Err(error),
        })
    }

    fn end(&mut self) -> Option<Bytes> {
        self.leaving.iter_mut().for_each(AbandonGuard::ended);
        self.source.end()
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        error.log(self.request_id.as_str(), Some(&self.route));
        self.leaving.iter_mut().for_each(AbandonGuard::ended);
        self.source.failed(error)
    }
}
