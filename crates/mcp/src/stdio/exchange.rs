//! Where messages of a host are answered: a node in this process, or one over HTTP.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use callboard_http::HttpEdge;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use callboard_http::axum::http::{HeaderMap, HeaderValue, Request};
use futures_util::{Stream, StreamExt as _};
use tower::Service as _;

use crate::PATH;

/// A message to be posted to `/mcp`.
#[derive(Clone, Debug)]
pub struct HostMessage {
    /// The headers that belong to the message, beside those of HTTP itself.
    pub headers: HeaderMap,
    /// JSON.
    pub body: Bytes,
}

impl HostMessage {
    /// All headers of the request: its own, and the media types.
    #[must_use]
    pub fn all_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers
    }
}

/// The pieces of a body; an error says why the rest is missing.
pub type AnswerBody = Pin<Box<dyn Stream<Item = Result<Bytes, String>> + Send>>;

/// An answer whose head has arrived.
pub struct PostedAnswer {
    /// Its status.
    pub status: u16,
    /// Whether it is a stream of events, not one JSON text.
    pub is_stream: bool,
    /// Its body.
    pub body: AnswerBody,
}

impl PostedAnswer {
    /// An answer of this status and media type.
    #[must_use]
    pub fn new(status: u16, media_type: &str, body: AnswerBody) -> Self {
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        Self { status, is_stream: essence.eq_ignore_ascii_case("text/event-stream"), body }
    }
}

impl fmt::Debug for PostedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostedAnswer").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Nothing has reached the node.
    #[error("the message was not sent: {0}")]
    NotSent(String),
    /// The node may have carried the message out.
    #[error("the answer was lost: {0}")]
    Lost(String),
}

/// Posts the messages of a host.
pub trait MessageExchange: Send + Sync + 'static {
    /// Posts one message, once.
    ///
    /// # Errors
    ///
    /// No answer came; the error says whether the message may have been carried out.
    ///
    /// # Cancellation
    ///
    /// Dropping the future or the body closes the exchange, which cancels its call.
    fn post(&self, message: HostMessage) -> impl Future<Output = Result<PostedAnswer, ExchangeError>> + Send;
}

/// A node in this process. No socket is opened for it.
#[derive(Clone, Debug)]
pub struct LocalNode {
    edge: HttpEdge,
    headers: HeaderMap,
}

impl LocalNode {
    /// The node behind this edge; `headers` are added to each message, such as a key.
    #[must_use]
    pub fn new(edge: HttpEdge, headers: HeaderMap) -> Self {
        Self { edge, headers }
    }
}

impl MessageExchange for LocalNode {
    async fn post(&self, message: HostMessage) -> Result<PostedAnswer, ExchangeError> {
        let mut headers = self.headers.clone();
        headers.extend(message.all_headers());
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let mut request = Request::new(Body::from(message.body));
        *request.method_mut() = callboard_http::axum::http::Method::POST;
        *request.uri_mut() = callboard_http::axum::http::Uri::from_static(PATH);
        *request.headers_mut() = headers;
        let Ok(response) = self.edge.clone().call(request).await;
        let (head, body) = response.into_parts();
        let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let body = body.into_data_stream().map(|piece| piece.map_err(|error| error.to_string()));
        Ok(PostedAnswer::new(head.status.as_u16(), media_type, Box::pin(body)))
    }
}
