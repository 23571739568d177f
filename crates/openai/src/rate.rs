//! What is left of the limit of a key, as headers that OpenAI's libraries read. There is no limit of tokens.

use std::fmt::Write as _;
use std::time::Duration;

use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::http::header::{HeaderName, HeaderValue};
use callboard_http::protocol::RateLeft;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");

pub(crate) fn add_rate(headers: &mut HeaderMap, left: Option<RateLeft>) {
    let Some(RateLeft { limit, remaining, reset }) = left else { return };
    headers.insert(LIMIT, HeaderValue::from(limit));
    headers.insert(REMAINING, HeaderValue::from(remaining));
    // Digits, letters and dots are always a value.
    headers.extend(HeaderValue::try_from(shown(reset)).ok().map(|reset| (RESET, reset)));
}

/// A time as the API writes it: `120ms`, `8.64s`, `6m0s`, `1h0m0s`. Rounded up to whole milliseconds.
fn shown(time: Duration) -> String {
    let millis = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let (seconds, rest) = (millis / 1000, millis % 1000);
    if seconds == 0 && rest > 0 {
        return format!("{rest}ms");
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = match (hours, minutes) {
        (0, 0) => Ok(()),
        (0, minutes) => write!(text, "{minutes}m"),
        (hours, minutes) => write!(text, "{hours}h{minutes}m"),
    };
    let fraction = format!(".{rest:03}");
    let _ = write!(text, "{}{}s", seconds % 60, fraction.trim_end_matches('0').trim_end_matches('.'));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_api_writes_it() {
        for (micros, text) in [
            (0, "0s"),
            (1, "1ms"),
            (120_000, "120ms"),
            (8_640_000, "8.64s"),
            (60_000_000, "1m0s"),
            (90_951_000, "1m30.951s"),
            (3_600_000_000, "1h0m0s"),
            (3_723_004_000, "1h2m3.004s"),
        ] {
            assert_eq!(shown(Duration::from_micros(micros)), text);
        }
    }
}
