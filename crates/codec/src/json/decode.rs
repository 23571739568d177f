//! Reads JSON text into a [`Value`], asking the budget before each level and each allocation.
//!
//! A recursive descent over the bytes. The whole input is checked to be UTF-8 first, so that texts are copied without a
//! second check.

use super::decimals::Decimals;
use crate::error::DecodeError;
use crate::limits::{Budget, DecodeLimits};
use crate::value::{Map, Value};

/// Reads one value. Only white space may follow.
pub(crate) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Value, DecodeError> {
    whole::<false>(bytes, limits, None)
}

/// The same, with the digits of decimals as texts.
pub(crate) fn decode_digits(bytes: &[u8], limits: &DecodeLimits, decimals: &Decimals) -> Result<Value, DecodeError> {
    whole::<true>(bytes, limits, Some(decimals))
}

pub(super) fn whole<const DIGITS: bool>(
    bytes: &[u8],
    limits: &DecodeLimits,
    decimals: Option<&Decimals>,
) -> Result<Value, DecodeError> {
    let mut decoder = JsonDecoder::<DIGITS>::new(bytes, limits, decimals)?;
    let value = decoder.value(0)?;
    decoder.finish().map(|()| value)
}

/// The most characters that an error quotes.
const MAX_SHOWN_CHARS: usize = 16;

/// The most bytes of an escaped character.
const MAX_CHAR_BYTES: usize = 4;

/// `DIGITS`: some numbers keep their digits. Without it, the decoder does not look where it is.
pub(super) struct JsonDecoder<'a, const DIGITS: bool> {
    text: &'a str,
    bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) budget: Budget<'a>,
    /// The decimals of the next value.
    pub(super) decimals: Option<&'a Decimals>,
}

impl<'a, const DIGITS: bool> JsonDecoder<'a, DIGITS> {
    pub(super) fn new(
        bytes: &'a [u8],
        limits: &'a DecodeLimits,
        decimals: Option<&'a Decimals>,
    ) -> Result<Self, DecodeError> {
        limits.check_bytes(bytes.len())?;
        let text = std::str::from_utf8(bytes)
            .map_err(|error| DecodeError::malformed("invalid UTF-8").at_offset(error.valid_up_to()))?;
        Ok(Self { text, bytes, at: 0, budget: Budget::new(limits), decimals })
    }

    /// Nothing but white space may be left.
    pub(super) fn finish(&mut self) -> Result<(), DecodeError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.malformed("more input after the value")),
        }
    }

    /// Bytes that are not read.
    pub(super) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads the next value, which lies inside `depth` lists and maps.
    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        match self.peek() {
            Some(b'{') => self.map(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => self.string().map(Value::Str),
            next => self.leaf(next),
        }
    }

    /// Reads a value that begins with `next` and is no text, list or map.
    #[inline]
    pub(super) fn leaf(&mut self, next: Option<u8>) -> Result<Value, DecodeError> {
        match next {
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b'N' | b'I') if ["NaN", "Infinity"].iter().any(|word| self.text[self.at..].starts_with(word)) => {
                Err(self.malformed("NaN and Infinity are not JSON: send null or a string"))
            }
            Some(_) if self.at == 0 && self.text.starts_with('\u{feff}') => {
                Err(self.malformed("a byte order mark is not JSON: send UTF-8 without one"))
            }
            Some(_) => Err(self.no_value()),
            None if self.text.trim_ascii().is_empty() => {
                Err(self.malformed("the input is empty: expected a JSON value"))
            }
            None => Err(self.malformed("the input ends where a value is expected")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let outer = self.decimals;
        self.open(depth)?;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::List(items));
        }
        loop {
            let index = items.len();
            if DIGITS {
                self.decimals = outer.and_then(|outer| outer.item(index));
            }
            let item = self.element().and_then(|()| self.value(depth)).map_err(|error| error.in_index(index))?;
            self.budget.make_room(&mut items, 0).map_err(|error| error.in_index(index).at_offset(self.at))?;
            items.push(item);
            if self.closes(b']', "expected , or ] after a list item")? {
                self.budget.trim(&mut items);
                return Ok(Value::List(items));
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let outer = self.decimals;
        self.open(depth)?;
        let mut map = Map::new();
        if self.take(b'}') {
            return Ok(Value::Map(map));
        }
        loop {
            let key = self.key(&map)?;
            if DIGITS {
                self.decimals = outer.and_then(|outer| outer.field(&key));
            }
            let value = self.element().and_then(|()| self.value(depth)).map_err(|error| error.in_key(&key))?;
            map.make_room(0, &mut self.budget).map_err(|error| error.in_key(&key).at_offset(self.at))?;
            map.insert(key, value);
            if self.closes(b'}', "expected , or } after a map entry")? {
                return Ok(Value::Map(map));
            }
        }
    }

    /// Skips the bracket that opens a list or map.
    pub(super) fn open(&mut self, depth: usize) -> Result<(), DecodeError> {
        self.budget.check_depth(depth).map_err(|error| error.at_offset(self.at))?;
        self.at += 1;
        Ok(())
    }

    pub(super) fn element(&mut self) -> Result<(), DecodeError> {
        let at = self.at;
        self.budget.take_elements(1).map_err(|error| error.at_offset(at))
    }

    /// After an item: whether the list or map ends here (`true`) or continues after a comma (`false`).
    pub(super) fn closes(&mut self, bracket: u8, expected: &str) -> Result<bool, DecodeError> {
        if self.take(b',') {
            return Ok(false);
        }
        match self.take(bracket) {
            true => Ok(true),
            false if self.is_over() => {
                let outer = if bracket == b']' { "list" } else { "map" };
                Err(self.malformed(&format!("the input ends inside a {outer}: {expected}")))
            }
            false => Err(self.malformed(expected)),
        }
    }

    fn key(&mut self, map: &Map) -> Result<String, DecodeError> {
        let start = self.begin_key()?;
        let key = self.string()?;
        if map.contains_key(&key) {
            return Err(DecodeError::malformed("the same key twice").in_key(&key).at_offset(start));
        }
        self.end_key().map(|()| key)
    }

    /// The offset of the next key.
    pub(super) fn begin_key(&mut self) -> Result<usize, DecodeError> {
        match self.peek() {
            Some(b'"') => Ok(self.at),
            Some(_) => Err(self.malformed("expected a key in double quotes")),
            None => Err(self.malformed("the input ends inside a map: expected a key in double quotes")),
        }
    }

    pub(super) fn end_key(&mut self) -> Result<(), DecodeError> {
        match self.take(b':') {
            true => Ok(()),
            false if self.is_over() => Err(self.malformed("the input ends after a key: expected : and a value")),
            false => Err(self.malformed("expected : after a key")),
        }
    }

    /// Reads a text without escapes. `None`: it has some, or is malformed, and is still to be read.
    pub(super) fn plain_text(&mut self) -> Result<Option<&'a str>, DecodeError> {
        let start = self.at;
        self.at += 1;
        let text = self.piece();
        if self.bytes.get(self.at) != Some(&b'"') {
            self.at = start;
            return Ok(None);
        }
        self.at += 1;
        self.budget.check_string(text.len()).map(|()| Some(text))
    }

    /// Reads a text from its opening quote. Most texts have no escapes and are copied in one piece.
    pub(super) fn string(&mut self) -> Result<String, DecodeError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let piece = self.piece();
            let len = text.len() + piece.len();
            self.budget.check_string(len).map_err(|error| error.at_offset(start))?;
            let missing = len.saturating_sub(text.capacity());
            self.budget.take_text(missing).map_err(|error| error.at_offset(start))?;
            text.push_str(piece);
            if self.bytes.get(self.at) == Some(&b'\\') && text.capacity() < len + MAX_CHAR_BYTES {
                let room = self.rest_of_string() + MAX_CHAR_BYTES;
                self.budget.take_text(room).map_err(|error| error.at_offset(start))?;
                text.reserve_exact(room);
            }
            match self.after_piece(start)? {
                Some(char) => text.push(char),
                None => return Ok(text),
            }
        }
    }

    /// A part of a text up to its end or an escape.
    pub(super) fn piece(&mut self) -> &'a str {
        let start = self.at;
        self.at += self.bytes[start..].iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)).count();
        &self.text[start..self.at]
    }

    /// What follows a piece of the text that began at `start`: an escaped character, or the end.
    #[inline]
    pub(super) fn after_piece(&mut self, start: usize) -> Result<Option<char>, DecodeError> {
        match self.bytes.get(self.at) {
            Some(b'"') => {
                self.at += 1;
                Ok(None)
            }
            Some(b'\\') => self.escape().map(Some),
            Some(_) => Err(self.malformed("a raw control character in text: escape it")),
            None => Err(DecodeError::malformed("text without a closing quote").at_offset(start)),
        }
    }

    /// The bytes up to the closing quote. The text is no longer than its source.
    fn rest_of_string(&self) -> usize {
        let rest = &self.bytes[self.at..];
        let mut at = 0;
        while let Some(byte) = rest.get(at).filter(|byte| **byte != b'"') {
            at += 1 + usize::from(*byte == b'\\');
        }
        at.min(rest.len())
    }

    /// Reads an escape from its backslash.
    fn escape(&mut self) -> Result<char, DecodeError> {
        let start = self.at;
        let letter = self.bytes.get(self.at + 1).copied();
        self.at += 2;
        match letter {
            Some(plain @ (b'"' | b'\\' | b'/')) => Ok(char::from(plain)),
            Some(b'b') => Ok('\u{8}'),
            Some(b'f') => Ok('\u{c}'),
            Some(b'n') => Ok('\n'),
            Some(b'r') => Ok('\r'),
            Some(b't') => Ok('\t'),
            Some(b'u') => self
                .code_point()
                .ok_or_else(|| DecodeError::malformed("not a \\u escape of a character").at_offset(start)),
            _ => Err(DecodeError::malformed("unknown escape").at_offset(start)),
        }
    }

    /// Reads four hex digits, and four more where the first are the high half of a surrogate pair.
    fn code_point(&mut self) -> Option<char> {
        let high = self.hex4()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high);
        }
        if self.bytes.get(self.at..self.at + 2) != Some(br"\u") {
            return None;
        }
        self.at += 2;
        let low = self.hex4().filter(|low| (0xdc00..0xe000).contains(low))?;
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |code, digit| Some(code * 16 + char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self) -> Result<Value, DecodeError> {
        let start = self.at;
        let wrong = |what: &str| DecodeError::malformed(what).at_offset(start);
        let negative = self.bytes[start] == b'-';
        self.at += usize::from(negative);
        let leading_zero = self.bytes.get(self.at) == Some(&b'0');
        match self.digits() {
            0 => return Err(wrong("a number without digits")),
            2.. if leading_zero => return Err(wrong("a number with a leading zero")),
            _ => {}
        }
        let fraction = self.bytes.get(self.at) == Some(&b'.');
        if fraction {
            self.at += 1;
            if self.digits() == 0 {
                return Err(wrong("a number that ends in its point"));
            }
        }
        let exponent = matches!(self.bytes.get(self.at), Some(b'e' | b'E'));
        if exponent {
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            if self.digits() == 0 {
                return Err(wrong("a number that ends in its exponent"));
            }
        }
        let text = &self.text[start..self.at];
        let keeps = DIGITS && self.decimals.is_some_and(|decimals| decimals.here);
        if keeps && (fraction || exponent || integer(text).is_none()) {
            let charged = self.budget.check_string(text.len()).and_then(|()| self.budget.take_text(text.len()));
            return charged.map(|()| Value::Str(text.to_owned())).map_err(|error| error.at_offset(start));
        }
        if fraction || exponent || text == "-0" {
            float(text).map(Value::Float).ok_or_else(|| wrong("a number beyond the range of a 64-bit float"))
        } else {
            integer(text).ok_or_else(|| wrong("an integer beyond 64 bits: write it with a point to mean a float"))
        }
    }

    /// Skips digits and returns their count.
    fn digits(&mut self) -> usize {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, DecodeError> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else if word.as_bytes().starts_with(&self.bytes[self.at..]) {
            Err(self.malformed(&format!("the input ends inside `{word}`")))
        } else {
            Err(self.no_value())
        }
    }

    /// What stands in the place of a value, and what may have been meant.
    fn no_value(&self) -> DecodeError {
        let rest = &self.text[self.at..];
        let word: String = rest.chars().take_while(|char| char.is_alphanumeric()).take(MAX_SHOWN_CHARS).collect();
        let (found, hint) = match (word.as_str(), rest.chars().next()) {
            ("True" | "False" | "None", _) => (word, ": JSON has true, false and null"),
            ("", Some('\'')) => ("'".to_owned(), ": write a text in double quotes"),
            ("", Some(other)) => (other.escape_debug().to_string(), ""),
            _ => (word, ": write a text in double quotes"),
        };
        self.malformed(&format!("expected a JSON value, found `{found}`{hint}"))
    }

    fn is_over(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Skips white space and returns the next byte.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(*byte),
            }
        }
        None
    }

    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn malformed(&self, message: &str) -> DecodeError {
        DecodeError::malformed(message).at_offset(self.at)
    }
}

fn float(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn integer(text: &str) -> Option<Value> {
    text.parse().map(Value::Int).or_else(|_| text.parse().map(Value::UInt)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::testing::charge_of;
    use crate::limits::LEAST_TEXT_BYTES;

    fn read(text: &str) -> Result<Value, DecodeError> {
        decode(text.as_bytes(), &DecodeLimits::default())
    }

    #[test]
    fn every_short_escape_is_its_character() {
        assert_eq!(read(r#""\"\\\/\b\f\n\r\t""#).unwrap(), Value::from("\"\\/\u{8}\u{c}\n\r\t"));
        assert!(read(r#""\v""#).is_err());
    }

    #[test]
    fn escapes_of_every_plane_are_characters() {
        for (escape, char) in [
            (r"\ud83d\ude00", "\u{1f600}"),
            (r"\ud800\udc00", "\u{10000}"),
            (r"\udbff\udfff", "\u{10ffff}"),
            (r"\ud7ff\ue000", "\u{d7ff}\u{e000}"),
        ] {
            assert_eq!(read(&format!("\"{escape}\"")).unwrap(), Value::from(char), "{escape}");
        }
        for half in [r"\udbff\ue000", r"\udbff\udbff", r"\udc00\ud800"] {
            assert!(read(&format!("\"{half}\"")).is_err(), "{half}");
        }
    }

    #[test]
    fn an_error_names_its_cause() {
        for (input, cause) in [
            ("[1", "the input ends inside a list: expected , or ] after a list item (byte 2)"),
            (r#"{"a":1 "#, "the input ends inside a map: expected , or } after a map entry (byte 7)"),
            (r#"{"a":1,"#, "the input ends inside a map: expected a key in double quotes (byte 7)"),
            ("{1", "expected a key in double quotes (byte 1)"),
            (r#"{"a" "#, "the input ends after a key: expected : and a value (byte 5)"),
            (r#"{"a" 1"#, "expected : after a key (byte 5)"),
            ("[1,", "the input ends where a value is expected at $[1] (byte 3)"),
            ("tru", "the input ends inside `true` (byte 0)"),
            ("[1 2]", "expected , or ] after a list item (byte 3)"),
            (r#"{"a":1 2}"#, "expected , or } after a map entry (byte 7)"),
            ("", "the input is empty: expected a JSON value (byte 0)"),
            (" \n", "the input is empty: expected a JSON value (byte 2)"),
            ("hello you", "expected a JSON value, found `hello`: write a text in double quotes (byte 0)"),
            ("[None]", "expected a JSON value, found `None`: JSON has true, false and null at $[0] (byte 1)"),
            ("{\"a\": 'b'}", "expected a JSON value, found `'`: write a text in double quotes at $.a (byte 6)"),
            ("\u{1}", "expected a JSON value, found `\\u{1}` (byte 0)"),
            ("[}", "expected a JSON value, found `}` at $[0] (byte 1)"),
            (" \u{feff}1", "expected a JSON value, found `\\u{feff}` (byte 1)"),
            ("-", "a number without digits (byte 0)"),
            ("01", "a number with a leading zero (byte 0)"),
            ("1.", "a number that ends in its point (byte 0)"),
            ("1e", "a number that ends in its exponent (byte 0)"),
        ] {
            assert_eq!(read(input).unwrap_err().to_string(), cause, "{input}");
        }
    }

    #[test]
    fn a_text_is_charged_by_its_length() {
        for (text, charged) in [
            ("x".repeat(100), 100),
            (r"\n".repeat(1000), 2000 + MAX_CHAR_BYTES),
            (r#"\""#.repeat(1000), 2000 + MAX_CHAR_BYTES),
            // The room of a short text is used first: a text has room for 8 bytes at least.
            (r"abcd\n".to_owned(), LEAST_TEXT_BYTES),
            (r"abcde\n".to_owned(), 2 * LEAST_TEXT_BYTES),
            (format!("ab\\n{}", "x".repeat(100)), LEAST_TEXT_BYTES + 103 - 8),
        ] {
            assert_eq!(charge_of(|| read(&format!("\"{text}\"")).unwrap()), charged, "{text}");
        }
    }
}
