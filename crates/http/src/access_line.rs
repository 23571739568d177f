//! An event of the access log as the one line that people and log collectors read, in the form of `tracing`'s own formatter:
//! `2026-01-31T12:00:00.123456Z callboard_http::access: method="POST" path="/digits" status=200 …`
//!
//! That formatter takes several times what the rest of a line costs, and every request pays for its line.

use std::fmt::Debug;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::Event;
use tracing::field::{Field, Visit};

use crate::ascii::Ascii;

/// Appends the line of an event to `line`, with its end; for events of the target `callboard_http::access`.
///
/// ```
/// use std::sync::Mutex;
/// use tracing_subscriber::Layer;
/// use tracing_subscriber::layer::Context;
///
/// /// Gathers the lines.
/// struct Lines(Mutex<Vec<u8>>);
///
/// impl<S: tracing::Subscriber> Layer<S> for Lines {
///     fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
///         if event.metadata().target() == "callboard_http::access" {
///             callboard_http::write_access_line(event, &mut self.0.lock().unwrap());
///         }
///     }
/// }
/// ```
pub fn write_access_line(event: &Event<'_>, line: &mut Vec<u8>) {
    write_date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), line);
    line.push(b' ');
    line.extend_from_slice(event.metadata().target().as_bytes());
    line.push(b':');
    event.record(&mut Fields(line));
    line.push(b'\n');
}

/// Appends ` name=value` for each field that is there.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn name(&mut self, field: &Field) {
        self.0.push(b' ');
        self.0.extend_from_slice(field.name().as_bytes());
        self.0.push(b'=');
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, text: &str) {
        self.name(field);
        // All of it without a way out between, so that many bytes are looked at at once.
        let is_plain = text
            .bytes()
            .fold(true, |plain, byte| plain & (b' '..=b'~').contains(&byte) & (byte != b'"') & (byte != b'\\'));
        if is_plain {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else {
            // Writing into memory does not fail, here and below.
            let _ = write!(self.0, "{text:?}");
        }
    }

    fn record_u64(&mut self, field: &Field, number: u64) {
        self.name(field);
        write_decimal(number, 1, self.0);
    }

    /// Milliseconds: three digits behind the point are microseconds.
    fn record_f64(&mut self, field: &Field, number: f64) {
        self.name(field);
        let thousandths = (number * 1000.0).round() as u64;
        write_decimal(thousandths / 1000, 1, self.0);
        self.0.push(b'.');
        write_decimal(thousandths % 1000, 3, self.0);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.name(field);
        let _ = write!(self.0, "{value:?}");
    }
}

fn write_decimal(number: u64, least_digits: usize, to: &mut Vec<u8>) {
    let mut digits = Ascii::<20>::new();
    digits.push_decimal(number, least_digits);
    to.extend_from_slice(digits.as_bytes());
}

/// A date of RFC 3339 in UTC with microseconds.
fn write_date(since_1970: Duration, to: &mut Vec<u8>) {
    let (days, second) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let micros = u64::from(since_1970.subsec_micros());
    let parts = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (second / 3600, 2, b':'),
        (second / 60 % 60, 2, b':'),
        (second % 60, 2, b'.'),
        (micros, 6, b'Z'),
    ];
    let mut date = Ascii::<40>::new();
    for (number, digits, behind) in parts {
        date.push_decimal(number, digits);
        date.push(&[behind]);
    }
    to.extend_from_slice(date.as_bytes());
}

/// Year, month and day of a day since 1970: `civil_from_days` of <https://howardhinnant.github.io/date_algorithms.html>.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

    use super::*;

    fn date(seconds: u64, micros: u32) -> String {
        let mut line = Vec::new();
        write_date(Duration::new(seconds, micros * 1000), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(date(951_782_399, 1), "2000-02-28T23:59:59.000001Z");
        assert_eq!(date(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(date(1_709_251_199, 999_999), "2024-02-29T23:59:59.999999Z");
        assert_eq!(date(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            write_access_line(event, &mut self.0.lock().unwrap());
        }
    }

    /// The same events by `tracing`'s own formatter, which knows no fixed number of digits.
    #[test]
    fn a_line_is_what_tracings_own_formatter_writes() {
        #[derive(Clone, Default)]
        struct Theirs(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Theirs {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (ours, theirs) = (Lines::default(), Theirs::default());
        let to = theirs.clone();
        let formatter = tracing_subscriber::fmt::layer().with_ansi(false).with_level(false);
        let formatter = formatter.with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(ours.clone()).with(formatter), || {
            let (none, address) = (None::<&str>, std::net::IpAddr::from([127, 0, 0, 1]));
            tracing::info!(target: "x", path = "/a b", status = 200u16, milliseconds = 1.234, none, bytes = Some(7u64));
            tracing::info!(target: "x", path = "/ü\"\\\n\u{7f}", client = tracing::field::display(address), zero = 0u64);
        });
        let text = |bytes: &Arc<Mutex<Vec<u8>>>| String::from_utf8(bytes.lock().unwrap().clone()).unwrap();
        let behind_dates = |text: String| -> Vec<String> {
            text.lines().map(|line| line.split_once("Z ").expect("a date").1.to_owned()).collect()
        };
        let (ours, theirs) = (text(&ours.0), text(&theirs.0));
        assert_eq!(
            ours.lines().next().unwrap().find('Z'),
            theirs.lines().next().unwrap().find('Z'),
            "dates of one length"
        );
        assert_eq!(behind_dates(ours), behind_dates(theirs));
    }
}
