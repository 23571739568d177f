//! Escapes text from outside before it goes to a terminal.
//!
//! Text of a server, a certificate or a model file may hold characters that control the terminal: they move the cursor,
//! name the window, write to the clipboard, or turn the direction of text. Such characters are written as JSON writes
//! them, `\u001b`, so that JSON stays the same value. A value inside a line is [one line](line); whole texts [keep
//! their lines](lines). Bytes for programs are unchanged: see [`PlainWriter`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use callboard_http::is_active;

/// Escapes the text for use inside a line: also line breaks and tabs.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_, _| false)
}

/// Escapes the text, but keeps its line ends and tabs.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c, next| matches!(c, '\n' | '\t') || c == '\r' && next == Some('\n'))
}

/// Escapes text of several lines after a label, and indents the lines after the first, so that none looks like our own.
pub(crate) fn indented(text: &str) -> String {
    text.lines().map(line).collect::<Vec<_>>().join("\n    ")
}

/// Escapes all control characters, except where `is_kept` accepts one and the next character.
fn escaped(text: &str, is_kept: impl Fn(char, Option<char>) -> bool) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if is_active(c) && !is_kept(c, rest.peek().copied()) {
            // Writing to a string cannot fail. All of them are below U+10000.
            _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A writer for a terminal. It gets the [lines](lines) of the text; invalid UTF-8 becomes U+FFFD.
pub(crate) struct PlainWriter<W: Write> {
    terminal: W,
    /// The first bytes of an incomplete character or line end.
    partial: Vec<u8>,
}

impl<W: Write> PlainWriter<W> {
    pub(crate) fn new(terminal: W) -> Self {
        Self { terminal, partial: Vec::new() }
    }
}

impl<W: Write> Write for PlainWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        self.partial = all.split_off(all.len() - partial_bytes(&all));
        self.terminal.write_all(lines(&String::from_utf8_lossy(&all)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.terminal.flush()
    }
}

impl<W: Write> Drop for PlainWriter<W> {
    fn drop(&mut self) {
        // A failed last write is ignored.
        let rest = std::mem::take(&mut self.partial);
        _ = self.terminal.write_all(lines(&String::from_utf8_lossy(&rest)).as_bytes());
    }
}

/// The number of last bytes that are incomplete: up to three of a character, or a carriage return.
fn partial_bytes(bytes: &[u8]) -> usize {
    if bytes.last() == Some(&b'\r') {
        return 1;
    }
    let is_incomplete = |tail: &&[u8]| {
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    let tails = (1..=bytes.len().min(3)).rev().map(|count| &bytes[bytes.len() - count..]);
    tails.into_iter().find(is_incomplete).map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(line("plain é € 😀 \u{200d}"), "plain é € 😀 \u{200d}");
        assert_eq!(line("\u{0}\u{1b}[2J\u{7f}\u{9b}\u{9f}\u{a0}"), "\\u0000\\u001b[2J\\u007f\\u009b\\u009f\u{a0}");
        assert_eq!(line("a\r\n\tb\u{202e}\u{2069}"), "a\\u000d\\u000a\\u0009b\\u202e\\u2069");
        assert_eq!(lines("a\r\n\tb\rc\r"), "a\r\n\tb\\u000dc\\u000d");
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value = serde_json::json!({ "\u{9b}\u{202e}": ["\u{1b}\u{7f}\r\n", "é"] });
        let shown = line(&value.to_string()).into_owned();
        assert!(!shown.contains(is_active));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn a_partial_character_waits_for_its_rest() {
        let text = "é€😀\u{9b}\r\nx\ry\u{1b}";
        for size in 1..=text.len() {
            let mut shown = Vec::new();
            let mut plain = PlainWriter::new(&mut shown);
            text.as_bytes().chunks(size).for_each(|piece| plain.write_all(piece).unwrap());
            drop(plain);
            assert_eq!(String::from_utf8(shown).unwrap(), "é€😀\\u009b\r\nx\\u000dy\\u001b", "{size}");
        }
        let mut shown = Vec::new();
        let mut plain = PlainWriter::new(&mut shown);
        plain.write_all(b"a\xffb\x9bc\xe2\x82").unwrap();
        drop(plain);
        assert_eq!(String::from_utf8(shown).unwrap(), "a\u{fffd}b\u{fffd}c\u{fffd}");
    }
}
