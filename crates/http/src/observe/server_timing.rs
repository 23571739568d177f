//! The `Server-Timing` header (W3C): the times of a call in milliseconds, with three decimal digits.

use std::time::Duration;

use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::Timing;
use callboard_telemetry::StackText;

use crate::request_id::header_value;

/// The header with the times.
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Room for all labels and four numbers of any length.
type TimingText = StackText<160>;

/// `queue;dur=0.012, batch;dur=0.004, compute;dur=1.730`.
#[must_use]
pub fn server_timing(timing: &Timing) -> HeaderValue {
    let mut text = TimingText::default();
    push_stages(&mut text, timing);
    header_value(&text)
}

/// `queue;dur=…, batch;dur=…, compute;dur=…, total;dur=30.125` of an error: the total since the head of the request,
/// and the other times if there was a call.
pub(crate) fn error_timing(timing: Option<&Timing>, total: Duration) -> HeaderValue {
    let mut text = TimingText::default();
    if let Some(timing) = timing {
        push_stages(&mut text, timing);
        text.push(b", ");
    }
    push_metric(&mut text, b"total;dur=", total);
    header_value(&text)
}

/// `total;dur=30.125`: the time since the head of the request.
#[must_use]
pub fn total(duration: Duration) -> HeaderValue {
    let mut text = TimingText::default();
    push_metric(&mut text, b"total;dur=", duration);
    header_value(&text)
}

/// `first;dur=30.125` of a stream: the time until its first item.
#[must_use]
pub fn first(duration: Duration) -> HeaderValue {
    let mut text = TimingText::default();
    push_metric(&mut text, b"first;dur=", duration);
    header_value(&text)
}

fn push_stages(text: &mut TimingText, timing: &Timing) {
    push_metric(text, b"queue;dur=", timing.queue);
    push_metric(text, b", batch;dur=", timing.batch);
    push_metric(text, b", compute;dur=", timing.compute);
}

fn push_metric<const N: usize>(text: &mut TimingText, label: &[u8; N], duration: Duration) {
    text.push(label);
    text.push_decimal(duration.as_secs().saturating_mul(1000) + u64::from(duration.subsec_millis()), 1);
    let micros = duration.subsec_micros() % 1000;
    let digit = |number: u32| b'0' + (number % 10) as u8;
    text.push(&[b'.', digit(micros / 100), digit(micros / 10), digit(micros)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_milliseconds_with_three_decimals() {
        let timing = |queue, batch, compute| {
            let micros = Duration::from_micros;
            Timing { queue: micros(queue), batch: micros(batch), compute: micros(compute) }
        };
        assert_eq!(server_timing(&timing(12, 0, 1_730)), "queue;dur=0.012, batch;dur=0.000, compute;dur=1.730");
        assert_eq!(
            server_timing(&timing(3_600_000_000, 1_000, 999)),
            "queue;dur=3600000.000, batch;dur=1.000, compute;dur=0.999"
        );
        assert_eq!(
            error_timing(Some(&timing(12, 0, 1_730)), Duration::from_millis(30)),
            "queue;dur=0.012, batch;dur=0.000, compute;dur=1.730, total;dur=30.000"
        );
        assert_eq!(error_timing(None, Duration::from_millis(30)), "total;dur=30.000");
    }
}
