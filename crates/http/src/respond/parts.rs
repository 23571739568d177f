//! A body of ready pieces with a known length: envelopes and lists of arrays are sent without a copy.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// The pieces that are still to be sent.
#[derive(Debug)]
struct Parts {
    parts: IntoIter<Bytes>,
    remaining_bytes: u64,
}

/// A body that sends these pieces.
pub fn body_of_parts(mut parts: Vec<Bytes>) -> Body {
    let remaining_bytes = parts.iter().map(|part| part.len() as u64).sum();
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => Body::from(only),
        (_, last) => {
            parts.extend(last);
            Body::new(Parts { parts: parts.into_iter(), remaining_bytes })
        }
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.next();
        self.remaining_bytes -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}
