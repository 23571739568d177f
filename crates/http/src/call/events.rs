//! A protocol's answer as server-sent events, with what every stream of the edge has.
//!
//! * **Joined:** events that are ready leave as one piece, up to [a limit](SendBuffer); none waits for a later one.
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
use callboard_core::edge::LARGE_BYTES;
use callboard_telemetry::RequestSpan;
use futures_util::{FutureExt as _, stream};

use super::RequestContext;
use crate::error::ApiError;
use crate::observe::server_timing::{SERVER_TIMING, first};
use crate::observe::stream_log::StreamedItems;
use crate::request_id::RequestId;
use crate::respond::stream::{AbandonGuard, HEARTBEAT, Heartbeat, SendBuffer, X_ACCEL_BUFFERING, one_line};

/// Where a protocol's events come from.
pub trait EventSource: Send + 'static {
    /// What becomes an event.
    type Item: Send;

    /// The next item; `None` after the last one. Nothing is lost if the future is dropped before it is ready: a silence
    /// does that.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, ApiError>>> + Send;

    /// The size of an item, in bytes. From [`LARGE_BYTES`] on, an item is written off the runtime, and events that were
    /// ready before it are sent first.
    fn bytes(item: &Self::Item) -> usize;

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
        held: None,
        send_buffer: SendBuffer::default(),
        is_over: false,
        items: items.clone(),
        _span: context.span.cloned(),
    };
    events.first().await?;
    // Before this, the request has no response, and the edge counts a client that leaves.
    events.leaving = (!events.is_over).then(|| AbandonGuard::new(context.metrics.requests.abandoned.clone()));
    let body = stream::unfold(events, async |mut events| Some((Ok::<_, Infallible>(events.next().await?), events)));
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
struct Events<S: EventSource> {
    source: S,
    request_id: RequestId,
    route: String,
    heartbeat: Heartbeat,
    /// `None` before the stream begins.
    leaving: Option<AbandonGuard>,
    /// A large item that is ready: it is written after the earlier events.
    held: Option<S::Item>,
    /// Written events, not yet sent.
    send_buffer: SendBuffer,
    is_over: bool,
    items: StreamedItems,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl<S: EventSource> Events<S> {
    /// Waits for the first event, which decides the status, or for the heartbeat.
    async fn first(&mut self) -> Result<(), ApiError> {
        match self.item_or_silence().await {
            Some(Some(item)) => self.event(item?).await?,
            Some(None) => self.end(),
            None => self.send_buffer.push(HEARTBEAT),
        }
        Ok(())
    }

    /// The next piece of the body.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.take_what_is_ready().await;
            if let Some(piece) = self.send_buffer.pop() {
                return Some(piece);
            }
            if self.is_over {
                return None;
            }
            let item = match self.held.take() {
                Some(item) => Some(Some(Ok(item))),
                None => self.item_or_silence().await,
            };
            match item {
                Some(item) => self.write(item).await,
                None => self.send_buffer.push(HEARTBEAT),
            }
        }
    }

    /// The next item or the end, unless nothing comes for too long.
    async fn item_or_silence(&mut self) -> Option<Option<Result<S::Item, ApiError>>> {
        tokio::select! {
            biased;
            item = self.source.next() => {
                self.heartbeat.sent();
                Some(item)
            }
            () = self.heartbeat.silence() => None,
        }
    }

    /// Joins ready events to the next piece, if there is one.
    async fn take_what_is_ready(&mut self) {
        while !self.send_buffer.is_empty() && self.send_buffer.has_room() && !self.is_over && self.held.is_none() {
            let Some(item) = self.source.next().now_or_never() else { return };
            self.heartbeat.sent();
            match item {
                Some(Ok(item)) if S::bytes(&item) >= LARGE_BYTES => self.held = Some(item),
                item => self.write(item).await,
            }
        }
    }

    async fn write(&mut self, item: Option<Result<S::Item, ApiError>>) {
        let written = match item {
            Some(Ok(item)) => self.event(item).await,
            Some(Err(error)) => Err(error),
            None => return self.end(),
        };
        if let Err(error) = written {
            error.log(self.request_id.as_str(), Some(&self.route));
            self.finish();
            self.send_buffer.push(self.source.failed(&error));
        }
    }

    async fn event(&mut self, item: S::Item) -> Result<(), ApiError> {
        self.items.count();
        self.send_buffer.push(self.source.event(item).await?);
        Ok(())
    }

    fn end(&mut self) {
        self.finish();
        self.send_buffer.push(self.source.end().unwrap_or_default());
    }

    fn finish(&mut self) {
        self.is_over = true;
        self.leaving.iter_mut().for_each(AbandonGuard::ended);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_core::ErrorKind;
    use futures_util::{Stream, StreamExt as _};
    use tokio::sync::mpsc;

    use super::*;
    use crate::request_id::RequestIds;

    /// Texts become events; those that are large are written in a later turn.
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

    fn events() -> (mpsc::Sender<Result<String, ApiError>>, Events<Texts>) {
        let (sender, receiver) = mpsc::channel(8);
        let events = Events {
            source: Texts(receiver),
            request_id: RequestIds::new().generate(),
            route: "/texts".to_owned(),
            heartbeat: Heartbeat::new(Duration::from_secs(15)),
            leaving: None,
            held: None,
            send_buffer: SendBuffer::default(),
            is_over: false,
            items: StreamedItems::default(),
            _span: None,
        };
        (sender, events)
    }

    fn pieces(events: Events<Texts>) -> impl Stream<Item = Bytes> {
        stream::unfold(events, async |mut events| Some((events.next().await?, events)))
    }

    #[tokio::test]
    async fn events_that_are_ready_leave_as_one_piece_and_wait_for_no_other() {
        let (sender, mut events) = events();
        let send = |text: &str| sender.try_send(Ok(text.to_owned())).unwrap();
        send("a");
        events.first().await.unwrap();
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
        events.first().await.unwrap();
        sender.try_send(Ok("a".to_owned())).unwrap();
        assert_eq!(events.next().await.unwrap(), [&HEARTBEAT[..], b"a"].concat());
        assert_eq!(events.next().await.unwrap(), HEARTBEAT);
        sender.try_send(Ok("b".to_owned())).unwrap();
        sender.try_send(Err(ApiError::new(ErrorKind::Failed, "broken"))).unwrap();
        sender.try_send(Ok("never".to_owned())).unwrap();
        let rest: Vec<Bytes> = pieces(events).collect().await;
        assert_eq!(rest, ["bbroken"]);
    }
}
