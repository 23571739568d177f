//! What a request's headers ask for, read in one pass.
//!
//! Headers that are not ours are skipped. One of ours that cannot be read is an error that names it: a deadline that was
//! asked for and silently not kept would be worse than none.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::HeaderValue;
use callboard_core::{MAX_TIMEOUT, Priority};

use crate::error::ApiError;

/// How long the client is willing to wait, in milliseconds.
pub(crate) const X_REQUEST_TIMEOUT_MS: &str = "x-request-timeout-ms";

/// Which class of the queues the request waits in.
pub(crate) const X_REQUEST_PRIORITY: &str = "x-request-priority";

/// The headers that decide how a call is made and answered.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Head<'a> {
    pub(crate) content_type: Option<&'a HeaderValue>,
    pub(crate) accept: Option<&'a HeaderValue>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Option<Priority>,
}

impl<'a> Head<'a> {
    /// Of a header that comes twice, the first counts.
    pub(crate) fn read(headers: &'a HeaderMap) -> Result<Self, ApiError> {
        let mut head = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "content-type" => _ = head.content_type.get_or_insert(value),
                "accept" => _ = head.accept.get_or_insert(value),
                "content-encoding" => check_encoding(value)?,
                X_REQUEST_TIMEOUT_MS => head.timeout = Some(parse_timeout(value)?),
                X_REQUEST_PRIORITY => head.priority = Some(parse_priority(value)?),
                _ => {}
            }
        }
        Ok(head)
    }
}

/// Whole milliseconds. More than an hour is asked for in good faith and gets an hour; zero or words are a mistake.
fn parse_timeout(value: &HeaderValue) -> Result<Duration, ApiError> {
    let refused = || ApiError::bad_header(X_REQUEST_TIMEOUT_MS, "a whole number of milliseconds from 1 to 3600000");
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refused());
    }
    let milliseconds =
        digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    match milliseconds {
        0 => Err(refused()),
        _ => Ok(Duration::from_millis(milliseconds).min(MAX_TIMEOUT)),
    }
}

fn parse_priority(value: &HeaderValue) -> Result<Priority, ApiError> {
    match value.as_bytes() {
        b"high" => Ok(Priority::High),
        b"normal" => Ok(Priority::Normal),
        b"low" => Ok(Priority::Low),
        _ => Err(ApiError::bad_header(X_REQUEST_PRIORITY, "`high`, `normal` or `low`")),
    }
}

fn check_encoding(value: &HeaderValue) -> Result<(), ApiError> {
    match value.as_bytes() {
        b"" | b"identity" => Ok(()),
        _ => Err(ApiError::unsupported_encoding()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::HeaderName;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn timeout(text: &str) -> Result<Option<Duration>, u16> {
        let headers = headers(&[("x-request-timeout-ms", text)]);
        Head::read(&headers).map(|head| head.timeout).map_err(|error| error.status().as_u16())
    }

    #[test]
    fn a_timeout_is_whole_milliseconds_and_at_most_an_hour() {
        assert_eq!(timeout("1"), Ok(Some(Duration::from_millis(1))));
        assert_eq!(timeout("2500"), Ok(Some(Duration::from_millis(2500))));
        assert_eq!(timeout("3600001"), Ok(Some(MAX_TIMEOUT)));
        assert_eq!(timeout("99999999999999999999999999"), Ok(Some(MAX_TIMEOUT)));
        for refused in ["", "0", "000", "-1", "1.5", "1s", "ten", "+5"] {
            assert_eq!(timeout(refused), Err(400), "{refused}");
        }
    }

    #[test]
    fn reads_what_is_ours_and_skips_the_rest() {
        let headers = headers(&[
            ("host", "here"),
            ("content-type", "application/json"),
            ("accept", "*/*"),
            ("x-request-priority", "low"),
        ]);
        let head = Head::read(&headers).unwrap();
        assert_eq!(head.content_type.unwrap(), "application/json");
        assert_eq!(head.accept.unwrap(), "*/*");
        assert_eq!((head.priority, head.timeout), (Some(Priority::Low), None));
    }

    #[test]
    fn refuses_compressed_bodies_and_unknown_priorities() {
        let status = |lines| Head::read(&headers(lines)).map(|_| ()).unwrap_err().status().as_u16();
        assert_eq!(status(&[("content-encoding", "gzip")]), 415);
        assert_eq!(status(&[("x-request-priority", "urgent")]), 400);
    }
}
