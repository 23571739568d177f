//! JSON straight into and out of a Rust type: the fast path, with no [`Value`](crate::Value) between.
//!
//! A valid request is parsed once, by serde_json. An invalid one is parsed a second time, to find the field at fault.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::Segment;

use crate::account::TemporaryCharge;
use crate::error::{DecodeError, EncodeError};
use crate::json::{decode, encode};
use crate::limits::{Budget, DecodeLimits};
use crate::metered::{Metered, refusal};
use crate::out::ChargedBuffer;
use crate::quoting::ShortError;
use crate::serde_impls::uniform::{UniformSerializer, located as unwritable};

/// Writes the type by its own `Serialize`.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Result<Bytes, EncodeError> {
    let mut out = ChargedBuffer::new(FIRST_ROOM);
    let written = value.serialize(UniformSerializer::json(&mut serde_json::Serializer::new(&mut out)));
    out.check()?;
    written.map_err(|error| unwritable(value, &error, encode))?;
    Ok(out.into_bytes()?)
}

/// Most answers fit into this.
const FIRST_ROOM: usize = 128;

/// Reads the type by its own `Deserialize`.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8], limits: &DecodeLimits) -> Result<T, DecodeError> {
    limits.check_bytes(bytes.len())?;
    if may_exceed(bytes.len(), limits) && scan(bytes, limits).is_err() {
        // Malformed or beyond a limit: the decoder for values names the place.
        return decode(bytes, limits)?.deserialize();
    }
    // serde_json unescapes texts and collects long numbers in a buffer that doubles.
    let mut gathered = TemporaryCharge::new();
    let longest = if bytes.contains(&b'\\') { bytes.len() } else { longest_number(bytes) };
    gathered.grow(longest.saturating_mul(2))?;
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let read = T::deserialize(Metered::json(&mut deserializer, limits.depth()));
    let whole = read.map_err(ShortError::into_inner).and_then(|value| deserializer.end().map(|()| value));
    // Checked also after success: an untagged enum tries its next variant after a refusal.
    match (refusal(limits.depth()), whole) {
        (Some(refused), _) => Err(located(refused, bytes, limits)),
        (None, whole) => whole.map_err(|error| explain::<T>(bytes, limits, &error)),
    }
}

/// Shorter numbers are not looked for.
const LONG_NUMBER: usize = 8 * 1024;

/// The length of the longest number. It checks every [`LONG_NUMBER`]th byte, so numbers below twice that length may be
/// missed.
fn longest_number(bytes: &[u8]) -> usize {
    let is_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    let (mut longest, mut at) = (0, LONG_NUMBER);
    while at < bytes.len() {
        let behind = bytes[at..].iter().take_while(is_number).count();
        if behind > 0 {
            longest = longest.max(behind + bytes[..at].iter().rev().take_while(is_number).count());
        }
        at += behind + LONG_NUMBER;
    }
    longest
}

/// The same refusal with its place, if the decoder for values refuses it too.
fn located(refused: DecodeError, bytes: &[u8], limits: &DecodeLimits) -> DecodeError {
    if refused.limit().is_some_and(|limit| limit.name == "max_depth") {
        decode(bytes, limits).err().filter(|error| error.limit() == refused.limit()).unwrap_or(refused)
    } else {
        refused
    }
}

/// The depth limit of serde_json.
const SERDE_JSON_DEPTH: usize = 128;

/// Whether an input of this length could reach a limit that serde_json does not have. Most requests are too small for
/// that.
fn may_exceed(len: usize, limits: &DecodeLimits) -> bool {
    // An element takes two bytes at least: itself, and the comma or bracket before it.
    limits.max_depth < SERDE_JSON_DEPTH || len / 2 > limits.max_elements || len > limits.max_string_bytes
}

/// Holds the bytes against the limits in one pass. serde_json finds malformed input.
fn scan(bytes: &[u8], limits: &DecodeLimits) -> Result<(), DecodeError> {
    let mut budget = Budget::new(limits);
    let (mut depth, mut at, mut opened) = (0_usize, 0, false);
    while let Some(byte) = bytes.get(at).copied() {
        at += 1;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b':' => continue,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => budget.take_elements(1)?,
            // The first item of a list or map has no comma before it.
            _ if opened => budget.take_elements(1)?,
            _ => {}
        }
        opened = matches!(byte, b'[' | b'{');
        if opened {
            depth += 1;
            budget.check_depth(depth)?;
        }
        if byte == b'"' {
            let (end, len) = skip_string(&bytes[at..]);
            budget.check_string(len)?;
            at += end;
        }
    }
    Ok(())
}

/// The length of the longest string's source.
fn longest_string(bytes: &[u8]) -> usize {
    let (mut longest, mut rest) = (0, bytes);
    while let Some(quote) = rest.iter().position(|byte| *byte == b'"') {
        let (end, _) = skip_string(&rest[quote + 1..]);
        longest = longest.max(end);
        rest = rest.get(quote + 1 + end..).unwrap_or_default();
    }
    longest
}

/// The length of a string's source up to and with its closing quote, and the least length of its text.
fn skip_string(bytes: &[u8]) -> (usize, usize) {
    let (mut at, mut len) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return (at + 1, len),
            // Two bytes are one byte of text; six are one to three.
            b'\\' if bytes.get(at + 1) == Some(&b'u') => at += 6,
            b'\\' => at += 2,
            _ => at += 1,
        }
        len += 1;
    }
    (bytes.len(), len)
}

/// Finds the field at fault. Called for failed requests only.
fn explain<T: DeserializeOwned>(bytes: &[u8], limits: &DecodeLimits, first: &serde_json::Error) -> DecodeError {
    let wrong_type = first.classify() == Category::Data;
    // For input that is not JSON or too deep, the decoder for values gives the better error: it names the byte.
    let depth = limits.max_depth.min(SERDE_JSON_DEPTH - 1);
    let limits = DecodeLimits { max_depth: depth, ..limits.clone() };
    if !wrong_type && let Err(error) = decode(bytes, &limits) {
        return error;
    }
    let error =
        if wrong_type { DecodeError::mismatch(message_of(first)) } else { DecodeError::malformed(message_of(first)) };
    let error = error.at_offset(offset_of(bytes, first));
    // A key is copied twice for the path, and the parser unescapes it in a buffer that doubles.
    let mut copies = TemporaryCharge::new();
    if copies.grow(longest_string(bytes).saturating_mul(4)).is_err() {
        return error;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let metered = Metered::json(&mut deserializer, limits.depth());
    match serde_path_to_error::deserialize::<_, T>(metered).err() {
        Some(located) => located.path().iter().rev().fold(error, step_of),
        None => error,
    }
}

/// Puts a step before the path so far.
fn step_of(error: DecodeError, step: &Segment) -> DecodeError {
    match step {
        Segment::Seq { index } => error.in_index(*index),
        Segment::Map { key } => error.in_key(key),
        Segment::Enum { variant } => error.in_key(variant),
        Segment::Unknown => error.in_key("?"),
    }
}

/// serde_json's message without line and column, which become a byte offset.
fn message_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

fn offset_of(bytes: &[u8], error: &serde_json::Error) -> usize {
    let before = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum::<usize>();
    (before + error.column()).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_number_is_found_at_any_position() {
        for place in [0, 1, LONG_NUMBER - 1, LONG_NUMBER, 5 * LONG_NUMBER + 7] {
            let text = format!("{}-{}.5e+7,1]", "[1,".repeat(place), "1".repeat(2 * LONG_NUMBER));
            assert_eq!(longest_number(text.as_bytes()), 2 * LONG_NUMBER + 6, "{place}");
        }
        assert!(longest_number("[12345,".repeat(LONG_NUMBER).as_bytes()) <= 5);
        assert_eq!(longest_number(b""), 0);
    }
}
