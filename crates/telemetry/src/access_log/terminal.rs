//! A record for a terminal: `12:00:00.123Z 200 POST       1.23 ms    1.2 KiB  /digits`, in columns, with optional
//! colours.
//!
//! Fields that are the same in nearly every line are left out: the date, a client on this machine, the id of a request
//! that succeeded.

use std::io::Write as _;

use super::AccessRecord;
use super::date::push_now;

/// With the columns before it, a line has 97 characters.
const PATH_CHARS: usize = 48;

/// Codes of Select Graphic Rendition (ECMA-48).
const DIM: &str = "2";
const GREEN: &str = "32";
const CYAN: &str = "36";
const YELLOW: &str = "33";
const RED: &str = "1;31";

impl AccessRecord<'_> {
    /// Appends a short line for people with a line end: time of day (UTC), status, method, milliseconds, length of the
    /// response, path; then the status of a failed call of gRPC, a client of another machine, the name of the key, and
    /// the id of a request that failed. A path of more than 48 characters is cut; control characters are escaped.
    /// `is_coloured` adds colours.
    pub fn write_short(&self, is_coloured: bool, line: &mut Vec<u8>) {
        let mut date = Vec::with_capacity(32);
        push_now(&mut date);
        // From the hour to the milliseconds.
        let time = str::from_utf8(&date[11..23]).unwrap_or_default();
        let paint = |code: &str, text: &str, line: &mut Vec<u8>| {
            // Writing to memory does not fail, here and below.
            let _ = if is_coloured { write!(line, "\x1b[{code}m{text}\x1b[0m") } else { write!(line, "{text}") };
        };
        paint(DIM, &format!("{time}Z"), line);
        line.push(b' ');
        paint(colour_of(self.status), &format!("{:03}", self.status), line);
        let items = || self.items.map_or_else(String::new, |items| format!("{items} items"));
        let length = self.bytes.map_or_else(items, shown_bytes);
        let _ = write!(line, " {:<7} {:>7.2} ms {length:>10}  ", self.method, self.elapsed.as_secs_f64() * 1000.0);
        push_path(self.path, line);
        let client = self.client.filter(|client| !client.is_loopback()).map(|client| client.to_string());
        let has_failed = self.status >= 400 || self.grpc_status.is_some();
        let id = Some(self.request_id).filter(|id| has_failed && !id.is_empty()).map(str::to_owned);
        let grpc_status = self.grpc_status.map(|status| status.to_string());
        for (name, value) in
            [("grpc_status", grpc_status), ("client", client), ("key", self.key.map(str::to_owned)), ("request_id", id)]
        {
            if let Some(value) = value {
                paint(DIM, &format!("  {name}={}", value.escape_debug()), line);
            }
        }
        line.push(b'\n');
    }
}

fn colour_of(status: u16) -> &'static str {
    match status {
        0..300 => GREEN,
        300..400 => CYAN,
        400..500 => YELLOW,
        _ => RED,
    }
}

fn push_path(path: &str, line: &mut Vec<u8>) {
    // An escape may be longer than its character.
    let shown: String = path.escape_debug().take(PATH_CHARS + 1).collect();
    let _ = match shown.char_indices().nth(PATH_CHARS) {
        None => write!(line, "{shown}"),
        Some(_) => write!(line, "{}…", shown.chars().take(PATH_CHARS - 1).collect::<String>()),
    };
}

fn shown_bytes(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut units = UNITS.into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        // A larger number would have five digits.
        if number < 999.95 {
            break;
        }
        (number, unit) = (number / 1024.0, larger);
    }
    format!("{number:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(record: &AccessRecord<'_>, is_coloured: bool) -> String {
        let mut line = Vec::new();
        record.write_short(is_coloured, &mut line);
        let text = String::from_utf8(line).unwrap();
        // The time of day has a fixed length.
        let at = text.find("Z").unwrap();
        format!("{}{}", "-".repeat(at), &text[at..])
    }

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
        bytes: Some(1234),
        items: None,
        client: Some(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
        key: None,
        request_id: "mine-1",
        trace_id: None,
    };

    #[test]
    fn a_plain_request_is_a_line_of_columns_below_a_hundred() {
        assert_eq!(line(&RECORD, false), "------------Z 200 POST       1.23 ms    1.2 KiB  /digits\n");
        let path = "/a".repeat(100);
        let long = AccessRecord { path: &path, method: "GET", elapsed: Duration::from_secs(9), bytes: None, ..RECORD };
        let long = line(&long, false);
        assert_eq!(long.trim_end().chars().count(), 97, "{long}");
        assert!(long.ends_with("/…\n") && long.find("/a") == line(&RECORD, false).find("/digits"), "{long}");
    }

    #[test]
    fn unusual_fields_follow_the_path() {
        let refused = AccessRecord {
            status: 429,
            client: Some(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1))),
            key: Some("web"),
            path: "/\u{1b}[2J\u{202e}",
            ..RECORD
        };
        let expected = "  /\\u{1b}[2J\\u{202e}  client=10.0.0.1  key=web  request_id=mine-1\n";
        assert!(line(&refused, false).ends_with(expected), "{}", line(&refused, false));
        let failed = line(&AccessRecord { grpc_status: Some(14), ..RECORD }, false);
        assert!(failed.ends_with("  /digits  grpc_status=14  request_id=mine-1\n"), "{failed}");
    }

    #[test]
    fn colours_change_nothing_else() {
        let coloured = line(&RECORD, true);
        assert!(coloured.contains("\x1b[32m200\x1b[0m"), "{coloured:?}");
        let plain = [DIM, GREEN].iter().fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(plain.replace("\x1b[0m", "").trim_start_matches('-'), line(&RECORD, false).trim_start_matches('-'));
        assert_eq!([302, 404, 500].map(colour_of), [CYAN, YELLOW, RED]);
    }

    #[test]
    fn lengths_have_a_unit_that_fits_the_column() {
        let shown = [0, 1023, 1024, 1_048_000, 1 << 20, u64::MAX].map(shown_bytes);
        assert_eq!(shown[..5], ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB"]);
        assert!(shown[5].ends_with(" GiB"));
    }
}
