//! Responses: messages, and the status of the call in trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;

use bytes::Bytes;
use callboard_http::axum::body::{Body, HttpBody};
use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::http::header::CONTENT_TYPE;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, ContentCoding};
use hyper::body::Frame;
use prost::Message;

use crate::framing::{GRPC_ENCODING, coding_name, framed_plain};
use crate::status::{GRPC, ok_trailers, trailers};

/// The response to a call with one message, which is framed.
pub(crate) fn unary(pieces: Vec<Bytes>, coding: Option<ContentCoding>) -> Response {
    with_coding(body(pieces, ok_trailers()), coding)
}

/// The response to a call with this short message.
pub(crate) fn message(message: &impl Message) -> Response {
    unary(vec![framed_plain(&message.encode_to_vec())], None)
}

/// The response to a stream that ends with an error after this short message.
pub(crate) fn message_before(message: &impl Message, error: &ApiError) -> Response {
    with_coding(body(vec![framed_plain(&message.encode_to_vec())], trailers(error)), None)
}

fn body(pieces: Vec<Bytes>, trailers: HeaderMap) -> Body {
    Body::new(UnaryBody { pieces: pieces.into_iter(), trailers: Some(trailers) })
}

/// A response with this body. `coding` is that of its compressed messages.
pub(crate) fn with_coding(body: Body, coding: Option<ContentCoding>) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    if let Some(coding) = coding {
        headers.insert(GRPC_ENCODING, coding_name(coding));
    }
    response
}

/// The pieces of one message, then the trailers.
struct UnaryBody {
    pieces: IntoIter<Bytes>,
    trailers: Option<HeaderMap>,
}

impl HttpBody for UnaryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.pieces.next() {
            Some(piece) => Some(Frame::data(piece)),
            None => self.trailers.take().map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }
}
