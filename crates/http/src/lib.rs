//! The HTTP edge of a Callboard node: routes as `POST` endpoints, with everything around them that a service on a network
//! needs.
//!
//! ```text
//!  socket ─► accept loop ─► HttpEdge ──┬─► a user's route   head → admission → body → payload → call → reply
//!            timers, cap,   id,        │
//!            orderly end    panics     ├─► /v2              the same routes as models of the Open Inference Protocol
//!                                      └─► a fixed page     /  /docs/  /openapi.json  /metrics  /livez  /readyz
//! ```
//!
//! What goes in and comes out, performed here without a socket:
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
//! let mut edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default())?;
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
//! [`serve`] does the same on a listener until it is told to stop. [`HttpEdge`] is a [`tower::Service`], to be the fallback of an
//! axum router of one's own; [`serve_router`] runs any axum router on the same accept loop. A handler of one's own that
//! calls a route answers a failed call by [`Problem`] as the edge does.
//!
//! # What a request may say
//!
//! | header | meaning |
//! |---|---|
//! | `content-type` | the body's form: one that the route's type can have (below), `multipart/form-data`, or a media type that the route takes raw; others are answered 415 |
//! | `accept` | the reply's forms by quality; JSON for `*/*` and none; 406 when nothing that the route gives is allowed |
//! | `content-encoding` | how the body is packed: `gzip`, `deflate` or `zstd`; others are answered 415 |
//! | `accept-encoding` | how the reply may be packed, by quality; short replies are not |
//! | `x-request-timeout-ms` | how long the answer is of use, in whole milliseconds; more than an hour counts as an hour, 0 and words are answered 400 |
//! | `grpc-timeout` | the same in the words of gRPC (`100m`, `30S`: one to eight digits and `H`, `M`, `S`, `m`, `u` or `n`); of two the smaller one counts |
//! | `x-request-priority` | `high`, `normal` or `low`; others are answered 400 |
//! | `x-request-id` | an id of the client's own, visible ASCII of at most 128 characters; another is replaced by one of ours |
//! | `traceparent` | the W3C's trace context; its trace is passed on, with a part of our own. Without one a trace begins here where the request is sampled for those who [collect spans](HttpEdge::give_spans_to) |
//! | `x-callboard-explain` | `1`: the answer's `x-callboard-timeline` tells the stages, batches, replicas and times of this request as JSON, of an error, too; so does `?explain=1`. An event stream tells all of it in an event `timeline` before its last one. `0`: it does not. Others are answered 400. See [`HttpConfig::explain_requests`] |
//!
//! Forms of bodies and replies: `application/json`, `application/msgpack` and `application/vnd.callboard.envelope` for every type;
//! `application/x-npy` for arrays; `application/vnd.apache.arrow.stream` and `.file` for tables; `text/plain` for texts;
//! `application/octet-stream` for files ([`Media`](callboard_codec::Media)). A dynamic value may be any of them, and
//! `application/x-npz`. What a client accepts is tried in its order: an outcome that is no array is sent in the next form, and 406 is
//! left when there is none. A large body is read into one buffer of which the arrays in it are views. `docs/wire.md` has every
//! detail.
//!
//! A route that streams answers in `text/event-stream` (also for `*/*` and none), `application/x-ndjson` or
//! `application/vnd.callboard.envelope-stream`: an event, line or frame for each outcome, as it comes. A slow reader slows only its
//! own stream, and one that leaves cancels it.
//!
//! `POST /v1/call/{name}` calls the route `/{name}` as a function, with `{args, kwargs}` as JSON, MessagePack or an envelope, or with a
//! stream of them that is answered in order.
//!
//! `x-request-timeout-ms`, `grpc-timeout`, `x-request-priority` and `x-callboard-explain` may come once; a second one is answered 400.
//! Every answer of the edge has `x-request-id`; a reply has `server-timing` with the milliseconds spent in the queue, in the batch and
//! in user code, an error the same as far as it came, and the total. A call that fails on the server's side (5xx) is one warning in the
//! log with its request's id. What is no HTTP never reaches the edge: its connection gets a bare 400, 414 or 431 and is closed.
//!
//! # Who may ask
//!
//! Everybody, until [`HttpConfig::api_keys`] are set: then `authorization: Bearer …` or `x-api-key` shows one, and 401 answers
//! whoever does not. [`HttpConfig::rate_limit`] bounds how often a key may be used (429), [`HttpConfig::cors`] which web
//! pages may read answers, [`HttpConfig::hosts`] which may ask a server on loopback, [`HttpConfig::tls`] who can read along. [`Admin`] is for whoever runs the node, on a socket of its own.
//!
//! # What may go wrong
//!
//! Every error is a problem document (RFC 9457) with `kind`, `message`, `retryable`, `request_id` and, where there are any,
//! `error_type`, `stage`, `details` and `remote_trace`. The edge refuses before it reads: wrong method, headers and media type
//! (405, 400, 415, 406), a length beyond the limit (413), no room (429 with `retry-after`), not ready (503). Then come a body
//! that is silent or too slow (408), broken or malformed (400) or not what the route takes (422); a failure of user code with its own
//! status or 500; a worker that died (500); a deadline that passed (504). A client that leaves cancels its call. On HTTP/1 a
//! client that closes its sending side before the answer (`nc -N`, `shutdown(SHUT_WR)`) counts as having left: TCP does not
//! tell the two apart, and work for nobody would cost more callers than it serves.
//!
//! Priorities are a matter of trust: anybody may ask for `high`, which goes first. Where callers are strangers, let a proxy
//! drop or set the header.
//!
//! # Limits
//!
//! [`HttpConfig`] names each with its threat. Together with the node's own permits they bound what the edge holds: at most
//! `max_connections` sockets, and request bodies of at most the node's `max_in_flight_bytes` in sum. Permits for bytes are
//! taken as a body or a frame of a stream of calls arrives: what a client announces and does not send costs the others nothing.
//!
//! Answers have no budget in bytes: what a reader has not taken yet is in memory, one answer for each connection of HTTP/1 and
//! up to `max_concurrent_streams` for each of HTTP/2, for as long as it reads at the least rate.

mod admin;
mod call;
mod config;
mod describe;
mod dispatch;
mod error;
mod file_type;
mod guard;
mod listener;
mod observe;
pub mod protocol;
mod request;
mod request_id;
mod respond;
mod runtime;

/// The version of axum whose routers an edge can be mounted in.
pub use axum;

pub use admin::{Admin, serve_admin};
pub use callboard_telemetry::{
    AccessLog, AccessRecord, AccessSink, Attribute, SampleRatio, SampleRatioError, Span, SpanSink,
};
#[cfg(feature = "otlp")]
pub use callboard_telemetry::{OtlpConfig, SpanExporter};
pub use config::{HttpConfig, HttpConfigError, TlsConfig};
pub use describe::curl::{curl, shell_word};
pub use describe::is_reserved;
pub use describe::openapi::{ApiInfo, example_of, openapi};
pub use dispatch::HttpEdge;
pub use dispatch::serve::{HttpServeError, serve, serve_edge, serve_mounted, serve_router};
pub use error::{Problem, http_status};
pub use file_type::media_type_of;
pub use guard::{ApiKeys, ApiKeysError, Cors, CorsError, Hosts, HostsError, RateLimit, RateLimitError};
pub use listener::ABORT_GRACE;
pub use listener::tls::TlsError;
