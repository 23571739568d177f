//! The record of one request, and its line: `2026-01-31T12:00:00.123456Z callboard_http::access: method="POST"
//! path="/digits" …`. `tracing`'s own formatter writes the same line in several times the time.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::time::Duration;

use super::date::push_now;
use crate::active_text::is_active;

/// One request, as the access log has it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AccessRecord<'a> {
    /// At most 200 characters of the method that the client sent.
    pub method: &'a str,
    /// At most 200 characters of the path, without its query. It may contain any character: escape it.
    pub path: &'a str,
    /// The name of the route.
    pub route: Option<&'a str>,
    /// The short name of the protocol by which the route was called, such as `grpc`; none for its own path.
    pub door: Option<&'a str>,
    /// The status of the response; 499 if the client left before it.
    pub status: u16,
    /// The status of a call of gRPC that failed, with which `status` is 200.
    pub grpc_status: Option<u8>,
    /// The time from the head of the request to the head of the response; of a stream to its end.
    pub elapsed: Duration,
    /// The `server-timing` of the response.
    pub timing: Option<&'a str>,
    /// The length of the request body, if it was announced.
    pub request_bytes: Option<u64>,
    /// The length of the response body, if it is known before it is sent; of a stream the bytes until its end.
    pub bytes: Option<u64>,
    /// The items of a streamed response.
    pub items: Option<u64>,
    /// The address of the peer of the socket: the client or the last proxy.
    pub client: Option<IpAddr>,
    /// The name of the API key.
    pub key: Option<&'a str>,
    /// The `x-request-id` of the response: visible ASCII. Empty for a call over another edge whose caller sent none.
    pub request_id: &'a str,
    /// The id of the client's trace, or of the trace that sampling began for the request.
    pub trace_id: Option<&'a str>,
}

/// Enough for lines without a very long path.
const USUAL_BYTES: usize = 512;

impl<'a> AccessRecord<'a> {
    /// A record with the fields that every request has. The other fields are `None`.
    #[must_use]
    pub fn new(method: &'a str, path: &'a str, status: u16, elapsed: Duration, request_id: &'a str) -> Self {
        Self {
            method,
            path,
            route: None,
            door: None,
            status,
            grpc_status: None,
            elapsed,
            timing: None,
            request_bytes: None,
            bytes: None,
            items: None,
            client: None,
            key: None,
            request_id,
            trace_id: None,
        }
    }

    /// Appends a line with the date and a line end. Characters that would end the line or hide a part of it are
    /// escaped.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        line.reserve(USUAL_BYTES);
        push_now(line);
        line.extend_from_slice(b" callboard_http::access:");
        self.write_fields(&KeyValueFields, line);
        line.push(b'\n');
    }

    /// Appends one JSON object and a line end. Besides its fields it has `timestamp`, `level`, `target` and `message`,
    /// as the JSON lines of `tracing-subscriber` have.
    pub fn write_json(&self, line: &mut Vec<u8>) {
        line.reserve(USUAL_BYTES);
        line.extend_from_slice(b"{\"timestamp\":\"");
        push_now(line);
        line.extend_from_slice(b"\",\"level\":\"INFO\",\"target\":\"callboard_http::access\",\"message\":");
        push_json(&format_args!("{} {} {}", self.method, self.path, self.status), line);
        self.write_fields(&JsonFields, line);
        line.extend_from_slice(b"}\n");
    }

    fn write_fields(&self, form: &impl FieldFormat, line: &mut Vec<u8>) {
        form.text("method", self.method, line);
        form.text("path", self.path, line);
        if let Some(route) = self.route {
            form.text("route", route, line);
        }
        if let Some(door) = self.door {
            form.text("door", door, line);
        }
        form.name("status", line);
        line.extend_from_slice(&digits::<3>(self.status.into()));
        if let Some(status) = self.grpc_status {
            form.name("grpc_status", line);
            push_decimal(status.into(), line);
        }
        form.name("milliseconds", line);
        let micros = self.elapsed.subsec_micros();
        push_decimal(self.elapsed.as_secs().saturating_mul(1000).saturating_add(u64::from(micros / 1000)), line);
        line.push(b'.');
        line.extend_from_slice(&digits::<3>((micros % 1000).into()));
        if let Some(timing) = self.timing {
            form.text("timing", timing, line);
        }
        for (name, number) in [("request_bytes", self.request_bytes), ("bytes", self.bytes), ("items", self.items)] {
            if let Some(number) = number {
                form.name(name, line);
                push_decimal(number, line);
            }
        }
        if let Some(client) = self.client {
            form.name("client", line);
            form.address(client, line);
        }
        if let Some(key) = self.key {
            form.text("key", key, line);
        }
        if !self.request_id.is_empty() {
            form.text("request_id", self.request_id, line);
        }
        if let Some(trace_id) = self.trace_id {
            form.text("trace_id", trace_id, line);
        }
    }

    /// Emits the record as an event of `tracing`.
    pub(super) fn emit_event(&self) {
        tracing::info!(
            target: "callboard_http::access",
            method = self.method,
            path = self.path,
            route = self.route,
            door = self.door,
            status = self.status,
            grpc_status = self.grpc_status,
            milliseconds = self.elapsed.as_micros() as f64 / 1000.0,
            timing = self.timing,
            request_bytes = self.request_bytes,
            bytes = self.bytes,
            items = self.items,
            client = self.client.as_ref().map(tracing::field::display),
            key = self.key,
            request_id = Some(self.request_id).filter(|id| !id.is_empty()),
            trace_id = self.trace_id,
        );
    }
}

/// How a field is appended. Numbers are the same in all formats.
trait FieldFormat {
    /// Writes the part before the value.
    fn name(&self, name: &str, to: &mut Vec<u8>);

    /// Writes the whole field, with its value escaped.
    fn text(&self, name: &str, value: &str, to: &mut Vec<u8>);

    /// Writes an address.
    fn address(&self, address: IpAddr, to: &mut Vec<u8>);
}

/// ` name=value`, as in the lines of `tracing`.
struct KeyValueFields;

/// `,"name":value`.
struct JsonFields;

impl FieldFormat for KeyValueFields {
    fn name(&self, name: &str, to: &mut Vec<u8>) {
        to.push(b' ');
        to.extend_from_slice(name.as_bytes());
        to.push(b'=');
    }

    fn text(&self, name: &str, value: &str, to: &mut Vec<u8>) {
        self.name(name, to);
        if is_plain(value.as_bytes()) {
            push_plain(value, to);
        } else {
            // Writing into memory does not fail, here and below.
            let _ = write!(to, "{value:?}");
        }
    }

    fn address(&self, address: IpAddr, to: &mut Vec<u8>) {
        push_address(address, to);
    }
}

impl FieldFormat for JsonFields {
    fn name(&self, name: &str, to: &mut Vec<u8>) {
        to.extend_from_slice(b",\"");
        to.extend_from_slice(name.as_bytes());
        to.extend_from_slice(b"\":");
    }

    fn text(&self, name: &str, value: &str, to: &mut Vec<u8>) {
        self.name(name, to);
        if is_plain(value.as_bytes()) { push_plain(value, to) } else { push_json(value, to) }
    }

    fn address(&self, address: IpAddr, to: &mut Vec<u8>) {
        to.push(b'"');
        push_address(address, to);
        to.push(b'"');
    }
}

fn push_json(text: &(impl serde::Serialize + ?Sized), to: &mut Vec<u8>) {
    let _ = text.serialize(&mut serde_json::Serializer::with_formatter(to, EscapeControls));
}

/// JSON without characters that move a terminal's cursor or end a line by Unicode's rules.
struct EscapeControls;

impl serde_json::ser::Formatter for EscapeControls {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        for part in fragment.split_inclusive(is_active) {
            match part.chars().next_back().filter(|last| is_active(*last)) {
                Some(last) => {
                    to.write_all(&part.as_bytes()[..part.len() - last.len_utf8()])?;
                    write!(to, "\\u{:04x}", u32::from(last))?;
                }
                None => to.write_all(part.as_bytes())?,
            }
        }
        Ok(())
    }
}

fn push_plain(text: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    to.extend_from_slice(text.as_bytes());
    to.push(b'"');
}

/// Whether the text is visible ASCII and spaces, without quotes and backslashes.
fn is_plain(text: &[u8]) -> bool {
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let odd = match text.last_chunk() {
        // The last eight bytes may overlap the words before them.
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

/// Not 0 if one of eight bytes is not plain. The tests for a small byte and for a zero byte are from
/// <https://graphics.stanford.edu/~seander/bithacks.html>; they tell exactly whether there is one.
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

/// Most numbers are short and need no loop.
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

/// The last `N` digits, padded with zeros. `N` is known, so the compiler unrolls the loop.
pub(super) fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const RECORD: AccessRecord<'static> = AccessRecord {
        method: "POST",
        path: "/digits",
        route: Some("/digits"),
        door: None,
        status: 200,
        grpc_status: None,
        elapsed: Duration::from_micros(1_234),
        timing: Some("queue;dur=0.012"),
        request_bytes: Some(0),
        bytes: Some(u64::MAX),
        items: None,
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
    fn a_line_equals_the_output_of_tracings_own_formatter() {
        #[derive(Clone, Default)]
        struct TracingOutput(Arc<Mutex<Vec<u8>>>);
        impl io::Write for TracingOutput {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
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
            AccessRecord { bytes: None, items: Some(7), ..RECORD },
            AccessRecord { grpc_status: Some(14), door: Some("grpc"), ..RECORD },
            AccessRecord { path: "/ü\"\\\n\t\u{7f}", request_id: "a\"b\\c", ..RECORD },
            AccessRecord { client: Some("2001:db8::1".parse().unwrap()), route: Some("/größe"), ..RECORD },
        ];
        let theirs = TracingOutput::default();
        let to = theirs.clone();
        let formatter = tracing_subscriber::fmt::layer().with_ansi(false).with_level(false);
        let formatter = formatter.with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(formatter), || {
            records.iter().for_each(AccessRecord::emit_event);
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
    fn a_json_line_has_the_same_fields_and_the_common_ones() {
        let hostile = "/ü\"\\\n\t\u{7f}\u{0}\u{85}\u{9b}2J\u{2028}{\u{202e}";
        for (path, key) in [("/digits", Some("web")), (hostile, None)] {
            let mut line = Vec::new();
            AccessRecord { path, key, bytes: Some(12), grpc_status: Some(8), ..RECORD }.write_json(&mut line);
            let text = String::from_utf8(line).unwrap();
            assert_eq!(text.find('\n'), Some(text.len() - 1), "one line: {text}");
            assert!(!text.trim_end_matches('\n').contains(is_active), "{text:?}");
            let mut read: serde_json::Value = serde_json::from_str(&text).unwrap();
            let timestamp = read.as_object_mut().unwrap().remove("timestamp");
            assert!(timestamp.is_some_and(|date| date.as_str().is_some_and(|date| date.ends_with('Z'))), "{text}");
            let mut expected = serde_json::json!({
                "level": "INFO", "target": "callboard_http::access", "message": format!("POST {path} 200"),
                "method": "POST", "path": path, "route": "/digits", "status": 200, "grpc_status": 8,
                "milliseconds": 1.234, "timing": "queue;dur=0.012", "request_bytes": 0, "bytes": 12, "client": "127.0.10.255",
                "key": "web", "request_id": "mine-1", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            });
            if key.is_none() {
                expected.as_object_mut().unwrap().remove("key");
            }
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn every_byte_that_needs_an_escape_is_found_at_any_position() {
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
    fn a_record_is_one_line_for_any_content() {
        let hostile: String = (0..0x100).filter_map(char::from_u32).chain(['\u{2028}', '\u{202e}', '\u{85}']).collect();
        let line = line(&AccessRecord { path: &hostile, route: Some(&hostile), key: Some(&hostile), ..RECORD });
        let (text, end) = line.split_at(line.len() - 1);
        assert!(
            end == "\n" && !text.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}')),
            "{line:?}"
        );
    }
}
