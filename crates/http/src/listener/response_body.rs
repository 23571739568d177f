//! The body of a response until its end: [`Http2Body`] on HTTP/2, [`Http1Body`] on HTTP/1.
//!
//! hyper buffers a piece of a body until the client opens its window, and a client may keep it closed while its socket
//! stays writable. So a body that gave a piece and was not polled again has a [`PendingWrite`], which the watch of the
//! connection counts. Large pieces are given in slices: a further poll means that a slice was taken, and the connection
//! keeps one slice of an ended body.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::activity::{ActiveRequest, ActiveStream, PendingWrite};

/// The default size of an HTTP/2 frame.
const SLICE_BYTES: usize = 16 * 1024;

/// The body of one response.
pub(crate) struct Http2Body {
    body: Body,
    /// Taken from the body and not yet given.
    rest: Bytes,
    pending_write: Option<PendingWrite>,
    active: ActiveStream,
}

impl Http2Body {
    pub(crate) fn new(body: Body, mut active: ActiveStream) -> Self {
        if body.is_end_stream() {
            active.answered();
        }
        Self { body, rest: Bytes::new(), pending_write: None, active }
    }

    fn slice(&mut self) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let slice = self.rest.split_to(SLICE_BYTES.min(self.rest.len()));
        self.pending_write = Some(self.active.begin_write());
        // Nothing polls a body after its end.
        if self.is_end_stream() {
            self.active.answered();
        }
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }
}

impl HttpBody for Http2Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.pending_write = None;
        if !self.rest.is_empty() {
            return self.slice();
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    self.slice()
                }
                Err(trailers) => {
                    // The last frame: nothing polls the body after it.
                    self.active.answered();
                    Poll::Ready(Some(Ok(trailers)))
                }
            },
            Poll::Ready(None) => {
                self.active.answered();
                Poll::Ready(None)
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// The body of an HTTP/1 response. Its unsent bytes are in the socket, which has its own watch.
pub(crate) struct Http1Body {
    body: Body,
    _serving: ActiveRequest,
}

impl Http1Body {
    pub(crate) fn new(body: Body, serving: ActiveRequest) -> Self {
        Self { body, _serving: serving }
    }
}

impl HttpBody for Http1Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use axum::http::HeaderMap;
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::listener::activity::Activity;

    #[tokio::test]
    async fn a_large_piece_is_sent_unchanged_in_slices() {
        let whole: Vec<u8> = (0..50_000_u32).map(|n| n as u8).collect();
        let activity = Arc::new(Activity::default());
        let mut answer = Http2Body::new(Body::from(whole.clone()), activity.begin());
        let mut received = Vec::new();
        while !answer.is_end_stream() {
            assert_eq!(answer.size_hint().exact(), Some((whole.len() - received.len()) as u64));
            let slice = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(slice.len() <= SLICE_BYTES);
            received.extend_from_slice(&slice);
        }
        assert_eq!(received, whole);
        assert!(answer.frame().await.is_none());
    }

    /// hyper drops a body after its trailers, as gRPC has them.
    #[tokio::test]
    async fn a_response_is_answered_with_its_trailers() {
        let activity = Arc::new(Activity::default());
        for (frames, is_cancelled) in [(2, false), (1, true)] {
            let sent = [Frame::data(Bytes::from_static(b"a message")), Frame::trailers(HeaderMap::new())];
            let body = StreamBody::new(stream::iter(sent.map(Ok::<_, Infallible>)));
            let mut answer = Http2Body::new(Body::new(body), activity.begin());
            for _ in 0..frames {
                answer.frame().await.unwrap().unwrap();
            }
            drop(answer);
            assert_eq!(activity.is_flooded(0), is_cancelled, "{frames} frames were taken");
            // The next one has no answered request to its credit.
            drop(activity.begin());
        }
    }
}
