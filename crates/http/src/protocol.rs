//! The extension point for a protocol under its own path, besides the user's routes.
//!
//! [`HttpEdge::add_protocol`](crate::HttpEdge::add_protocol) adds one. The edge runs its layers around every answer of
//! the protocol (ids, guards, logs, metrics, headers, panics, shutdown); the protocol reads bodies, makes calls and
//! writes responses with the parts of this module, which the edge's own routes use as well.
//!
//! * **Full, late:** these parts admit, charge and time out a call as they do for a route; a protocol adds no queue.
//! * **Cancelled:** when the client leaves, the edge drops the future of the answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use callboard_core::LocalClient;
use callboard_core::edge::Route;
use hyper::body::{Frame, SizeHint};
use serde_json::{Map, Value};
use tower::BoxError;

use crate::config::HttpConfig;

pub use crate::call::RequestContext;
pub use crate::error::ApiError;
pub use crate::error::catch_panic::caught;
pub use crate::guard::{KeyHolder, OverLimit};
pub use crate::observe::cache_status::insert_cache_status;
pub use crate::observe::health::{not_ready_reason, unreachable_reason};
pub use crate::observe::metrics::EdgeMetrics;
pub use crate::observe::server_timing::{SERVER_TIMING, first, server_timing, total};
pub use crate::observe::stream_log::StreamedItems;
pub use crate::request::body::{BodyLimits, IncomingBody, PendingAdmission, RequestBody};
pub use crate::request::codec_budget::CodecBudget;
pub use crate::request::coding::{Compressibility, ContentCoding};
pub use crate::request::head::RequestHead;
pub use crate::request::pace::PaceLimits;
pub use crate::request::payload::{decode_value, from_value};
pub use crate::request::short::short_body;
pub use crate::request_id::RequestId;
pub use crate::respond::compress_response::compressed;
pub use crate::respond::compressor::compress_off_thread;
pub use crate::respond::stream::{AbandonGuard, HEARTBEAT, Heartbeat, next_reply, one_line};
pub use crate::respond::{ResponseCompression, body_of_parts};
pub use crate::runtime::shutdown::ShutdownSignal;
pub use callboard_core::edge::LARGE_BYTES;

/// The body of a request from any transport.
pub type DynBody<'a> = dyn HttpBody<Data = Bytes, Error = BoxError> + Send + Unpin + 'a;

/// A request to a protocol: its head, and its body, which is read only when the head is accepted.
pub struct ProtocolRequest<'a> {
    /// Method, path and headers.
    pub head: &'a Parts,
    /// The body.
    pub body: &'a mut DynBody<'a>,
}

impl fmt::Debug for ProtocolRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtocolRequest").field(self.head).finish()
    }
}

/// A response, or an error that [`Protocol::error_response`] renders.
pub type ProtocolAnswer<'a> = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send + 'a>>;

/// The part of a protocol in the OpenAPI document.
#[derive(Clone, Debug, Default)]
pub struct ProtocolDocument {
    /// The tag of its operations.
    pub tag: Value,
    /// Its operations by path.
    pub paths: Map<String, Value>,
    /// The responses that its operations refer to.
    pub responses: Map<String, Value>,
}

/// A protocol besides the routes.
pub trait Protocol: fmt::Debug + Send + Sync + 'static {
    /// Whether a path belongs to the protocol. Routes come first; pages of the edge come after it.
    fn owns(&self, path: &str) -> bool;

    /// Answers a request to a path that it [owns](Self::owns).
    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a>;

    /// Renders an error as the clients of the protocol expect it.
    fn error_response(&self, error: ApiError) -> Response;

    /// Answers a request while the node is starting; `None` is answered with 503.
    fn starting_response(&self, _path: &str) -> Option<Response> {
        None
    }

    /// The paths that the admin listener answers, too, as axum matches them.
    fn admin_paths(&self) -> &'static [&'static str] {
        &[]
    }

    /// Answers a request of an operator to one of the [`admin_paths`](Self::admin_paths).
    fn answer_admin<'a>(
        &'a self,
        client: &'a LocalClient,
        config: &'a HttpConfig,
        request: ProtocolRequest<'a>,
    ) -> ProtocolAnswer<'a>;

    /// Describes these routes in the OpenAPI document. `add_schema` adds a schema under a name, or under a similar one
    /// if another schema has that name, and gives a reference to it.
    fn document(&self, routes: &[Arc<Route>], add_schema: &mut dyn FnMut(&str, Value) -> Value) -> ProtocolDocument;
}

/// A body whose errors are boxed, so that bodies of every transport have one type.
pub(crate) struct BoxedErrors<B>(pub(crate) B);

impl<B: RequestBody> HttpBody for BoxedErrors<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
