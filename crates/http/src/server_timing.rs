//! The `Server-Timing` header (W3C): where a call's time went, in milliseconds with microseconds behind the point.

use std::time::Duration;

use axum::http::header::HeaderValue;
use bytes::{BufMut, BytesMut};
use callboard_core::Timing;

/// `queue;dur=0.012, batch;dur=0.004, compute;dur=1.730`.
pub(crate) fn server_timing(timing: &Timing) -> HeaderValue {
    let mut text = BytesMut::with_capacity(64);
    put_metric(&mut text, "queue;dur=", timing.queue);
    put_metric(&mut text, ", batch;dur=", timing.batch);
    put_metric(&mut text, ", compute;dur=", timing.compute);
    HeaderValue::from_maybe_shared(text.freeze()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// By hand: this is on every reply, and `format!` of a float costs more than the three numbers take to measure.
fn put_metric(text: &mut BytesMut, label: &str, duration: Duration) {
    text.put_slice(label.as_bytes());
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    put_decimal(text, micros / 1000, 1);
    text.put_u8(b'.');
    put_decimal(text, micros % 1000, 3);
}

fn put_decimal(text: &mut BytesMut, mut number: u64, least_digits: usize) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    while number > 0 || digits.len() - start < least_digits {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text.put_slice(&digits[start..]);
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
    }
}
