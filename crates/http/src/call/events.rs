//! A protocol's answer as server-sent events, with what [every stream](JoinedStream) of the edge has.
//!
//! * **Begun:** the status waits for the first event or comment, so that a call that fails at once has an error status.
//! * **Broken:** an error after the beginning is logged, and is the last event.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::Instant;
use callboard_telemetry::RequestSpan;
use futures_util::stream;

use super::RequestContext;
use crate::error::ApiError;
use crate::observe::server_timing::{SERVER_TIMING, first};
use crate::request_id::RequestId;
use crate::respond::stream::{Heartbeat, JoinedStream, SendBuffer, StreamSource, X_ACCEL_BUFFERING, one_line};

/// Where a protocol's events come from.
pub trait EventSource: Send + 'static {
    /// What becomes an event.
    type Item: Send;

    /// The next item; `None` after the last one. Nothing is lost if the future is dropped before it is ready: a silence
    /// does that.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, ApiError>>> + Send;

    /// The size of an item, in bytes. From [`LARGE_BYTES`](callboard_core::edge::LARGE_BYTES) on, an item is written
    /// off the runtime, and events that were ready before it are sent first.
    fn bytes(item: &Self::Item) -> usize;

    /// Appends the event of a short item, a few kilobytes at most, to `out` without an account. Returns false, and
    /// writes nothing, if [`event`](Self::event) is to make it.
    fn short_event(&mut self, _item: &Self::Item, _out: &mut Vec<u8>) -> bool {
        false
    }

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
    let source =
        Events { source, request_id: context.id.clone(), route: route.to_owned(), _span: context.span.cloned() };
    let mut joined = JoinedStream::new(source, Some(Heartbeat::new(context.config.stream_heartbeat)));
    joined.begin().await?;
    joined.count_leaving(context.metrics.requests.abandoned.clone());
    let items = joined.items();
    let body = stream::unfold(joined, async |mut joined| Some((Ok::<_, Infallible>(joined.next().await?), joined)));
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

/// The events of one stream.
struct Events<S> {
    source: S,
    request_id: RequestId,
    route: String,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl<S: EventSource> StreamSource for Events<S> {
    type Item = S::Item;

    async fn next(&mut self) -> Option<Result<S::Item, ApiError>> {
        self.source.next().await
    }

    fn bytes(&self, item: &S::Item) -> usize {
        S::bytes(item)
    }

    async fn write(&mut self, item: S::Item, out: &mut SendBuffer) -> Result<(), ApiError> {
        if !self.source.short_event(&item, out.last()) {
            out.push(self.source.event(item).await?);
        }
        Ok(())
    }

    fn end(&mut self, out: &mut SendBuffer) {
        out.push(self.source.end().unwrap_or_default());
    }

    fn failed(&mut self, error: &ApiError, out: &mut SendBuffer) {
        error.log(self.request_id.as_str(), Some(&self.route));
        out.push(self.source.failed(error));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_core::ErrorKind;
    use callboard_core::edge::LARGE_BYTES;
    use futures_util::{Stream, StreamExt as _};
    use prometheus_client::metrics::counter::Counter;
    use tokio::sync::mpsc;

    use super::*;
    use crate::request_id::RequestIds;

    /// Each text becomes an event. Writing a large text takes a turn of the runtime.
    struct Texts(mpsc::Receiver<Result<String, ApiError>>);

    impl EventSource for Texts {
        type Item = String;

        async fn next(&mut self) -> Option<Result<String, ApiError>> {
            self.0.recv().await
        }

        fn bytes(text: &String) -> usize {
            text.len()
        }

        async fn event(&mut self, text: String) -> Result<Bytes, ApiError> {
            if text.len() >= LARGE_BYTES {
                tokio::task::yield_now().await;
            }
            Ok(text.into())
        }

        fn end(&mut self) -> Option<Bytes> {
            Some(Bytes::from_static(b"end"))
        }

        fn failed(&mut self, error: &ApiError) -> Bytes {
            error.message().to_owned().into()
        }
    }

    fn events() -> (mpsc::Sender<Result<String, ApiError>>, JoinedStream<Events<Texts>>) {
        let (sender, receiver) = mpsc::channel(8);
        let request_id = RequestIds::new().generate();
        let source = Events { source: Texts(receiver), request_id, route: "/texts".to_owned(), _span: None };
        (sender, JoinedStream::new(source, Some(Heartbeat::new(Duration::from_secs(15)))))
    }

    fn pieces(events: JoinedStream<Events<Texts>>) -> impl Stream<Item = Bytes> {
        stream::unfold(events, async |mut events| Some((events.next().await?, events)))
    }

    #[tokio::test]
    async fn events_that_are_ready_leave_as_one_piece_and_wait_for_no_other() {
        let (sender, mut events) = events();
        let send = |text: &str| sender.try_send(Ok(text.to_owned())).unwrap();
        send("a");
        events.begin().await.unwrap();
        ["b", "c"].into_iter().for_each(send);
        assert_eq!(events.next().await.unwrap(), "abc");
        ["d", &"x".repeat(LARGE_BYTES), "e"].into_iter().for_each(send);
        assert_eq!(events.next().await.unwrap(), "d", "nothing waits for a large one");
        drop(sender);
        let rest: Vec<Bytes> = pieces(events).collect().await;
        assert_eq!(rest.iter().map(Bytes::len).sum::<usize>(), LARGE_BYTES + "e".len() + "end".len());
        assert!(rest.concat().ends_with(b"eend"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_is_broken_and_an_error_is_the_last_event() {
        let (sender, mut events) = events();
        events.begin().await.unwrap();
        sender.try_send(Ok("a".to_owned())).unwrap();
        assert_eq!(events.next().await.unwrap(), ":\n\na");
        assert_eq!(events.next().await.unwrap(), ":\n\n");
        sender.try_send(Ok("b".to_owned())).unwrap();
        sender.try_send(Err(ApiError::new(ErrorKind::Failed, "broken"))).unwrap();
        sender.try_send(Ok("never".to_owned())).unwrap();
        let rest: Vec<Bytes> = pieces(events).collect().await;
        assert_eq!(rest, ["bbroken"]);
    }

    #[tokio::test]
    async fn a_stream_that_ended_before_its_response_is_not_abandoned() {
        let (sender, mut events) = events();
        drop(sender);
        events.begin().await.unwrap();
        let abandoned = Counter::default();
        events.count_leaving(abandoned.clone());
        drop(events);
        assert_eq!(abandoned.get(), 0);
    }
}
