//! What is left of the limit of a key, as headers that Anthropic's clients read. There is no limit of tokens.

use std::time::{Duration, SystemTime};

use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::http::header::{HeaderName, HeaderValue};
use callboard_http::protocol::RateLeft;
use callboard_telemetry::rfc_3339;

const LIMIT: HeaderName = HeaderName::from_static("anthropic-ratelimit-requests-limit");
const REMAINING: HeaderName = HeaderName::from_static("anthropic-ratelimit-requests-remaining");
const RESET: HeaderName = HeaderName::from_static("anthropic-ratelimit-requests-reset");

pub(super) fn add_rate(headers: &mut HeaderMap, left: Option<RateLeft>) {
    let Some(RateLeft { limit, remaining, reset }) = left else { return };
    headers.insert(LIMIT, HeaderValue::from(limit));
    headers.insert(REMAINING, HeaderValue::from(remaining));
    // A date is always a value.
    headers.extend(HeaderValue::try_from(date_of(SystemTime::now(), reset)).ok().map(|date| (RESET, date)));
}

/// The date after this time, rounded up to a whole second: no request is allowed before its date.
fn date_of(now: SystemTime, reset: Duration) -> String {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_add(reset);
    rfc_3339(since_1970.saturating_add(Duration::from_nanos(999_999_999)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_not_before_the_time_is_over() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_250);
        for (millis, date) in
            [(0, "2027-01-15T08:00:01Z"), (750, "2027-01-15T08:00:01Z"), (751, "2027-01-15T08:00:02Z")]
        {
            assert_eq!(date_of(now, Duration::from_millis(millis)), date);
        }
    }
}
