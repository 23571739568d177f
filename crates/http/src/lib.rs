//! The HTTP edge of a Callboard node: routes as `POST` endpoints, with the guards and limits of a service on a network.
//!
//! ```text
//!  socket ─► accept loop ─► HttpEdge ──┬─► a user's route   head → admission → body → payload → call → reply
//!            timers, limits,  ids,     ├─► a protocol       such as the Open Inference Protocol under /v2
//!            shutdown         panics   └─► a fixed page     /  /docs/  /openapi.json  /metrics  /livez  /readyz
//! ```
//!
//! A request and its response, without a socket:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::body::{Body, to_bytes};
//! use axum::http::Request;
//! use callboard_core::{App, Stage};
//! use callboard_http::{ApiInfo, HttpEdge, HttpConfig};
//! use tower::Service;
//!
//! let double = Stage::each("double", |number: &i64| Ok(number * 2));
//! let node = App::new().route("/double", double).start().await?;
//! let mut edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), vec![])?;
//!
//! // curl localhost:8000/double -H 'content-type: application/json' -d 21
//! let request = Request::post("/double").header("content-type", "application/json").body(Body::from("21"))?;
//! let response = edge.call(request).await?;
//! assert_eq!(response.status(), 200);
//! assert!(response.headers().contains_key("server-timing"));
//! assert_eq!(to_bytes(response.into_body(), 100).await?, "42");
//!
//! // curl localhost:8000/double -H 'content-type: application/json' -d '"a word"'
//! let request = Request::post("/double").header("content-type", "application/json").body(Body::from("\"a word\""))?;
//! let response = edge.call(request).await?;
//! assert_eq!(response.status(), 422);
//! assert_eq!(response.headers()["content-type"], "application/problem+json");
//! # Ok(())
//! # }
//! ```
//!
//! [`serve`] does the same on a listener until its shutdown. [`HttpEdge`] is a [`tower::Service`]: it can be the
//! fallback of an axum router. [`serve_router`] runs any axum router on the same accept loop. [`Problem`] is a failed
//! call as the response of your own handler. [`protocol`] is the extension point for a protocol besides the routes.
//!
//! # Headers of requests
//!
//! - `content-type`: the form of the body: a form of the route's type (below), `multipart/form-data`,
//!   `application/x-www-form-urlencoded`, or a media type that the route takes raw. Other types get 415.
//! - `accept`: the forms of the reply by quality; JSON for `*/*` and none. 406 if no form of the route is accepted.
//! - `content-encoding`: the coding of the body: `gzip`, `deflate` or `zstd`. Others get 415.
//! - `accept-encoding`: the codings of the reply by quality. Short replies are not compressed.
//! - `x-request-timeout-ms`: how long the client waits, in whole milliseconds. More than an hour counts as an hour; 0
//!   and words get 400.
//! - `grpc-timeout`: the same in gRPC's format (`100m`, `30S`: one to eight digits and `H`, `M`, `S`, `m`, `u` or `n`).
//!   Of both headers the smaller one counts.
//! - `x-request-priority`: `high`, `normal` or `low`. Others get 400.
//! - `x-callboard-session`: the session of the call, a text of 1 to 128 bytes in UTF-8; others get 400. Calls with the
//!   same text reach the same replica of each stage while it lives, by every door, and by the same name over QUIC.
//! - `x-request-id`: an id of the client's own, visible ASCII of at most 128 characters. Another one is replaced.
//! - `traceparent`: the trace context of the W3C. Its trace is passed on with a span of our own. Without one a trace
//!   begins here if the request is [sampled](HttpEdge::give_spans_to).
//! - `x-callboard-explain`: `1` adds `x-callboard-timeline` to the response, also to an error: the stages, batches,
//!   replicas and times of the request as JSON. So does `?explain=1`. An event stream has all of it in an event
//!   `timeline` before its last one. `0` does not; others get 400. See [`HttpConfig::explain_requests`].
//!
//! Forms of bodies and replies: `application/json`, `application/msgpack` and `application/vnd.callboard.envelope` for
//! every type; `application/x-npy` for arrays; `application/vnd.apache.arrow.stream` and `.file` for tables;
//! `text/plain` for texts; `application/octet-stream` for files ([`Media`](callboard_codec::Media)), and as replies
//! `image/png` and other types of files if the schema names them by `contentMediaType`. A dynamic value may have any of
//! the former, and `application/x-npz`. The accepted forms are tried in order: an outcome that is no array is
//! sent in the next form, and 406 if there is none. A large body is read into one buffer, which its arrays share.
//! `docs/wire.md` has every detail.
//!
//! A streaming route answers in `text/event-stream` (also for `*/*` and none), `application/x-ndjson` or
//! `application/vnd.callboard.envelope-stream`: one event, line or frame for each outcome, as it comes. A slow reader
//! slows its own stream only, and a reader that leaves cancels it.
//!
//! `POST /v1/call/{name}` calls the route `/{name}` as a function, with `{args, kwargs}` as JSON, MessagePack or an
//! envelope, or with a stream of them, which is answered in order.
//!
//! A second `x-request-timeout-ms`, `grpc-timeout`, `x-request-priority`, `x-callboard-session` or
//! `x-callboard-explain` gets 400. Every response has `x-request-id`. A reply has `server-timing` with the milliseconds
//! in the queue, in the batch and in user code; an error has the known ones of these times, and the total. A call that
//! fails on the server's side (5xx) is one warning in the log with its request's id. Invalid HTTP never reaches the
//! edge: its connection gets a bare 400, 414 or 431 and is closed.
//!
//! # Access
//!
//! Without [`HttpConfig::api_keys`] every client may call. With them a request needs `authorization: Bearer …` or
//! `x-api-key`, or gets 401. [`HttpConfig::rate_limit`] bounds the rate of each key or named caller (429),
//! [`HttpConfig::cors`] the web pages that may read responses, [`HttpConfig::hosts`] the host names of a server on
//! loopback, and [`HttpConfig::tls`] encrypts. [`Admin`] is a listener for operators, on its own socket.
//!
//! # Errors
//!
//! Every error is a problem document (RFC 9457) with `kind`, `message`, `retryable`, `request_id` and, if known,
//! `error_type`, `stage`, `details` and `remote_trace`. Before it reads a body the edge refuses a wrong method, header
//! or media type (405, 400, 415, 406), a length beyond the limit (413), a call without room (429 with `retry-after`),
//! and a call of a stage that is not ready (503). Then come a silent or slow body (408), a broken or malformed body
//! (400), and a body that does not fit the route's type (422); a failure of user code with its own status or 500; a
//! worker that died (500); and a deadline that passed (504). A client that leaves cancels its call. On HTTP/1 a client
//! that closes its sending side before the response (`nc -N`, `shutdown(SHUT_WR)`) counts as having left: TCP does not
//! tell the two apart.
//!
//! Any client may request the priority `high`, but for a caller to whom the app [gives](AuthCaller::priority) another
//! one. If clients are not trusted, let a proxy drop or set the header.
//!
//! # Limits
//!
//! [`HttpConfig`] names each limit with its threat. Together with the node's permits they bound the memory of the edge:
//! at most `max_connections` sockets, and request bodies of at most the node's `max_in_flight_bytes` in sum. Bytes are
//! charged as a body or a frame arrives: an announced length blocks no other client.
//!
//! Responses have no budget in bytes: unread bytes are in memory, one response for each connection of HTTP/1 and up to
//! `max_concurrent_streams` for each of HTTP/2, while the client reads at the least rate.

mod admin;
mod asgi;
mod call;
mod config;
mod describe;
mod dispatch;
mod error;
mod file_type;
mod guard;
mod listener;
mod model_repository;
mod mounted;
mod observe;
pub mod protocol;
mod request;
mod request_id;
mod respond;
mod runtime;
mod upgrade;

/// The version of axum whose routers an edge can be mounted in.
pub use axum;

pub use admin::{Admin, Calls, DeviceFigures, Figures, Histogram, serve_admin};
pub use asgi::{AsgiError, AsgiPart, AsgiRequest, asgi_path, check_asgi};
pub use callboard_telemetry::{
    AccessLog, AccessRecord, AccessSink, Attribute, SampleRatio, SampleRatioError, Span, SpanSink, is_active,
};
#[cfg(feature = "otlp")]
pub use callboard_telemetry::{OTEL_ENDPOINT, OtlpConfig, OtlpEnvError, SpanExporter};
pub use config::{HttpConfig, HttpConfigError, TlsConfig};
pub use describe::curl::{curl, shell_word};
pub use describe::openapi::{ApiInfo, example_of, openapi, plain_schema};
pub use dispatch::HttpEdge;
pub use dispatch::serve::{HttpServeError, serve, serve_edge, serve_mounted, serve_router};
pub use error::{Problem, http_status};
pub use file_type::media_type_of;
pub use guard::{
    AUTH_ROUTE, ApiKeys, ApiKeysError, AuthCaller, AuthRequest, Cors, CorsError, Hosts, HostsError, RateLimit,
    RateLimitError, TrustedProxies,
};
pub use listener::ABORT_GRACE;
pub use listener::tls::TlsError;
pub use model_repository::{
    ModelRepository, ModelUpload, RepositoryChange, RepositoryError, RepositoryModel, RepositoryVersion,
};
