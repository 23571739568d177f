//! What is known of one request, and its line: `2026-01-31T12:00:00.123456Z callboard_http::access: method="POST" path="/digits" …`,
//! in the form of `tracing`'s own formatter, which takes several times as long.

use std::cell::Cell;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the access log tells of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AccessRecord<'a> {
    /// As the client sent it, at most 200 characters of it.
    pub method: &'a str,
    /// Without its query, at most 200 characters of it. Anything may be in it: escape it.
    pub path: &'a str,
    /// The name of the route that it led to.
    pub route: Option<&'a str>,
    /// 499 where the client left before the answer.
    pub status: u16,
    /// From the head of the request to that of the answer.
    pub elapsed: Duration,
    /// The answer's `server-timing`.
    pub timing: Option<&'a str>,
    /// The length of the body, where it was announced.
    pub request_bytes: Option<u64>,
    /// The length of the answer's body, where it is known before it is sent.
    pub bytes: Option<u64>,
    /// Who is at the other end of the socket: the client, or the last proxy before us.
    pub client: Option<IpAddr>,
    /// The name of the key that it came with.
    pub key: Option<&'a str>,
    /// The `x-request-id` of the answer: visible ASCII.
    pub request_id: &'a str,
    /// Where it has a trace: the client's, or the one that it is sampled into.
    pub trace_id: Option<&'a str>,
}

/// Enough for all lines but those with paths of the longest kind.
const USUAL_BYTES: usize = 512;

impl AccessRecord<'_> {
    /// Appends its line, with the date and the end. Characters that would end it or hide a part of it are escaped.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        line.reserve(USUAL_BYTES);
        push_date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), line);
        // A method is a token of HTTP: it has neither quotes nor control characters.
        line.extend_from_slice(b" callboard_http::access: method=\"");
        line.extend_from_slice(self.method.as_bytes());
        line.extend_from_slice(b"\" path=");
        push_text(self.path, line);
        if let Some(route) = self.route {
            line.extend_from_slice(b" route=");
            push_text(route, line);
        }
        line.extend_from_slice(b" status=");
        line.extend_from_slice(&digits::<3>(self.status.into()));
        line.extend_from_slice(b" milliseconds=");
        let micros = self.elapsed.subsec_micros();
        push_decimal(self.elapsed.as_secs().saturating_mul(1000).saturating_add(u64::from(micros / 1000)), line);
        line.push(b'.');
        line.extend_from_slice(&digits::<3>((micros % 1000).into()));
        if let Some(timing) = self.timing {
            line.extend_from_slice(b" timing=");
            push_text(timing, line);
        }
        if let Some(bytes) = self.request_bytes {
            line.extend_from_slice(b" request_bytes=");
            push_decimal(bytes, line);
        }
        if let Some(bytes) = self.bytes {
            line.extend_from_slice(b" bytes=");
            push_decimal(bytes, line);
        }
        if let Some(client) = self.client {
            line.extend_from_slice(b" client=");
            push_address(client, line);
        }
        if let Some(key) = self.key {
            line.extend_from_slice(b" key=");
            push_text(key, line);
        }
        line.extend_from_slice(b" request_id=");
        push_text(self.request_id, line);
        if let Some(trace_id) = self.trace_id {
            line.extend_from_slice(b" trace_id=");
            push_text(trace_id, line);
        }
        line.push(b'\n');
    }

    /// The same as an event of `tracing`.
    pub(super) fn tell(&self) {
        tracing::info!(
            target: "callboard_http::access",
            method = self.method,
            path = self.path,
            route = self.route,
            status = self.status,
            milliseconds = self.elapsed.as_micros() as f64 / 1000.0,
            timing = self.timing,
            request_bytes = self.request_bytes,
            bytes = self.bytes,
            client = self.client.as_ref().map(tracing::field::display),
            key = self.key,
            request_id = self.request_id,
            trace_id = self.trace_id,
        );
    }
}

/// In quotes, and escaped where that is needed.
fn push_text(text: &str, to: &mut Vec<u8>) {
    if is_plain(text.as_bytes()) {
        push_plain(text, to);
    } else {
        // Writing into memory does not fail, here and below.
        let _ = write!(to, "{text:?}");
    }
}

fn push_plain(text: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    to.extend_from_slice(text.as_bytes());
    to.push(b'"');
}

/// Whether all of it is visible ASCII or blanks, without quotes and backslashes.
fn is_plain(text: &[u8]) -> bool {
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let odd = match text.last_chunk() {
        // The last eight bytes may overlap with the words before them.
        Some(last) => text.as_chunks().0.iter().fold(oddities(word(last)), |odd, bytes| odd | oddities(word(bytes))),
        None => {
            let mut padded = [b' '; 8];
            for (to, byte) in padded.iter_mut().zip(text) {
                *to = *byte;
            }
            oddities(word(&padded))
        }
    };
    odd == 0
}

/// Not 0 where one of eight bytes is not plain: the tests for a byte below a number and for a zero byte of
/// <https://graphics.stanford.edu/~seander/bithacks.html>, which are exact as to whether there is one.
fn oddities(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES * 0x80;
    let below = |word: u64, least: u8| word.wrapping_sub(ONES * u64::from(least)) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (word | below(word, b' ') | is(b'"') | is(b'\\') | is(0x7f)) & HIGH
}

fn push_address(address: IpAddr, to: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            push_decimal(first.into(), to);
            for octet in rest {
                to.push(b'.');
                push_decimal(octet.into(), to);
            }
        }
        IpAddr::V6(address) => {
            let _ = write!(to, "{address}");
        }
    }
}

/// Short ones, which most are, without a loop.
fn push_decimal(number: u64, to: &mut Vec<u8>) {
    match number {
        0..10 => to.push(b'0' + number as u8),
        10..100 => to.extend_from_slice(&digits::<2>(number)),
        100..1000 => to.extend_from_slice(&digits::<3>(number)),
        _ => {
            let all = digits::<20>(number);
            let start = all.iter().position(|digit| *digit != b'0').unwrap_or_default();
            to.extend_from_slice(&all[start..]);
        }
    }
}

/// The last digits, with zeros before. Their number is known, so that there is no loop.
fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// `2026-01-31T12:00:00.`
type Second = [u8; 20];

thread_local! {
    /// The last second that was written on this thread: most lines are of the same one.
    static SECOND: Cell<(u64, Second)> = const { Cell::new((u64::MAX, [0; 20])) };
}

/// A date of RFC 3339 in UTC with microseconds.
fn push_date(since_1970: Duration, to: &mut Vec<u8>) {
    let second = since_1970.as_secs();
    let (mut of, mut text) = SECOND.get();
    if of != second {
        (of, text) = (second, second_of(second));
        SECOND.set((of, text));
    }
    to.extend_from_slice(&text);
    to.extend_from_slice(&digits::<6>(since_1970.subsec_micros().into()));
    to.push(b'Z');
}

fn second_of(since_1970: u64) -> Second {
    let (days, second) = (since_1970 / 86_400, since_1970 % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"0000-00-00T00:00:00.";
    text[..4].copy_from_slice(&digits::<4>(year));
    for (at, number) in [(5, month), (8, day), (11, second / 3600), (14, second / 60 % 60), (17, second % 60)] {
        text[at..at + 2].copy_from_slice(&digits::<2>(number));
    }
    text
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

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn date(seconds: u64, micros: u32) -> String {
        let mut line = Vec::new();
        push_date(Duration::new(seconds, micros * 1000), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(date(951_782_399, 1), "2000-02-28T23:59:59.000001Z");
        assert_eq!(date(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(date(951_782_400, 999_999), "2000-02-29T00:00:00.999999Z");
        assert_eq!(date(1_709_251_199, 999_999), "2024-02-29T23:59:59.999999Z");
        assert_eq!(date(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }

    const RECORD: AccessRecord<'static> = AccessRecord {
        method: "POST",
        path: "/digits",
        route: Some("/digits"),
        status: 200,
        elapsed: Duration::from_micros(1_234),
        timing: Some("queue;dur=0.012"),
        request_bytes: Some(0),
        bytes: Some(u64::MAX),
        client: Some(IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 10, 255))),
        key: Some("web"),
        request_id: "mine-1",
        trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736"),
    };

    fn line(record: &AccessRecord<'_>) -> String {
        let mut line = Vec::new();
        record.write_line(&mut line);
        String::from_utf8(line).unwrap()
    }

    /// The same records as events, by `tracing`'s own formatter, which knows no fixed number of digits.
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
        let nothing = AccessRecord {
            route: None,
            timing: None,
            request_bytes: None,
            bytes: None,
            client: None,
            key: None,
            trace_id: None,
            ..RECORD
        };
        let records = [
            RECORD,
            AccessRecord { elapsed: Duration::from_micros(3_600_000_001), status: 499, ..nothing },
            AccessRecord { path: "/ü\"\\\n\t\u{7f}", request_id: "a\"b\\c", ..RECORD },
            AccessRecord { client: Some("2001:db8::1".parse().unwrap()), route: Some("/größe"), ..RECORD },
        ];
        let theirs = Theirs::default();
        let to = theirs.clone();
        let formatter = tracing_subscriber::fmt::layer().with_ansi(false).with_level(false);
        let formatter = formatter.with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(formatter), || {
            records.iter().for_each(AccessRecord::tell);
        });
        let theirs = String::from_utf8(theirs.0.lock().unwrap().clone()).unwrap();
        assert_eq!(theirs.lines().count(), records.len());
        for (record, theirs) in records.iter().zip(theirs.lines()) {
            let ours = line(record);
            assert_eq!(ours.find('Z'), theirs.find('Z'), "dates of one length");
            let behind_date = |line: &str| line.trim_end().split_once("Z ").expect("a date").1.to_owned();
            assert_eq!(behind_date(&ours), behind_date(theirs));
        }
    }

    #[test]
    fn every_byte_that_needs_an_escape_is_found_wherever_it_is() {
        for byte in 0..=u8::MAX {
            let is_meant = matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
            for length in 1..20 {
                for at in 0..length {
                    // Neighbours from which a test of whole words could borrow.
                    for around in [b' ', b'~', b'!'] {
                        let mut text = vec![around; length];
                        text[at] = byte;
                        assert_eq!(is_plain(&text), is_meant, "{text:?}");
                    }
                }
            }
        }
        assert!(is_plain(b""));
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 99, 100, 101, 999, 1000, 12_345, 10_000_000_000_000_000_000, u64::MAX] {
            let mut text = Vec::new();
            push_decimal(number, &mut text);
            assert_eq!(text, number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_record_is_one_line_whatever_is_in_it() {
        let hostile: String = (0..0x100).filter_map(char::from_u32).chain(['\u{2028}', '\u{202e}', '\u{85}']).collect();
        let line = line(&AccessRecord { path: &hostile, route: Some(&hostile), key: Some(&hostile), ..RECORD });
        let (text, end) = line.split_at(line.len() - 1);
        assert!(
            end == "\n" && !text.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}')),
            "{line:?}"
        );
    }
}
