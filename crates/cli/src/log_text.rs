//! Escapes the text of callers and children in the lines of the log: here for all records of `tracing`, in each format.
//! Access records escape the few texts that they have by the same rule.
//!
//! A line end in a text could begin a line that looks like the node's own. A character that moves the cursor or turns
//! the direction of text could hide another line. The formatter's own colours stay.

use std::io::Write as _;

use callboard_http::is_active;

use crate::log_style::LogStyle;

/// Before each line of a text that keeps its lines, but the first: no line of the node begins so.
const INDENT: &[u8] = b"\n    ";

/// Appends a formatted line, which has its end. A text that `keeps_lines` is indented instead of escaped where it has
/// line ends.
pub(super) fn push(line: &[u8], style: LogStyle, keeps_lines: bool, to: &mut Vec<u8>) {
    let body = line.strip_suffix(b"\n").unwrap_or(line);
    if body.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        to.extend_from_slice(line);
        return;
    }
    let text = String::from_utf8_lossy(body);
    let mut rest = &*text;
    while let Some((at, active)) = rest.char_indices().find(|(_, char)| is_active(*char)) {
        to.extend_from_slice(&rest.as_bytes()[..at]);
        let tail = &rest[at..];
        let kept = if style.is_coloured() { colour(tail) } else { 0 };
        to.extend_from_slice(&tail.as_bytes()[..kept]);
        // Writing to memory does not fail.
        let _ = match active {
            _ if kept > 0 => Ok(()),
            '\n' if keeps_lines && style != LogStyle::Json => to.write_all(INDENT),
            // Inside a text: JSON stays the same value. All of them are below U+10000.
            _ if style == LogStyle::Json => write!(to, "\\u{:04x}", u32::from(active)),
            _ => write!(to, "{}", active.escape_default()),
        };
        rest = &tail[kept.max(active.len_utf8())..];
    }
    to.extend_from_slice(rest.as_bytes());
    to.push(b'\n');
}

/// The bytes of a colour (Select Graphic Rendition, ECMA-48) at the start of a text. The formatter escapes those of
/// its values.
fn colour(text: &str) -> usize {
    let Some(codes) = text.strip_prefix("\x1b[") else { return 0 };
    let end = codes.find(|char: char| !char.is_ascii_digit() && char != ';').unwrap_or(codes.len());
    if codes[end..].starts_with('m') { "\x1b[".len() + end + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, style: LogStyle, keeps_lines: bool) -> String {
        let mut shown = Vec::new();
        push(line.as_bytes(), style, keeps_lines, &mut shown);
        String::from_utf8(shown).unwrap()
    }

    const PLAIN: LogStyle = LogStyle::Terminal { is_coloured: false };
    const COLOURED: LogStyle = LogStyle::Terminal { is_coloured: true };

    #[test]
    fn active_characters_are_escaped_in_each_format() {
        let line = "é \u{200d} a\nb\r\t\u{0}\u{7f}\u{9b}\u{61c}\u{200e}\u{2028}\u{202e}\u{2069}\u{feff}\n";
        let escaped =
            "é \u{200d} a\\nb\\r\\t\\u{0}\\u{7f}\\u{9b}\\u{61c}\\u{200e}\\u{2028}\\u{202e}\\u{2069}\\u{feff}\n";
        assert_eq!(shown(line, LogStyle::Full, false), escaped);
        assert_eq!(shown(line, COLOURED, false), escaped);
        let json = "{\"a\":\"\u{202e}\u{9b}\u{7f}\\n\"}\n";
        assert_eq!(shown(json, LogStyle::Json, true), "{\"a\":\"\\u202e\\u009b\\u007f\\n\"}\n");
        assert_eq!(shown("no end", PLAIN, false), "no end");
    }

    #[test]
    fn colours_stay_at_a_coloured_terminal_and_nowhere_else() {
        let line = "\x1b[2mtime\x1b[0m \x1b[1;31mERROR\x1b[0m \x1b[2J \x1b[31 \x1b\n";
        let escaped = " \\u{1b}[2J \\u{1b}[31 \\u{1b}\n";
        assert_eq!(shown(line, COLOURED, false), format!("\x1b[2mtime\x1b[0m \x1b[1;31mERROR\x1b[0m{escaped}"));
        assert!(!shown(line, PLAIN, false).contains('\x1b') && !shown(line, LogStyle::Full, false).contains('\x1b'));
    }

    #[test]
    fn a_text_that_keeps_its_lines_begins_none() {
        assert_eq!(shown("a\nb\r\nc\n", PLAIN, true), "a\n    b\\r\n    c\n");
        assert_eq!(shown("a\nb\n", LogStyle::Json, true), "a\\u000ab\n");
    }
}
