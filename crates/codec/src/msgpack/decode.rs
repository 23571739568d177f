//! Reads MessagePack into a [`Value`]. Every length is held against the budget and the rest of the input before
//! anything is reserved for it.

use std::ops::Range;

use bytes::Bytes;

use crate::error::DecodeError;
use crate::limits::{Budget, DecodeLimits};
use crate::msgpack::{Segments, ext, marker};
use crate::value::{Map, Value};

/// Reads one value. Nothing may follow.
pub(crate) fn decode(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    limits.check_bytes(bytes.len())?;
    let mut decoder = MsgpackDecoder::new(bytes, Budget::new(limits));
    let value = decoder.value(0)?;
    decoder.finish("more input after the value").map(|()| value)
}

/// Reads the tree of an envelope, which is part of `head`, and all its segments.
pub(crate) fn decode_tree(
    head: &Bytes,
    tree: Range<usize>,
    segments: Segments,
    limits: &DecodeLimits,
) -> Result<Value, DecodeError> {
    let mut decoder = MsgpackDecoder::of_tree(head, tree, segments, limits);
    let value = decoder.value(0)?;
    decoder.finish_tree().map(|()| value)
}

/// Reads a tuple's items from a separate payload.
pub(crate) fn list_payload(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    let mut decoder = MsgpackDecoder::new(bytes, Budget::new(limits));
    let items = decoder.tuple(1)?;
    decoder.finish("more input after the tuple").map(|()| Value::Tuple(items))
}

/// Checks an input's limits before rmp-serde reads it, which knows only that of depth.
pub(crate) fn check(bytes: &Bytes, limits: &DecodeLimits) -> Result<(), DecodeError> {
    MsgpackDecoder::new(bytes, Budget::new(limits)).skip(0)
}

/// The error of a map whose key at this byte is an earlier one.
pub(super) fn same_key(key: &str, at: usize) -> DecodeError {
    DecodeError::malformed("the same key twice").in_key(key).at_offset(at)
}

pub(crate) struct MsgpackDecoder<'a> {
    pub(super) bytes: &'a Bytes,
    pub(super) at: usize,
    /// The end of the next value at the latest: the end of the input, or of the enclosing tuple.
    pub(super) end: usize,
    pub(super) budget: Budget<'a>,
    /// The segments for references, in an envelope.
    pub(super) segments: Option<Segments>,
}

/// The meaning of a marker: a whole value, or the kind and length of the value that follows.
pub(crate) enum Token {
    Leaf(Value),
    Text(usize),
    Bytes(usize),
    Extension(usize),
    List(usize),
    Map(usize),
}

fn leaf(value: impl Into<Value>) -> Token {
    Token::Leaf(value.into())
}

impl<'a> MsgpackDecoder<'a> {
    pub(super) fn new(bytes: &'a Bytes, budget: Budget<'a>) -> Self {
        Self { bytes, at: 0, end: bytes.len(), budget, segments: None }
    }

    /// For the tree of an envelope, which is part of `head`.
    pub(crate) fn of_tree(head: &'a Bytes, tree: Range<usize>, segments: Segments, limits: &'a DecodeLimits) -> Self {
        let budget = Budget::new(limits);
        Self { bytes: head, at: tree.start, end: tree.end, budget, segments: Some(segments) }
    }

    /// Nothing of the tree, and no segment, may be left.
    pub(crate) fn finish_tree(&self) -> Result<(), DecodeError> {
        self.finish("more input after the value")?;
        let segments = self.segments.as_ref().map_or(Ok(()), Segments::finish);
        segments.map_err(|error| error.at_offset(self.end))
    }

    /// Reads the next value, which lies inside `depth` lists, tuples and maps.
    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        match self.head()? {
            Token::Leaf(value) => Ok(value),
            Token::Text(len) => self.text(len).map(Value::Str),
            Token::Bytes(len) => self.segment(len).map(Value::Bytes),
            Token::Extension(len) => self.extension(len, depth),
            Token::List(len) => self.items(len, depth + 1).map(Value::List),
            Token::Map(len) => self.map(len, depth + 1),
        }
    }

    /// Skips the next value and asks the budget as reading would. Nothing is built.
    fn skip(&mut self, depth: usize) -> Result<(), DecodeError> {
        match self.head()? {
            Token::Leaf(_) => Ok(()),
            Token::Text(len) => self.budget.check_string(len).and_then(|()| self.take(len)).map(drop),
            Token::Bytes(len) => self.segment(len).map(drop),
            Token::Extension(len) => self.byte().and_then(|_code| self.segment(len)).map(drop),
            Token::List(len) => {
                self.enter(len, 1, depth + 1)?;
                (0..len).try_for_each(|_| self.skip(depth + 1))
            }
            Token::Map(len) => {
                self.enter(len, 2, depth + 1)?;
                (0..len).try_for_each(|_| self.skip(depth + 1).and_then(|()| self.skip(depth + 1)))
            }
        }
    }

    /// Reads a marker and its number or length.
    pub(crate) fn head(&mut self) -> Result<Token, DecodeError> {
        let start = self.at;
        match self.byte()? {
            number @ ..marker::FIX_MAP => Ok(leaf(number)),
            byte @ marker::FIX_MAP..marker::FIX_ARRAY => Ok(Token::Map(usize::from(byte - marker::FIX_MAP))),
            byte @ marker::FIX_ARRAY..marker::FIX_STR => Ok(Token::List(usize::from(byte - marker::FIX_ARRAY))),
            byte @ marker::FIX_STR..marker::NULL => Ok(Token::Text(usize::from(byte - marker::FIX_STR))),
            marker::NULL => Ok(Token::Leaf(Value::Null)),
            marker::RESERVED => Err(DecodeError::malformed("a marker that MessagePack never uses").at_offset(start)),
            marker::FALSE => Ok(leaf(false)),
            marker::TRUE => Ok(leaf(true)),
            byte @ marker::BIN_8..=marker::BIN_32 => self.len(byte - marker::BIN_8).map(Token::Bytes),
            byte @ marker::EXT_8..=marker::EXT_32 => self.len(byte - marker::EXT_8).map(Token::Extension),
            marker::F32 => self.array().map(|bytes| leaf(f32::from_be_bytes(bytes))),
            marker::F64 => self.array().map(|bytes| leaf(f64::from_be_bytes(bytes))),
            marker::U8 => self.array().map(|bytes| leaf(u8::from_be_bytes(bytes))),
            marker::U16 => self.array().map(|bytes| leaf(u16::from_be_bytes(bytes))),
            marker::U32 => self.array().map(|bytes| leaf(u32::from_be_bytes(bytes))),
            marker::U64 => self.array().map(|bytes| leaf(u64::from_be_bytes(bytes))),
            marker::I8 => self.array().map(|bytes| leaf(i8::from_be_bytes(bytes))),
            marker::I16 => self.array().map(|bytes| leaf(i16::from_be_bytes(bytes))),
            marker::I32 => self.array().map(|bytes| leaf(i32::from_be_bytes(bytes))),
            marker::I64 => self.array().map(|bytes| leaf(i64::from_be_bytes(bytes))),
            byte @ marker::FIX_EXT_1..=marker::FIX_EXT_16 => Ok(Token::Extension(1 << (byte - marker::FIX_EXT_1))),
            byte @ marker::STR_8..=marker::STR_32 => self.len(byte - marker::STR_8).map(Token::Text),
            // Arrays and maps have no marker with a length of 8 bits.
            byte @ marker::ARRAY_16..=marker::ARRAY_32 => self.len(byte - marker::ARRAY_16 + 1).map(Token::List),
            byte @ marker::MAP_16..=marker::MAP_32 => self.len(byte - marker::MAP_16 + 1).map(Token::Map),
            number @ marker::FIX_NEGATIVE.. => Ok(leaf(number.cast_signed())),
        }
    }

    fn items(&mut self, len: usize, depth: usize) -> Result<Vec<Value>, DecodeError> {
        self.enter(len, 1, depth)?;
        let mut items = Vec::new();
        for index in 0..len {
            let at = self.at;
            self.budget.make_room(&mut items, len).map_err(|error| error.in_index(index).at_offset(at))?;
            items.push(self.value(depth).map_err(|error| error.in_index(index))?);
        }
        Ok(items)
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<Value, DecodeError> {
        self.enter(len, 2, depth)?;
        let mut map = Map::new();
        for _ in 0..len {
            let start = self.at;
            let key = self.key()?;
            if map.contains_key(&key) {
                return Err(same_key(&key, start));
            }
            let value = self.value(depth).map_err(|error| error.in_key(&key))?;
            map.make_room(len, &mut self.budget).map_err(|error| error.in_key(&key).at_offset(start))?;
            map.insert(key, value);
        }
        Ok(Value::Map(map))
    }

    /// Allows a list or map of `len` items of at least `least` bytes each.
    pub(crate) fn enter(&mut self, len: usize, least: usize, depth: usize) -> Result<(), DecodeError> {
        let at = self.at;
        self.budget.check_depth(depth).map_err(|error| error.at_offset(at))?;
        self.budget.take_elements(len).map_err(|error| error.at_offset(at))?;
        match len.checked_mul(least) {
            Some(needed) if needed <= self.end - at => Ok(()),
            _ => {
                Err(DecodeError::malformed(format!("{len} items are announced, but the input ends before"))
                    .at_offset(at))
            }
        }
    }

    fn key(&mut self) -> Result<String, DecodeError> {
        self.key_len().and_then(|len| self.text(len))
    }

    pub(crate) fn key_len(&mut self) -> Result<usize, DecodeError> {
        let start = self.at;
        match self.head()? {
            Token::Text(len) => Ok(len),
            _ => Err(DecodeError::unsupported("a map key that is not a string").at_offset(start)),
        }
    }

    fn text(&mut self, len: usize) -> Result<String, DecodeError> {
        let start = self.at;
        let text = self.str(len)?;
        self.budget.take_text(len).map_err(|error| error.at_offset(start))?;
        Ok(text.to_owned())
    }

    /// A text in place.
    pub(crate) fn str(&mut self, len: usize) -> Result<&'a str, DecodeError> {
        let start = self.at;
        self.budget.check_string(len).map_err(|error| error.at_offset(start))?;
        let bytes = &self.bytes[self.take(len)?];
        std::str::from_utf8(bytes)
            .map_err(|error| DecodeError::malformed("invalid UTF-8").at_offset(start + error.valid_up_to()))
    }

    /// A byte string: a slice of the input, not a copy.
    pub(crate) fn segment(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        Ok(self.bytes.slice(self.take(len)?))
    }

    fn extension(&mut self, len: usize, depth: usize) -> Result<Value, DecodeError> {
        let code = self.byte()?.cast_signed();
        if code != ext::TUPLE {
            return self.leaf(code, len);
        }
        let (outer_end, items) = self.begin_tuple(len)?;
        let items = self.items(items, depth + 1)?;
        self.end_tuple(outer_end).map(|()| Value::Tuple(items))
    }

    /// An extension without values inside.
    pub(crate) fn leaf(&mut self, code: i8, len: usize) -> Result<Value, DecodeError> {
        let start = self.at;
        let payload = self.segment(len)?;
        if let (ext::SEGMENT, Some(segments)) = (code, &mut self.segments) {
            let value = ext::segment(&payload, segments, &mut self.budget);
            return value.map_err(|error| error.at_offset(start));
        }
        ext::leaf(code, &payload, &mut self.budget).map_err(|error| error.shifted(start))
    }

    /// Enters a tuple of this many bytes. Its items are read in place, and must end where the tuple ends. Returns the
    /// end of what encloses it, and the count of its items.
    pub(crate) fn begin_tuple(&mut self, len: usize) -> Result<(usize, usize), DecodeError> {
        let inside = self.take(len)?;
        let outer_end = std::mem::replace(&mut self.end, inside.end);
        self.at = inside.start;
        Ok((outer_end, self.tuple_len()?))
    }

    pub(crate) fn end_tuple(&mut self, outer_end: usize) -> Result<(), DecodeError> {
        self.finish("more bytes in a tuple than its items")?;
        self.end = outer_end;
        Ok(())
    }

    fn tuple(&mut self, depth: usize) -> Result<Vec<Value>, DecodeError> {
        let len = self.tuple_len()?;
        self.items(len, depth)
    }

    fn tuple_len(&mut self) -> Result<usize, DecodeError> {
        let start = self.at;
        match self.head()? {
            Token::List(len) => Ok(len),
            _ => Err(DecodeError::malformed("a tuple without the header of its items").at_offset(start)),
        }
    }

    fn finish(&self, message: &str) -> Result<(), DecodeError> {
        if self.at == self.end { Ok(()) } else { Err(DecodeError::malformed(message).at_offset(self.at)) }
    }

    /// A length of 1, 2 or 4 bytes, for a `width` of 0, 1 or 2.
    fn len(&mut self, width: u8) -> Result<usize, DecodeError> {
        let len = match width {
            0 => self.array().map(u8::from_be_bytes)?.into(),
            1 => self.array().map(u16::from_be_bytes)?.into(),
            _ => self.array().map(u32::from_be_bytes)?,
        };
        usize::try_from(len).map_err(|_| DecodeError::malformed("a length beyond memory").at_offset(self.at))
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let range = self.take(N)?;
        Ok(self.bytes[range].try_into().expect("a slice of N bytes"))
    }

    /// Skips `len` bytes and returns their range.
    pub(super) fn take(&mut self, len: usize) -> Result<Range<usize>, DecodeError> {
        let start = self.at;
        if len > self.end - start {
            return Err(
                DecodeError::malformed(format!("{len} bytes are needed, but the input ends before")).at_offset(start)
            );
        }
        self.at += len;
        Ok(start..self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading as a type relies on it: an input that passes the check is not counted again.
    #[test]
    fn the_check_refuses_what_reading_would_refuse() {
        let limits = DecodeLimits { max_depth: 3, max_elements: 5, max_string_bytes: 4, ..DecodeLimits::default() };
        let cases: [(&[u8], Option<&str>); 14] = [
            (b"\x91\x91\x91\x01", None),
            (b"\x91\x91\x91\x90", Some("max_depth")),
            (b"\x91\x92\x01\x92\x01\x02", None),
            (b"\x92\x91\x90\x91\x91\x90", Some("max_depth")),
            (b"\x81\xa1a\x81\xa1a\x81\xa1a\x01", None),
            (b"\x81\xa1a\x81\xa1a\x81\xa1a\x80", Some("max_depth")),
            (b"\x82\xa1a\x91\x90\xa1b\x91\x91\x90", Some("max_depth")),
            (b"\x95\x01\x02\x03\x04\x05", None),
            (b"\x92\x94\x01\x02\x03\x04\x05", Some("max_elements")),
            (b"\x92\x82\xa1a\x01\xa1b\x02\x82\xa1a\x01\xa1b\x02", Some("max_elements")),
            (b"\xa4abcd", None),
            (b"\xa5abcde", Some("max_string_bytes")),
            (b"\x81\xa5abcde\x01", Some("max_string_bytes")),
            (b"\xc4\x04abcd", None),
        ];
        for (input, refused) in cases {
            let input = Bytes::from_static(input);
            for outcome in [check(&input, &limits), decode(&input, &limits).map(drop)] {
                let limit = outcome.as_ref().err().and_then(DecodeError::limit);
                assert_eq!(
                    (outcome.is_err(), limit.map(|limit| limit.name)),
                    (refused.is_some(), refused),
                    "{input:?}"
                );
            }
        }
        let keys = check(&Bytes::from_static(&[0x81; 9]), &limits).unwrap_err();
        assert_eq!(keys.limit().map(|limit| limit.name), Some("max_depth"), "maps as keys of maps");
    }
}
