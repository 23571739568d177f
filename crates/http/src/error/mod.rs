//! What went wrong with a request, on its way to becoming an answer.
//!
//! Handlers return [`ApiError`]; it becomes a problem document (RFC 9457) in one place, [`ApiError::into_answer`], where the
//! request's id is known. Failed calls come with a kind of their own; the statuses that only HTTP knows (405, 406, 408, 413,
//! 415) are made here, all of kind `invalid_input`: the caller can change the request and succeed.

mod answer;
pub(crate) mod catch_panic;
mod mapping;
pub(crate) mod misfits;
mod problem;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use axum::http::header::{ACCEPT_ENCODING, ALLOW, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use callboard_codec::{ChargeError, DataType, DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind, Map, Value};
use callboard_core::edge::limit_error_text;
use callboard_core::{CallError, ChangeError, ErrorKind, Failure, Timing};

use self::mapping::status_of;
use self::misfits::Misfit;

pub use self::answer::{Problem, http_status};
pub(crate) use self::problem::PROBLEM_JSON;

/// The content codings of bodies.
const CODINGS: &str = "gzip, deflate, zstd";

/// The type of the error when a body does not come to its end.
const BROKEN_BODY: &str = "broken_body";

/// An answer that is not the one hoped for. Boxed inside: the path where all is well carries one pointer.
#[derive(Clone, Debug)]
pub struct ApiError(Box<ErrorFields>);

#[derive(Clone, Debug)]
struct ErrorFields {
    status: StatusCode,
    kind: ErrorKind,
    message: Cow<'static, str>,
    error_type: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    /// Whether the same request may be sent again.
    retryable: bool,
    remote_trace: Option<String>,
    stage: Option<String>,
    details: Option<Value>,
    header: Option<(HeaderName, HeaderValue)>,
    /// The route that it is about, where that is not known from the path alone.
    route: Option<String>,
    /// Where its call's time went.
    timing: Option<Timing>,
}

impl ApiError {
    /// An error of the edge's own.
    fn edge(status: StatusCode, error_type: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(ErrorKind::InvalidInput, message);
        error.0.status = status;
        error.0.error_type = Some(error_type.into());
        error
    }

    /// An invalid request, with a status and a type of its own.
    #[must_use]
    pub fn with_status(status: StatusCode, error_type: &'static str, message: String) -> Self {
        Self::edge(status, error_type, message)
    }

    /// An error of this kind, with the status of the kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let message = match message.into() {
            // What a request brings may be in it.
            Cow::Owned(text) => Cow::Owned(limit_error_text(text)),
            Cow::Borrowed(own) => Cow::Borrowed(own),
        };
        Self(Box::new(ErrorFields {
            status: status_of(kind, None),
            kind,
            message,
            error_type: None,
            retry_after: None,
            retryable: kind.is_retryable(),
            remote_trace: None,
            stage: None,
            details: None,
            header: None,
            route: None,
            timing: None,
        }))
    }

    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    /// The same error, logged with this route.
    #[must_use]
    pub fn about(mut self, route: &str) -> Self {
        self.0.route = Some(route.to_owned());
        self
    }

    /// The same, told to be about this part of a form.
    pub(crate) fn in_part(mut self, name: &str) -> Self {
        self.0.message = format!("part `{name}`: {}", self.0.message).into();
        self
    }

    /// Attaches what programs may read.
    pub(crate) fn with_details(mut self, details: Option<Value>) -> Self {
        self.0.details = details;
        self
    }

    /// 400: a header that cannot be read, or not in the way it must be.
    pub(crate) fn bad_header(name: &'static str, allowed: &'static str) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_header", format!("header `{name}` must be {allowed}"))
    }

    /// 400: the body's end did not come, or its framing is wrong.
    pub(crate) fn broken_body(error: &dyn std::error::Error) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
        let message = format!("the body could not be read: {}", causes.collect::<Vec<_>>().join(": "));
        Self::edge(StatusCode::BAD_REQUEST, BROKEN_BODY, message)
    }

    /// 400: a request without exactly one valid host.
    pub(crate) fn bad_host(allowed: &'static str) -> Self {
        Self::bad_header("host", allowed)
    }

    /// 401, saying how to show a key. Whether one was shown is all that it tells.
    pub(crate) fn unauthenticated(was_shown: bool) -> Self {
        let (message, challenge) = match was_shown {
            true => ("this key is not valid", "Bearer realm=\"callboard\", error=\"invalid_token\""),
            false => ("send a key, as `authorization: Bearer …` or as `x-api-key`", "Bearer realm=\"callboard\""),
        };
        let mut error = Self::new(ErrorKind::Unauthenticated, message);
        error.0.error_type = Some(if was_shown { "invalid_key" } else { "no_key" }.into());
        error.with_header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
    }

    /// 429: this key has asked more often than it may.
    pub(crate) fn rate_limited(key: &str, limit: impl Display, wait: Duration) -> Self {
        let mut error = Self::new(ErrorKind::Overloaded, format!("key `{key}` is over its limit of {limit}"));
        error.0.error_type = Some("rate_limited".into());
        error.0.retry_after = Some(wait);
        error
    }

    /// 429: so many items at once are more than the key's limit ever lets through.
    pub(crate) fn beyond_rate(key: &str, limit: impl Display, items: u32) -> Self {
        let message =
            format!("{items} items at once are beyond the limit of key `{key}`, {limit}; ask for fewer at a time");
        let mut error = Self::new(ErrorKind::Overloaded, message);
        error.0.error_type = Some("rate_limited".into());
        error.0.retryable = false;
        error
    }

    /// 503 on everything but `/livez` until the node is there.
    pub(crate) fn starting() -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, "the node is starting");
        error.0.retry_after = Some(Duration::from_secs(1));
        error
    }

    /// 503 on a call that was not finished when the node had to end. It may have run.
    pub(crate) fn ending() -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, "the node is ending, and did not finish this call in time");
        error.0.retryable = false;
        error
    }

    /// 400: a multipart body that is none, or has a part of no use.
    pub(crate) fn bad_multipart(what: impl Into<Cow<'static, str>>) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_multipart", what)
    }

    /// 400: a stream of calls is no row of frames.
    pub(crate) fn bad_frame(what: impl Into<Cow<'static, str>>) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "bad_frame", what)
    }

    /// 400: each call of a stream has one outcome, which a route that streams has not.
    pub(crate) fn no_calls_of_streams(route: &str) -> Self {
        let message = format!("`{route}` answers one call with a stream; call it once with each request");
        Self::edge(StatusCode::BAD_REQUEST, "streaming_route", message)
    }

    /// 400: a text that is none.
    pub(crate) fn bad_text(offset: usize) -> Self {
        let message = format!("the body is text but not UTF-8 (byte {offset})");
        Self::edge(StatusCode::BAD_REQUEST, "malformed_body", message)
    }

    /// 404 for a path that is neither a route nor a page of the edge, which is mounted below `prefix`.
    pub(crate) fn no_such_route(path: &str, prefix: &str) -> Self {
        Self::no_such_page(path, &format!("`GET {prefix}/` lists what there is"))
    }

    /// 404, saying where to look.
    pub(crate) fn no_such_page(path: &str, hint: &str) -> Self {
        let path: String = path.chars().take(MAX_SHOWN_CHARS).collect();
        Self::new(ErrorKind::NotFound, format!("there is no route `{path}`; {hint}"))
    }

    /// 403.
    pub(crate) fn forbidden(why: &'static str) -> Self {
        Self::new(ErrorKind::PermissionDenied, why)
    }

    /// 405, naming the method that would do.
    #[must_use]
    pub fn method_not_allowed(method: &Method, allowed: &'static str) -> Self {
        let method: String = method.as_str().chars().take(MAX_SHOWN_CHARS).collect();
        let message = format!("method {method} is not allowed here; use {allowed}");
        Self::edge(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
            .with_header(ALLOW, HeaderValue::from_static(allowed))
    }

    /// 406, listing what could be sent.
    pub(crate) fn not_acceptable(offered: &str) -> Self {
        let message = format!("nothing that `accept` allows can be sent; on offer: {offered}");
        Self::edge(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
    }

    /// 406 behind the call: only its outcome told that no accepted form can hold it.
    pub(crate) fn outcome_not_acceptable(media_type: &str, error: &EncodeError) -> Self {
        let message =
            format!("the outcome cannot be sent as `{media_type}`, and `accept` allows nothing else: {error}");
        Self::edge(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
    }

    /// 408: the client went silent within its body, or sends it by the drop.
    pub(crate) fn body_stalled(bytes: u64, window: Duration) -> Self {
        let message = format!("less than {bytes} bytes of the body arrived within {window:?}");
        Self::edge(StatusCode::REQUEST_TIMEOUT, "body_stalled", message)
    }

    /// 408: the time for any body was over.
    pub(crate) fn body_out_of_time(limit: Duration) -> Self {
        let message = format!("the body had not arrived after {limit:?}");
        Self::edge(StatusCode::REQUEST_TIMEOUT, "body_out_of_time", message)
    }

    /// 413, by announcement or by count.
    #[must_use]
    pub fn body_too_large(limit_bytes: u64) -> Self {
        let message = format!("the body exceeds the limit of {limit_bytes} bytes");
        Self::edge(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// 415, listing what is understood; first the header that a client in a hurry left out.
    pub(crate) fn unsupported_media_type(got_type: Option<&str>, accepted: &str) -> Self {
        let got = match got_type {
            Some(got) => {
                let shown: String = got.chars().take(MAX_SHOWN_CHARS).collect();
                format!("content-type `{shown}` is not understood here")
            }
            None => "the request has no content-type".to_owned(),
        };
        // A form without files has its type from curl, where `-d` sent JSON without a word about it.
        let is_forgotten = got_type.is_none_or(|got| got.starts_with("application/x-www-form-urlencoded"));
        let is_json = accepted.split(", ").any(|accepted| accepted == "application/json");
        let cure = if is_forgotten && is_json { "; for JSON add -H 'content-type: application/json'" } else { "" };
        let message = format!("{got}{cure}; accepted: {accepted}");
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 415 for text that is not UTF-8.
    pub(crate) fn unsupported_charset(charset: &str) -> Self {
        let shown: String = charset.chars().take(MAX_SHOWN_CHARS).collect();
        let message = format!("charset `{shown}` is not understood; send UTF-8");
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// 400 for a body that does not unpack.
    pub(crate) fn bad_coding(name: &str, error: &std::io::Error) -> Self {
        Self::edge(StatusCode::BAD_REQUEST, "malformed_body", format!("the body cannot be unpacked as {name}: {error}"))
    }

    /// 415 for a body that is compressed in another way.
    #[must_use]
    pub fn unsupported_encoding() -> Self {
        let message =
            "this content-encoding is not understood; send one of gzip, deflate and zstd, or the body as it is";
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
            .with_header(ACCEPT_ENCODING, HeaderValue::from_static(CODINGS))
    }

    /// 415 for a stream of calls that is compressed, in whatever way.
    pub(crate) fn packed_stream() -> Self {
        let message = "a stream of calls is not packed: send its frames as they are";
        Self::edge(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    /// 504 before anything ran: the deadline passed while the body was still coming.
    pub(crate) fn deadline_within_body() -> Self {
        let message = "the deadline passed before the body had arrived; `x-request-timeout-ms` asks for more time";
        Self::new(ErrorKind::DeadlineExceeded, message)
    }

    /// 500: the outcome is there, and the format has no form for it.
    #[must_use]
    pub fn unencodable(error: EncodeError) -> Self {
        match error.kind() {
            EncodeErrorKind::Exhausted => Self::no_memory(error.to_string()),
            EncodeErrorKind::Stopped => Self::stopped(),
            _ => CallError::from(error).into(),
        }
    }

    /// Whether there may be room for the same request later.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.0.kind == ErrorKind::Overloaded
    }

    /// 429: other calls hold the memory that this one needs.
    fn no_memory(message: String) -> Self {
        let mut answer = Self::new(ErrorKind::Overloaded, message);
        answer.0.retry_after = Some(RETRY_AFTER);
        answer
    }

    /// 504: work was stopped for want of time. Where its caller left, nobody reads it.
    fn stopped() -> Self {
        Self::new(ErrorKind::DeadlineExceeded, "the deadline passed while the payload was read or written")
    }

    /// 422 that names every field of `value` that does not fit, where reading it has ended with `error`.
    pub(crate) fn unfit(error: DecodeError, input: &DataType, value: &Value) -> Self {
        let misfits = misfits::misfits(input.schema(), value, &error);
        let others = misfits.len().saturating_sub(1);
        let mut answer = Self::from(error);
        if others > 0 {
            answer.0.message = format!("{}; {others} more in `details.fields`", answer.0.message).into();
        }
        answer.with_details(Some(fields_of(misfits)))
    }

    /// 500 for a panic of ours or of a codec of the user's.
    pub(crate) fn panicked() -> Self {
        Self::new(ErrorKind::Internal, "the http edge panicked on this request; the server's log knows more")
    }

    /// The same as what a call's input is refused with.
    pub(crate) fn into_failure(self) -> Failure {
        let ErrorFields { status, message, error_type, details, .. } = *self.0;
        let failure = Failure::invalid_input(message).with_status(status.as_u16());
        let failure = error_type.into_iter().fold(failure, |failure, name| failure.with_type(name));
        details.into_iter().fold(failure, Failure::with_details)
    }

    /// Where its call's time went, if there was one.
    pub(crate) fn timing(&self) -> Option<Timing> {
        self.0.timing
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The route that it is told to be about.
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

    /// Logs the error: a warning if a call failed on our side, else at debug level.
    ///
    /// A page is not a call: machines request it every second, and 503 of `/readyz` is a response, not an event.
    pub fn log(&self, request_id: &str, route: Option<&str>) {
        let ErrorFields { status, kind, message, error_type, stage, .. } = &*self.0;
        let route = route.or(self.0.route.as_deref());
        let (status, kind) = (status.as_u16(), kind.as_str());
        let (error_type, stage) = (error_type.as_deref(), stage.as_deref());
        // A feature that a protocol has and we do not (501) is a mistake of the caller.
        if status >= 500 && route.is_some() && self.0.kind != ErrorKind::InvalidInput {
            tracing::warn!(request_id, route, status, kind, error_type, stage, "{message}");
        } else {
            tracing::debug!(request_id, route, status, kind, error_type, stage, "{message}");
        }
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        let mut answer = Self::new(error.kind(), error.message().to_owned());
        answer.0.status = status_of(error.kind(), error.status());
        answer.0.error_type = error.error_type().map(|name| name.to_owned().into());
        answer.0.retry_after = error.retry_after();
        answer.0.retryable = error.is_retryable();
        answer.0.remote_trace = error.remote_trace().map(str::to_owned);
        answer.0.stage = error.stage().map(str::to_owned);
        answer.0.details = error.details().cloned();
        answer.0.timing = error.timing();
        answer
    }
}

/// The limit of the node's memory: what exceeds it alone is too large, and not malformed.
const MAX_IN_FLIGHT_BYTES: &str = "max_in_flight_bytes";

/// When a call may come again for which there was no memory: the time in which a full node has surely finished something.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<ChargeError> for ApiError {
    fn from(error: ChargeError) -> Self {
        DecodeError::from(error).into()
    }
}

impl From<DecodeError> for ApiError {
    /// 422 for what is well-formed but not what the route takes, 400 for everything else.
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
            DecodeErrorKind::Mismatch => answer.with_details(Some(fields_of(vec![Misfit::from_error(&error)]))),
            _ => answer,
        }
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
        Self::of_kind(kind, error.to_string())
    }
}

/// The places that do not fit, in the form that stages use.
fn fields_of(misfits: Vec<Misfit>) -> Value {
    let fields = misfits.into_iter().map(Misfit::into_value).collect();
    Map::from_iter([("fields", Value::List(fields))]).into()
}

/// Carries the error through axum to where the request's id is known and the answer is written.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// How much of a client's own text is repeated to it.
const MAX_SHOWN_CHARS: usize = 100;
