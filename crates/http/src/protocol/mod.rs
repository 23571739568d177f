//! The extension point for protocols besides the user's routes. `list.rs` decides which request belongs to which.
//!
//! An edge is made with its [`Protocols`]. Each [claims](Protocol::claims) paths or media types of its own. The edge
//! runs its layers around every answer of a protocol (ids, guards, logs, metrics, headers, panics, shutdown); the
//! protocol reads bodies, makes calls and writes responses with the parts of this module, which the edge's own routes
//! use as well.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::response::{IntoResponse, Response};
//! use callboard_core::{App, Stage};
//! use callboard_http::protocol::{
//!     ApiError, Claims, Protocol, ProtocolAnswer, ProtocolRequest, RequestContext,
//! };
//! use callboard_http::{ApiInfo, HttpConfig, HttpEdge, axum};
//!
//! /// Tells how many routes there are, below `/count`.
//! #[derive(Debug)]
//! struct Count;
//!
//! impl Protocol for Count {
//!     fn name(&self) -> &str {
//!         "the counting protocol"
//!     }
//!
//!     fn claims(&self) -> Claims {
//!         Claims { paths: &["/count"], ..Claims::default() }
//!     }
//!
//!     fn answer<'a>(&'a self, context: RequestContext<'a>, _: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
//!         Box::pin(async move { Ok(context.client.routes().len().to_string().into_response()) })
//!     }
//!
//!     fn error_response(&self, error: ApiError) -> Response {
//!         error.status().into_response()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower::Service as _;
//!
//! let node = App::new().route("/double", Stage::each("double", |n: &i64| Ok(n * 2))).start().await?;
//! let mut edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), vec![Arc::new(Count)])?;
//! let request = axum::http::Request::get("/count").body(axum::body::Body::empty())?;
//! let answer = edge.call(request).await?;
//! assert_eq!(axum::body::to_bytes(answer.into_body(), 10).await?, "1");
//! # Ok(())
//! # }
//! ```
//!
//! A protocol may take over the connection of a request, as WebSocket does: see [`Upgrade`].
//!
//! * **Full, late:** these parts admit, charge and time out a call as they do for a route; a protocol adds no queue.
//! * **Cancelled:** when the client leaves, the edge drops the future of the answer.

mod list;
mod unrouted;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderName, Request};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::edge::Route;
use callboard_core::{ErrorKind, LocalClient};
use hyper::body::{Frame, SizeHint};
use serde_json::{Map, Value};
use tower::BoxError;

use crate::config::HttpConfig;

pub use self::list::{Claims, ProtocolError, Protocols, ReservedRoute};
pub use self::unrouted::{UnroutedForm, UnroutedRequest};

pub use crate::call::events::{EventSource, event_bytes, events};

pub use crate::call::{CallOrigin, RequestContext, RouteOutputs};
pub use crate::error::catch_panic::caught_within;
pub use crate::error::{ApiError, RateLeft, X_SHOULD_RETRY};
pub use crate::file_type::file_type_of;
pub use crate::guard::{KeyHolder, OverLimit};
pub use crate::observe::cache_status::insert_cache_status;
pub use crate::observe::health::{not_ready_reason, unreachable_reason};
pub use crate::observe::log_line::CalledRoute;
pub use crate::observe::metrics::EdgeMetrics;
pub use crate::observe::server_timing::{SERVER_TIMING, first, server_timing, total};
pub use crate::observe::stream_log::StreamedItems;
pub use crate::request::body::{
    Arrival, BodyLimits, IncomingBody, PendingAdmission, RequestBody, UnroutedBody, announced_length,
};
pub use crate::request::body_buffer::BodyBuffer;
pub use crate::request::coding::{Compressibility, ContentCoding, unpacked};
pub use crate::request::head::RequestHead;
pub use crate::request::multipart::FormFields;
pub use crate::request::payload::{decode as decode_input, decode_value, from_value};
pub use crate::request::request_fields::{ClientAddress, RequestParts};
pub use crate::request::short::short_body;
pub use crate::request_id::RequestId;
pub use crate::respond::compress_response::compressed;
pub use crate::respond::compressor::compress_off_thread;
pub use crate::respond::stream::{AbandonGuard, next_reply};
pub use crate::respond::{ResponseCompression, body_of_parts};
pub use crate::runtime::shutdown::ShutdownSignal;
pub use crate::upgrade::{EdgeLife, Upgrade, UpgradedSocket};
pub use callboard_core::edge::{CodecBudget, HeldBytes, LARGE_BYTES};

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

/// The response of a protocol that answers before its node has started.
pub type StartingAnswer<'a> = Pin<Box<dyn Future<Output = Option<Response>> + Send + 'a>>;

/// The part of a protocol in the OpenAPI document.
#[derive(Clone, Debug, Default)]
pub struct ProtocolDocument {
    /// The tag of its operations.
    pub tag: Value,
    /// Its operations by path. The page at `/docs` shows tags by their operations: without any, the description of the
    /// tag is a paragraph at its top.
    pub paths: Map<String, Value>,
    /// The responses that its operations refer to.
    pub responses: Map<String, Value>,
}

/// A protocol besides the routes.
pub trait Protocol: fmt::Debug + Send + Sync + 'static {
    /// Its name in errors, such as "the Open Inference Protocol".
    fn name(&self) -> &str;

    /// Its short name: the label `door` of metrics and logs, and the name by which
    /// [`HttpConfig::doors_off`] switches it off. Always the same.
    fn door(&self) -> &'static str {
        "other"
    }

    /// The requests that belong to it. Always the same.
    fn claims(&self) -> Claims;

    /// Checks the routes of a node that starts; by default all can be served.
    ///
    /// # Errors
    ///
    /// The reason why the node does not start.
    fn check(&self, _routes: &[Arc<Route>]) -> Result<(), String> {
        Ok(())
    }

    /// Answers a request that it [claims](Self::claims).
    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a>;

    /// Whether it takes the bodies of its requests, for responses that begin before their request has ended. Then
    /// [`exchange`](Self::exchange) answers in place of [`answer`](Self::answer).
    fn takes_bodies(&self) -> bool {
        false
    }

    /// Answers a request whose body it [takes](Self::takes_bodies). The response may read on in it.
    fn exchange<'a>(&'a self, _context: RequestContext<'a>, _request: Request<Body>) -> ProtocolAnswer<'a> {
        Box::pin(async { Err(ApiError::new(ErrorKind::Internal, "this protocol takes no bodies")) })
    }

    /// Renders an error as the clients of the protocol expect it.
    fn error_response(&self, error: ApiError) -> Response;

    /// The header in which its clients read the id of their request, beside `x-request-id`.
    fn request_id_header(&self) -> Option<HeaderName> {
        None
    }

    /// Answers a request while the node is starting; `None` is answered with 503. A body that it reads is short.
    fn starting_response<'a>(&'a self, _config: &'a HttpConfig, _request: ProtocolRequest<'a>) -> StartingAnswer<'a> {
        Box::pin(async { None })
    }

    /// Answers a request of an operator on the admin listener, where paths below `/v1` are that listener's own. By
    /// default nothing is found there.
    fn answer_admin<'a>(
        &'a self,
        _client: &'a LocalClient,
        _config: &'a HttpConfig,
        request: ProtocolRequest<'a>,
    ) -> ProtocolAnswer<'a> {
        let message = format!("the admin listener has no page `{}`", request.head.uri.path());
        Box::pin(async { Err(ApiError::new(ErrorKind::NotFound, message)) })
    }

    /// Describes these routes in the OpenAPI document; by default it is not in the document. `add_schema` adds a schema
    /// under a name, or under a similar one if another schema has that name, and gives a reference to it.
    fn document(
        &self,
        _routes: &[Arc<Route>],
        _add_schema: &mut dyn FnMut(&str, Value) -> Value,
    ) -> Option<ProtocolDocument> {
        None
    }
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
