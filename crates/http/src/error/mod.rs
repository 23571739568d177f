//! Errors of requests, until they become responses.
//!
//! Handlers return [`ApiError`]. It becomes a problem document (RFC 9457) in [`ApiError::into_answer`], where the
//! request's id is known. Failed calls have their own kinds. The statuses of HTTP alone (405, 406, 408, 413, 415) are
//! made here, all of kind `invalid_input`: the caller can correct the request.

mod answer;
pub(crate) mod catch_panic;
mod log;
mod mapping;
pub(crate) mod mismatches;
mod problem;
mod rate_left;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use axum::http::header::{ACCEPT_ENCODING, ALLOW, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use callboard_codec::{ChargeError, DataType, DecodeError, DecodeErrorKind, EncodeError, Format, Map, Value};
use callboard_core::edge::{ErrorParts, RETRY_AFTER, Route, TooSlow, limit_error_text};
use callboard_core::{CallError, ChangeError, ErrorKind, Failure, LocalClient, Timing};

use self::mapping::{header_of_call, status_of, status_of_call};
use self::mismatches::SchemaMismatch;
pub use self::rate_left::RateLeft;

pub use self::answer::{Problem, http_status};
pub(crate) use self::mapping::header_of_response;
pub(crate) use self::problem::PROBLEM_JSON;
pub use self::problem::X_SHOULD_RETRY;

/// The content codings of bodies.
const CODINGS: &str = if cfg!(feature = "zstd") { "gzip, deflate, zstd" } else { "gzip, deflate" };

/// The type of the error of a body that does not end properly.
const BROKEN_BODY: &str = "broken_body";

/// An error of a request. Boxed inside, so that successful results carry one pointer.
#[derive(Clone, Debug)]
pub struct ApiError(Box<ErrorFields>);

#[derive(Clone, Debug)]
struct ErrorFields {
    status: StatusCode,
    kind: ErrorKind,
    message: Cow<'static, str>,
    error_type: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    /// What its key may send, if that is the reason.
    rate_left: Option<RateLeft>,
    /// Whether the same request may be sent again.
    is_retryable: bool,
    /// Whether something may have been done for it.
    may_have_run: bool,
    remote_trace: Option<String>,
    stage: Option<String>,
    details: Option<Value>,
    headers: HeaderMap,
    /// The route, if the path alone does not name it.
    route: Option<String>,
    /// The times of its call.
    timing: Option<Timing>,
}

/// The error of everything but `/livez` while the node starts.
pub(crate) fn starting() -> CallError {
    let retry_after = Some(RETRY_AFTER);
    ErrorParts { retry_after, ..ErrorParts::new(ErrorKind::Unavailable, "the node is starting") }.into()
}

impl ApiError {
    fn edge(status: StatusCode, error_type: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(ErrorKind::InvalidInput, message);
        error.0.status = status;
        error.0.error_type = Some(error_type.into());
        error
    }

    /// An invalid request, with its own status and type.
    #[must_use]
    pub fn with_status(status: StatusCode, error_type: &'static str, message: String) -> Self {
        Self::edge(status, error_type, message)
    }

    /// An error of this kind, with the status of the kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let message = match message.into() {
            // The text may contain parts of the request.
            Cow::Owned(text) => Cow::Owned(limit_error_text(text)),
            Cow::Borrowed(own) => Cow::Borrowed(own),
        };
        Self(Box::new(ErrorFields {
            status: status_of(kind, None),
            kind,
            message,
            error_type: None,
            retry_after: None,
            rate_left: None,
            is_retryable: kind.is_retryable(),
            may_have_run: kind.comes_after_start(),
            remote_trace: None,
            stage: None,
            details: None,
            headers: HeaderMap::new(),
            route: None,
            timing: None,
        }))
    }

    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    pub(crate) fn with_rate_left(mut self, left: RateLeft) -> Self {
        self.0.rate_left = Some(left);
        self
    }

    /// How far the key of the request is from its limit, if that refuses it.
    #[must_use]
    pub fn rate_left(&self) -> Option<RateLeft> {
        self.0.rate_left
    }

    /// The same error, with the time after which the request may be sent again.
    pub(crate) fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.0.retry_after = after;
        self
    }

    /// The same error of a request of several calls, of which some may have run: it may not be sent again.
    #[must_use]
    pub fn of_calls_that_ran(mut self) -> Self {
        self.0.is_retryable = false;
        self.0.may_have_run = true;
        self.0.retry_after = None;
        self
    }

    /// What this error of one of `calls` says of their request: others may have run, and would run again.
    #[must_use]
    pub fn of_one_of(mut self, calls: usize, client: &LocalClient, route: &Route) -> Self {
        if calls <= 1 {
            return self;
        }
        self.0.may_have_run = true;
        if client.edge().may_run_again(route) { self } else { self.of_calls_that_ran() }
    }

    /// The same error, logged with this route.
    #[must_use]
    pub fn about(mut self, route: &str) -> Self {
        self.0.route = Some(route.to_owned());
        self
    }

    /// The same error, with the name of a part of a form.
    pub(crate) fn in_part(mut self, name: &str) -> Self {
        self.0.message = format!("part `{name}`: {}", self.0.message).into();
        self
    }

    /// Attaches data for programs.
    pub(crate) fn with_details(mut self, details: Option<Value>) -> Self {
        self.0.details = details;
        self
    }

    /// 400: a header that cannot be read, or that is not allowed here.
    pub(crate) fn bad_header(name: &'static str, allowed: &'static str) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_header", format!("header `{name}` must be {allowed}"))
    }

    /// 400: a truncated body, or invalid framing.
    pub(crate) fn broken_body(error: &dyn std::error::Error) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
        let message = format!("the body could not be read: {}", causes.collect::<Vec<_>>().join(": "));
        Self::edge(StatusCode::BAD_REQUEST, BROKEN_BODY, message)
    }

    /// 400: a request without exactly one valid host.
    pub(crate) fn bad_host(allowed: &'static str) -> Self {
        Self::bad_header("host", allowed)
    }

    /// 401, with the ways to send a key. It shows only whether a key was sent.
    pub(crate) fn unauthenticated(was_shown: bool) -> Self {
        let (message, challenge) = if was_shown {
            ("this key is not valid", "Bearer realm=\"callboard\", error=\"invalid_token\"")
        } else {
            ("send a key, as `authorization: Bearer …` or as `x-api-key`", "Bearer realm=\"callboard\"")
        };
        let mut error = Self::new(ErrorKind::Unauthenticated, message);
        error.0.error_type = Some(if was_shown { "invalid_key" } else { "no_key" }.into());
        error.with_header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
    }

    /// 429: the key is over its limit.
    pub(crate) fn rate_limited(key: &str, limit: impl Display, wait: Duration) -> Self {
        let mut error = Self::new(ErrorKind::Overloaded, format!("key `{key}` is over its limit of {limit}"));
        error.0.error_type = Some("rate_limited".into());
        error.0.retry_after = Some(wait);
        error
    }

    /// 429: the limit of the key never allows this many items at once.
    pub(crate) fn beyond_rate(key: &str, limit: impl Display, items: u32) -> Self {
        let message = format!("{items} items at once are over the limit of key `{key}`, {limit}; send fewer at a time");
        let mut error = Self::new(ErrorKind::Overloaded, message);
        error.0.error_type = Some("rate_limited".into());
        error.0.is_retryable = false;
        error
    }

    /// 503 for a call that had not finished when the node ended. It may have run.
    pub(crate) fn ending() -> Self {
        Self::new(ErrorKind::Unavailable, "the node is ending and did not finish this call in time").of_calls_that_ran()
    }

    /// 503: a frame of a stream of calls that was not read, because the node is about to end.
    pub(crate) fn withdrawn() -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, "the node is about to end, and reads no further calls");
        error.0.is_retryable = true;
        error
    }

    /// 400: an invalid multipart body, or an unusable part.
    pub(crate) fn bad_multipart(what: impl Into<Cow<'static, str>>) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_multipart", what)
    }

    /// 400: an unusable field of a form.
    pub(crate) fn bad_form(what: impl Into<Cow<'static, str>>) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_form", what)
    }

    /// 415: a body without a form, of the type that curl's `-d` sends by default.
    pub(crate) fn no_form() -> Self {
        let message = "the content-type is that of a form, `name=value&…`, and the body is not one; for JSON add -H \
                       'content-type: application/json'";
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 400: a stream of calls that is not a sequence of frames.
    pub(crate) fn bad_frame(what: impl Into<Cow<'static, str>>) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_frame", what)
    }

    /// 400: each call of a stream has one outcome; a streaming route has many.
    pub(crate) fn no_calls_of_streams(route: &str) -> Self {
        let message = format!("`{route}` answers one call with a stream; send one call per request");
        Self::edge(StatusCode::BAD_REQUEST, "streaming_route", message)
    }

    /// 400: no body where this format says that there is a value.
    pub(crate) fn empty_body(format: Format) -> Self {
        let media_type = format.media_type();
        let nothing = if format == Format::Json { "; send `null` for no value" } else { "" };
        let message = format!("the body is empty: expected a value as `{media_type}`{nothing}");
        Self::edge(StatusCode::BAD_REQUEST, "malformed_body", message)
    }

    /// 400: a text that is not UTF-8.
    pub(crate) fn bad_text(offset: usize) -> Self {
        let message = format!("the body is text but not UTF-8 (byte {offset})");
        Self::edge(StatusCode::BAD_REQUEST, "malformed_body", message)
    }

    /// 404 for a path without a route or page. The edge is mounted below `prefix`.
    pub(crate) fn no_such_route(path: &str, prefix: &str) -> Self {
        Self::no_such_page(path, &format!("`GET {prefix}/` lists what there is"))
    }

    /// 404, with a hint.
    pub(crate) fn no_such_page(path: &str, hint: &str) -> Self {
        let path: String = path.chars().take(MAX_SHOWN_CHARS).collect();
        Self::new(ErrorKind::NotFound, format!("there is no route `{path}`; {hint}"))
    }

    /// 403.
    pub(crate) fn forbidden(why: &'static str) -> Self {
        Self::new(ErrorKind::PermissionDenied, why)
    }

    /// 405, with the allowed methods.
    #[must_use]
    pub fn method_not_allowed(method: &Method, allowed: &str) -> Self {
        let method: String = method.as_str().chars().take(MAX_SHOWN_CHARS).collect();
        let message = format!("method {method} is not allowed here; use {allowed}");
        let error = Self::edge(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        match HeaderValue::from_str(allowed) {
            Ok(allowed) => error.with_header(ALLOW, allowed),
            Err(_) => error,
        }
    }

    /// 406, with the available media types.
    pub(crate) fn not_acceptable(offered: &str) -> Self {
        let message = format!("no form that `accept` allows is available; available: {offered}");
        Self::edge(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
    }

    /// 406 after the call: its outcome fits no accepted form. Without a media type, only the code of the route could
    /// have chosen one.
    pub(crate) fn outcome_not_acceptable(media_type: Option<&str>, error: &EncodeError) -> Self {
        let message = match media_type {
            Some(name) => format!("the outcome cannot be sent as `{name}`, and `accept` allows nothing else: {error}"),
            None => format!("the outcome cannot be sent as `accept` of the request asks: {error}"),
        };
        Self::edge(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
    }

    /// 429: as many connections are upgraded as may be.
    pub(crate) fn too_many_upgrades(limit: usize) -> Self {
        let message = format!("{limit} connections are upgraded to other protocols, half of `http.max_connections`");
        let mut answer = Self::new(ErrorKind::Overloaded, message);
        answer.0.retry_after = Some(RETRY_AFTER);
        answer
    }

    /// 413, by the announced or the received length.
    #[must_use]
    pub fn body_too_large(limit_bytes: u64) -> Self {
        let message = format!("the body exceeds the limit of {limit_bytes} bytes");
        Self::edge(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// 415, with the accepted types, and a hint for a forgotten header.
    pub(crate) fn unsupported_media_type(got_type: Option<&str>, accepted: &str) -> Self {
        let got = match got_type {
            Some(got) => {
                let shown: String = got.chars().take(MAX_SHOWN_CHARS).collect();
                format!("content-type `{shown}` is not supported here")
            }
            None => "the request has no content-type".to_owned(),
        };
        // curl's `-d` sends this type by default, for a body that is usually JSON.
        let is_forgotten = got_type.is_none_or(|got| got.starts_with("application/x-www-form-urlencoded"));
        let is_json = accepted.split(", ").any(|accepted| accepted == "application/json");
        let cure = if is_forgotten && is_json { "; for JSON add -H 'content-type: application/json'" } else { "" };
        let message = format!("{got}{cure}; accepted: {accepted}");
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 415 for text that is not UTF-8.
    pub(crate) fn unsupported_charset(charset: &str) -> Self {
        let shown: String = charset.chars().take(MAX_SHOWN_CHARS).collect();
        let message = format!("charset `{shown}` is not supported; send UTF-8");
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 400 for a body that does not decompress.
    pub(crate) fn bad_coding(name: &str, error: &std::io::Error) -> Self {
        Self::edge(
            StatusCode::BAD_REQUEST,
            "malformed_body",
            format!("the body cannot be decompressed as {name}: {error}"),
        )
    }

    /// 415 for an unknown content coding.
    #[must_use]
    pub fn unsupported_encoding() -> Self {
        let message =
            format!("this content-encoding is not supported; send the body uncompressed, or as one of {CODINGS}");
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
            .with_header(ACCEPT_ENCODING, HeaderValue::from_static(CODINGS))
    }

    /// 415 for a compressed stream of calls.
    pub(crate) fn packed_stream() -> Self {
        let message = "a stream of calls cannot be compressed: send its frames as they are";
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    /// The outcome cannot be written: 500 if the format cannot hold it, 429 without memory for it, 504 without time.
    /// The call has run, so it may not be sent again.
    #[must_use]
    pub fn unencodable(error: EncodeError) -> Self {
        CallError::from(error).into()
    }

    /// Whether the same request may have room later.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.0.kind == ErrorKind::Overloaded
    }

    /// 429: other calls hold the memory for this call.
    fn no_memory(message: String) -> Self {
        let mut answer = Self::new(ErrorKind::Overloaded, message);
        answer.0.retry_after = Some(RETRY_AFTER);
        answer
    }

    /// 504: the deadline stopped the work.
    fn stopped() -> Self {
        Self::new(ErrorKind::DeadlineExceeded, "the deadline passed while the payload was read or written")
    }

    /// 422 that names every field of `value` that does not fit, after `error` ended its reading.
    pub(crate) fn unfit(error: DecodeError, input: &DataType, value: &Value) -> Self {
        let mismatches = mismatches::mismatches(input.schema(), value, &error);
        let others = mismatches.len().saturating_sub(1);
        let mut answer = Self::from(error);
        if others > 0 {
            answer.0.message = format!("{}; {others} more in `details.fields`", answer.0.message).into();
        }
        answer.with_details(Some(fields_of(mismatches)))
    }

    /// 500 for a panic in the edge or in a codec of user code.
    pub(crate) fn panicked() -> Self {
        Self::new(ErrorKind::Internal, "the http edge panicked on this request; see the log of the server")
    }

    /// The same error as a failure of a call's input.
    pub(crate) fn into_failure(self) -> Failure {
        let ErrorFields { status, message, error_type, details, .. } = *self.0;
        let failure = Failure::invalid_input(message).with_status(status.as_u16());
        let failure = error_type.into_iter().fold(failure, |failure, name| failure.with_type(name));
        details.into_iter().fold(failure, Failure::with_details)
    }

    /// The times of its call, if there was one.
    pub(crate) fn timing(&self) -> Option<Timing> {
        self.0.timing
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The route of the error.
    pub(crate) fn route(&self) -> Option<&str> {
        self.0.route.as_deref()
    }

    /// The text for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Its type, if it has one besides its kind: of the edge, of the protocol, or as user code chose.
    #[must_use]
    pub fn error_type(&self) -> Option<&str> {
        self.0.error_type.as_deref()
    }

    /// Whether the same request may be sent again: nothing of it has run, or what has run may run again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.is_retryable
    }

    /// Whether something may have been done for the request: see [`CallError::may_have_run`].
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.0.may_have_run
    }

    /// Whether the client would retry this status by default (408, 409, 429, 5xx) although the call may have run.
    #[must_use]
    pub fn must_not_be_repeated(&self) -> bool {
        let status = self.0.status;
        // Status 408 of the edge is of a body that came too slowly: nothing has run.
        let is_late = status == StatusCode::REQUEST_TIMEOUT && self.0.may_have_run;
        let is_repeated = is_late || status.is_server_error() || matches!(status.as_u16(), 409 | 429);
        is_repeated && !self.0.is_retryable
    }

    /// The time after which the request may be sent again, if it is known.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        let mut answer = Self::new(error.kind(), error.message().to_owned());
        answer.0.status = status_of_call(&error);
        answer.0.error_type = error.error_type().map(|name| name.to_owned().into());
        answer.0.retry_after = error.retry_after();
        answer.0.is_retryable = error.is_retryable();
        answer.0.may_have_run = error.may_have_run();
        answer.0.remote_trace = error.remote_trace().map(str::to_owned);
        answer.0.stage = error.stage().map(str::to_owned);
        answer.0.details = error.details().cloned();
        answer.0.headers = error.headers().iter().filter_map(|(name, value)| header_of_call(name, value)).collect();
        answer.0.timing = error.timing();
        answer
    }
}

/// The limit of the node's memory. Data that exceeds it alone is too large, not malformed.
const MAX_IN_FLIGHT_BYTES: &str = "max_in_flight_bytes";

impl From<ChargeError> for ApiError {
    fn from(error: ChargeError) -> Self {
        DecodeError::from(error).into()
    }
}

impl From<DecodeError> for ApiError {
    /// 422 for a well-formed body that does not fit the route's type, else 400.
    fn from(error: DecodeError) -> Self {
        let (status, error_type) = match error.kind() {
            DecodeErrorKind::Exhausted => return Self::no_memory(error.to_string()),
            DecodeErrorKind::Stopped => return Self::stopped(),
            DecodeErrorKind::LimitExceeded if error.limit().is_some_and(|limit| limit.name == MAX_IN_FLIGHT_BYTES) => {
                (StatusCode::PAYLOAD_TOO_LARGE, "decode_limit_exceeded")
            }
            DecodeErrorKind::Mismatch => (StatusCode::UNPROCESSABLE_ENTITY, "schema_mismatch"),
            DecodeErrorKind::LimitExceeded => (StatusCode::BAD_REQUEST, "decode_limit_exceeded"),
            _ => (StatusCode::BAD_REQUEST, "malformed_body"),
        };
        let answer = Self::edge(status, error_type, error.to_string());
        match error.kind() {
            DecodeErrorKind::Mismatch => answer.with_details(Some(fields_of(vec![SchemaMismatch::from_error(&error)]))),
            _ => answer,
        }
    }
}

impl From<TooSlow> for ApiError {
    /// 408 for a body that stalled or took too long, 504 if the deadline passed before. Nothing ran.
    fn from(reason: TooSlow) -> Self {
        let (error_type, message) = match reason {
            TooSlow::Stalled { bytes, window } => {
                ("body_stalled", format!("less than {bytes} bytes of the body arrived within {window:?}"))
            }
            TooSlow::OutOfTime { limit } => ("body_out_of_time", format!("the body had not arrived after {limit:?}")),
            _ => {
                let message =
                    "the deadline passed before the body had arrived; `x-request-timeout-ms` asks for more time";
                return Self::new(ErrorKind::DeadlineExceeded, message);
            }
        };
        Self::edge(StatusCode::REQUEST_TIMEOUT, error_type, message)
    }
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        let kind = match error {
            ChangeError::NoSuchRoute { .. } | ChangeError::NoSuchStage { .. } => ErrorKind::NotFound,
            ChangeError::Busy { .. } => ErrorKind::Overloaded,
            ChangeError::Ending => ErrorKind::Unavailable,
            ChangeError::Stage { .. } | ChangeError::Superseded => ErrorKind::Failed,
            ChangeError::Internal(_) => ErrorKind::Internal,
            _ => ErrorKind::InvalidInput,
        };
        Self::new(kind, error.to_string())
    }
}

/// The places that do not fit, in the form that stages use.
fn fields_of(mismatches: Vec<SchemaMismatch>) -> Value {
    let fields = mismatches.into_iter().map(SchemaMismatch::into_value).collect();
    Map::from_iter([("fields", Value::List(fields))]).into()
}

/// Carries the error through axum to the layer that knows the request's id.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The most characters of a client's text in a message.
const MAX_SHOWN_CHARS: usize = 100;
