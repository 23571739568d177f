//! The `Server-Timing` header (W3C): where a call's time went, in milliseconds with microseconds behind the point.

use std::time::Duration;

use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::Timing;

use crate::ascii::Ascii;

/// Where an answer says what took its time.
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The labels and four numbers of any length.
type Text = Ascii<160>;

/// `queue;dur=0.012, batch;dur=0.004, compute;dur=1.730`.
pub(crate) fn server_timing(timing: &Timing) -> HeaderValue {
    let mut text = Text::new();
    push_stages(&mut text, timing);
    text.to_header()
}

/// `queue;dur=…, batch;dur=…, compute;dur=…, total;dur=30.125`: what an error can tell, the total from the head of its request on,
/// and the rest where there was a call.
pub(crate) fn error_timing(timing: Option<&Timing>, total: Duration) -> HeaderValue {
    let mut text = Text::new();
    if let Some(timing) = timing {
        push_stages(&mut text, timing);
        text.push(b", ");
    }
    push_metric(&mut text, b"total;dur=", total);
    text.to_header()
}

/// `total;dur=30.125`, from the head of the request on.
pub(crate) fn total(duration: Duration) -> HeaderValue {
    let mut text = Text::new();
    push_metric(&mut text, b"total;dur=", duration);
    text.to_header()
}

/// `first;dur=30.125`: what the head of a stream can tell, the time until its first item.
pub(crate) fn first(duration: Duration) -> HeaderValue {
    let mut text = Text::new();
    push_metric(&mut text, b"first;dur=", duration);
    text.to_header()
}

fn push_stages(text: &mut Text, timing: &Timing) {
    push_metric(text, b"queue;dur=", timing.queue);
    push_metric(text, b", batch;dur=", timing.batch);
    push_metric(text, b", compute;dur=", timing.compute);
}

fn push_metric(text: &mut Text, label: &[u8], duration: Duration) {
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
