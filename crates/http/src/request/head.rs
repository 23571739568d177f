//! The headers of a request that the edge reads, in one pass.
//!
//! Other headers are skipped. An unreadable or repeated header is an error that names it: silently ignoring a deadline
//! would be worse than none.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::{Deadline, Priority, SessionKey};

use crate::error::ApiError;
use crate::observe::timeline_header::X_CALLBOARD_EXPLAIN;
use crate::request::coding::ContentCoding;

/// The time that the client waits, in milliseconds.
pub(crate) const X_REQUEST_TIMEOUT_MS: &str = "x-request-timeout-ms";

/// The same in gRPC's format, which proxies and meshes add: at most eight digits and a unit.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The priority class of the request in the queues.
pub(crate) const X_REQUEST_PRIORITY: &str = "x-request-priority";

/// The session of the request: calls with the same text reach the same replica.
pub(crate) const X_CALLBOARD_SESSION: &str = "x-callboard-session";

/// The longest text that names a session.
pub(crate) const MAX_SESSION_BYTES: usize = 128;

/// The headers that decide how a call is made and answered.
#[derive(Debug, Default, PartialEq)]
pub struct RequestHead<'a> {
    /// `content-type`.
    pub content_type: Option<&'a HeaderValue>,
    /// `accept`.
    pub accept: Option<Cow<'a, HeaderValue>>,
    /// The content coding of the body.
    pub coding: Option<ContentCoding>,
    /// `accept-encoding`.
    pub accept_encoding: Option<Cow<'a, HeaderValue>>,
    /// The time that the client waits.
    pub timeout: Option<Duration>,
    /// The priority class.
    pub priority: Option<Priority>,
    /// The session.
    pub session: Option<SessionKey>,
    /// Handled by the layers around the call; here it is only checked.
    explain: Option<()>,
}

impl<'a> RequestHead<'a> {
    /// Reads the headers. Several lines of `accept` are one list (RFC 9110 §5.2).
    ///
    /// # Errors
    ///
    /// A header that cannot be read, or that comes twice.
    pub fn read(headers: &'a HeaderMap) -> Result<Self, ApiError> {
        Self::read_lines(headers.iter())
    }

    /// Reads the timeout, the priority and the session alone.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub(crate) fn of_call_alone(headers: &'a HeaderMap) -> Result<Self, ApiError> {
        let is_read =
            |name: &str| [X_REQUEST_TIMEOUT_MS, GRPC_TIMEOUT, X_REQUEST_PRIORITY, X_CALLBOARD_SESSION].contains(&name);
        Self::read_lines(headers.iter().filter(|(name, _)| is_read(name.as_str())))
    }

    /// Refuses a body that does not say that it is JSON: a page of another site can send such a body without asking
    /// first.
    ///
    /// # Errors
    ///
    /// 415.
    pub fn check_json(&self) -> Result<(), ApiError> {
        let content_type = self.content_type.map(|value| value.to_str().unwrap_or_default());
        let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/json") {
            return Ok(());
        }
        Err(ApiError::unsupported_media_type(content_type, "application/json"))
    }

    fn read_lines(lines: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>) -> Result<Self, ApiError> {
        let mut head = Self::default();
        let mut grpc_timeout = None;
        for (name, value) in lines {
            match name.as_str() {
                "content-type" => set_once(&mut head.content_type, value, "content-type")?,
                "accept" => head.accept = Some(joined(head.accept.take(), value)),
                "accept-encoding" => head.accept_encoding = Some(joined(head.accept_encoding.take(), value)),
                // Two lines are a list of two codings.
                "content-encoding" if head.coding.is_some() => return Err(ApiError::unsupported_encoding()),
                "content-encoding" => head.coding = ContentCoding::from_header(value)?,
                X_REQUEST_TIMEOUT_MS => set_once(&mut head.timeout, parse_timeout(value)?, X_REQUEST_TIMEOUT_MS)?,
                GRPC_TIMEOUT => set_once(&mut grpc_timeout, parse_grpc_timeout(value)?, GRPC_TIMEOUT)?,
                X_REQUEST_PRIORITY => set_once(&mut head.priority, parse_priority(value)?, X_REQUEST_PRIORITY)?,
                X_CALLBOARD_SESSION => set_once(&mut head.session, parse_session(value)?, X_CALLBOARD_SESSION)?,
                X_CALLBOARD_EXPLAIN => set_once(&mut head.explain, check_explain(value)?, X_CALLBOARD_EXPLAIN)?,
                _ => {}
            }
        }
        // A proxy may add its own limit: the smaller one wins.
        head.timeout = head.timeout.into_iter().chain(grpc_timeout).min();
        Ok(head)
    }
}

fn set_once<T>(target: &mut Option<T>, value: T, name: &'static str) -> Result<(), ApiError> {
    match target.replace(value) {
        None => Ok(()),
        Some(_) => Err(ApiError::bad_header(name, "given once")),
    }
}

/// Appends a line to a list.
pub(crate) fn joined<'a>(list: Option<Cow<'a, HeaderValue>>, line: &'a HeaderValue) -> Cow<'a, HeaderValue> {
    let Some(list) = list else { return Cow::Borrowed(line) };
    let bytes = [list.as_bytes(), line.as_bytes()].join(&b", "[..]);
    // Two header values joined by a comma are a header value.
    HeaderValue::from_bytes(&bytes).map_or(list, Cow::Owned)
}

/// Whole milliseconds. More than an hour counts as an hour; zero and words are errors.
fn parse_timeout(value: &HeaderValue) -> Result<Duration, ApiError> {
    let refused = || ApiError::bad_header(X_REQUEST_TIMEOUT_MS, "a whole number of milliseconds, 1 or more");
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refused());
    }
    let milliseconds =
        digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    match milliseconds {
        0 => Err(refused()),
        _ => Ok(Duration::from_millis(milliseconds).min(Deadline::MAX_TIMEOUT)),
    }
}

/// Hours, minutes, seconds, milli-, micro- or nanoseconds, as `100m`.
fn parse_grpc_timeout(value: &HeaderValue) -> Result<Duration, ApiError> {
    let refused = || {
        let allowed = "one to eight digits, more than 0, and a unit of `H`, `M`, `S`, `m`, `u` or `n`";
        ApiError::bad_header(GRPC_TIMEOUT, allowed)
    };
    let (unit, digits) = value.as_bytes().split_last().ok_or_else(refused)?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refused());
    }
    let count = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let timeout = match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return Err(refused()),
    };
    if timeout.is_zero() { Err(refused()) } else { Ok(timeout.min(Deadline::MAX_TIMEOUT)) }
}

fn parse_priority(value: &HeaderValue) -> Result<Priority, ApiError> {
    match value.as_bytes() {
        b"high" => Ok(Priority::High),
        b"normal" => Ok(Priority::Normal),
        b"low" => Ok(Priority::Low),
        _ => Err(ApiError::bad_header(X_REQUEST_PRIORITY, "`high`, `normal` or `low`")),
    }
}

/// The key of a text in UTF-8, the same as over QUIC. The text is not kept.
fn parse_session(value: &HeaderValue) -> Result<SessionKey, ApiError> {
    let name = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    match name.len() {
        1..=MAX_SESSION_BYTES => Ok(SessionKey::new(name)),
        _ => Err(ApiError::bad_header(X_CALLBOARD_SESSION, "a text of 1 to 128 bytes in UTF-8")),
    }
}

fn check_explain(value: &HeaderValue) -> Result<(), ApiError> {
    match value.as_bytes() {
        b"0" | b"1" => Ok(()),
        _ => Err(ApiError::bad_header(X_CALLBOARD_EXPLAIN, "`0` or `1`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn timeout(text: &str) -> Result<Option<Duration>, u16> {
        let headers = headers(&[("x-request-timeout-ms", text)]);
        RequestHead::read(&headers).map(|head| head.timeout).map_err(|error| error.status().as_u16())
    }

    #[test]
    fn a_timeout_is_whole_milliseconds_and_at_most_an_hour() {
        assert_eq!(timeout("1"), Ok(Some(Duration::from_millis(1))));
        assert_eq!(timeout("2500"), Ok(Some(Duration::from_millis(2500))));
        assert_eq!(timeout("3600001"), Ok(Some(Deadline::MAX_TIMEOUT)));
        assert_eq!(timeout("99999999999999999999999999"), Ok(Some(Deadline::MAX_TIMEOUT)));
        for refused in ["", "0", "000", "-1", "1.5", "1s", "ten", "+5"] {
            assert_eq!(timeout(refused), Err(400), "{refused}");
        }
    }

    #[test]
    fn a_timeout_may_have_the_syntax_of_grpc_and_the_smaller_of_two_wins() {
        let timeout = |lines: &[(&'static str, &str)]| {
            RequestHead::read(&headers(lines)).map(|head| head.timeout).map_err(|error| error.status().as_u16())
        };
        let grpc_timeout = |text: &str| timeout(&[("grpc-timeout", text)]);
        for (text, expected) in [
            ("2H", Deadline::MAX_TIMEOUT),
            ("99999999H", Deadline::MAX_TIMEOUT),
            ("3M", Duration::from_secs(180)),
            ("3S", Duration::from_secs(3)),
            ("100m", Duration::from_millis(100)),
            ("7u", Duration::from_micros(7)),
            ("00000001n", Duration::from_nanos(1)),
        ] {
            assert_eq!(grpc_timeout(text), Ok(Some(expected)), "{text}");
        }
        for refused in ["", "S", "1", "1s", "0S", "-1S", "1.5S", "123456789n", "1 S", "1SS"] {
            assert_eq!(grpc_timeout(refused), Err(400), "{refused}");
        }
        for (own, grpc) in [("50", "1S"), ("1000", "50m")] {
            let smaller = timeout(&[("x-request-timeout-ms", own), ("grpc-timeout", grpc)]);
            assert_eq!(smaller, Ok(Some(Duration::from_millis(50))), "{own} {grpc}");
        }
    }

    #[test]
    fn known_headers_are_read_and_others_are_skipped() {
        let headers = headers(&[
            ("host", "here"),
            ("content-type", "application/json"),
            ("accept", "*/*"),
            ("x-request-priority", "low"),
        ]);
        let head = RequestHead::read(&headers).unwrap();
        assert_eq!(head.content_type.unwrap(), "application/json");
        assert_eq!(*head.accept.unwrap(), "*/*");
        assert_eq!((head.priority, head.timeout), (Some(Priority::Low), None));
    }

    #[test]
    fn refuses_unknown_codings_and_priorities() {
        let status = |lines| RequestHead::read(&headers(lines)).map(|_| ()).unwrap_err().status().as_u16();
        assert_eq!(status(&[("content-encoding", "br")]), 415);
        assert_eq!(status(&[("x-request-priority", "urgent")]), 400);
        assert!(RequestHead::read(&headers(&[("content-encoding", "IDENTITY")])).is_ok());
    }

    #[test]
    fn a_session_is_a_short_text_and_has_the_key_of_that_text() {
        let session = |text: &[u8]| {
            let value = HeaderValue::from_bytes(text).unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_static("x-callboard-session"), value)]);
            RequestHead::read(&headers).map(|head| head.session).map_err(|error| error.status().as_u16())
        };
        for text in ["a", "conversation 17", "zo\u{eb}", &"x".repeat(128)] {
            assert_eq!(session(text.as_bytes()), Ok(Some(SessionKey::new(text))), "{text}");
        }
        for refused in [&b""[..], &[b'x'; 129], b"\xff"] {
            assert_eq!(session(refused), Err(400), "{refused:?}");
        }
        assert_eq!(RequestHead::read(&HeaderMap::new()).unwrap().session, None);
    }

    #[test]
    fn a_repeated_single_valued_header_is_refused() {
        for (name, first, second) in [
            ("x-request-timeout-ms", "5000", "1"),
            ("grpc-timeout", "10S", "10S"),
            ("x-request-priority", "high", "low"),
            ("x-callboard-session", "a", "a"),
            ("content-type", "application/json", "application/msgpack"),
        ] {
            let name = HeaderName::from_static(name);
            let mut headers = HeaderMap::new();
            headers.append(name.clone(), first.parse().unwrap());
            headers.append(name, second.parse().unwrap());
            assert_eq!(RequestHead::read(&headers).unwrap_err().status().as_u16(), 400);
        }
    }

    #[test]
    fn lines_of_accept_are_one_list() {
        let mut headers = HeaderMap::new();
        for line in ["text/html", "application/json;q=0.5", "text/plain"] {
            headers.append("accept", line.parse().unwrap());
        }
        let head = RequestHead::read(&headers).unwrap();
        assert_eq!(*head.accept.unwrap(), "text/html, application/json;q=0.5, text/plain");
    }
}
