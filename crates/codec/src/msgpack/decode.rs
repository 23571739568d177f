//! Reads MessagePack into a [`Value`], with every length held against the budget and the rest of the input before
//! anything is reserved for it.

use std::ops::Range;

use bytes::Bytes;

use crate::envelope::Segments;
use crate::error::DecodeError;
use crate::limits::{Budget, DecodeLimits};
use crate::msgpack::ext;
use crate::value::{Map, Value};

/// Reads one value and refuses anything behind it.
pub(crate) fn decode(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    limits.check_bytes(bytes.len())?;
    let mut decoder = Decoder::new(bytes, Budget::new(limits));
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
    let budget = Budget::new(limits);
    let mut decoder = Decoder { bytes: head, at: tree.start, end: tree.end, budget, segments: Some(segments) };
    let value = decoder.value(0)?;
    decoder.finish("more input after the value")?;
    let segments = decoder.segments.as_ref().expect("was given");
    segments.finish().map_err(|error| error.at_offset(decoder.end)).map(|()| value)
}

/// Reads a tuple's items out of a payload of its own.
pub(crate) fn list_payload(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    let mut decoder = Decoder::new(bytes, Budget::new(limits));
    let items = decoder.tuple(1)?;
    decoder.finish("more input after the tuple").map(|()| Value::Tuple(items))
}

/// Holds an input against the limits, for a decoder that has none of its own.
pub(crate) fn check(bytes: &Bytes, limits: &DecodeLimits) -> Result<(), DecodeError> {
    Decoder::new(bytes, Budget::new(limits)).skip(0)
}

struct Decoder<'a> {
    bytes: &'a Bytes,
    at: usize,
    /// Where the value at hand must end: the end of the input, or of the tuple around it.
    end: usize,
    budget: Budget<'a>,
    /// What references may refer to, inside an envelope.
    segments: Option<Segments>,
}

/// What a marker says: a whole value, or what follows and how long it is.
enum Head {
    Leaf(Value),
    Text(usize),
    Bytes(usize),
    Extension(usize),
    List(usize),
    Map(usize),
}

fn leaf(value: impl Into<Value>) -> Head {
    Head::Leaf(value.into())
}

impl<'a> Decoder<'a> {
    fn new(bytes: &'a Bytes, budget: Budget<'a>) -> Self {
        Self { bytes, at: 0, end: bytes.len(), budget, segments: None }
    }

    /// Reads the value at hand, which lies inside `depth` lists, tuples and maps.
    fn value(&mut self, depth: usize) -> Result<Value, DecodeError> {
        match self.head()? {
            Head::Leaf(value) => Ok(value),
            Head::Text(len) => self.text(len).map(Value::Str),
            Head::Bytes(len) => self.segment(len).map(Value::Bytes),
            Head::Extension(len) => self.extension(len, depth),
            Head::List(len) => self.items(len, depth + 1).map(Value::List),
            Head::Map(len) => self.map(len, depth + 1),
        }
    }

    /// Steps over the value at hand and asks the budget as reading it would, without making anything.
    fn skip(&mut self, depth: usize) -> Result<(), DecodeError> {
        match self.head()? {
            Head::Leaf(_) => Ok(()),
            Head::Text(len) => self.budget.check_string(len).and_then(|()| self.take(len)).map(drop),
            Head::Bytes(len) => self.segment(len).map(drop),
            Head::Extension(len) => self.byte().and_then(|_code| self.segment(len)).map(drop),
            Head::List(len) => {
                self.enter(len, 1, depth + 1)?;
                (0..len).try_for_each(|_| self.skip(depth + 1))
            }
            Head::Map(len) => {
                self.enter(len, 2, depth + 1)?;
                (0..len).try_for_each(|_| self.skip(depth + 1).and_then(|()| self.skip(depth + 1)))
            }
        }
    }

    /// Reads a marker with what belongs to it: a number, or the length of what follows.
    fn head(&mut self) -> Result<Head, DecodeError> {
        let start = self.at;
        match self.byte()? {
            marker @ ..=0x7f => Ok(leaf(marker)),
            marker @ 0x80..=0x8f => Ok(Head::Map(usize::from(marker & 0x0f))),
            marker @ 0x90..=0x9f => Ok(Head::List(usize::from(marker & 0x0f))),
            marker @ 0xa0..=0xbf => Ok(Head::Text(usize::from(marker & 0x1f))),
            0xc0 => Ok(Head::Leaf(Value::Null)),
            0xc1 => Err(DecodeError::malformed("a marker that MessagePack never uses").at_offset(start)),
            0xc2 => Ok(leaf(false)),
            0xc3 => Ok(leaf(true)),
            marker @ 0xc4..=0xc6 => self.len(marker - 0xc4).map(Head::Bytes),
            marker @ 0xc7..=0xc9 => self.len(marker - 0xc7).map(Head::Extension),
            0xca => self.array().map(|bytes| leaf(f32::from_be_bytes(bytes))),
            0xcb => self.array().map(|bytes| leaf(f64::from_be_bytes(bytes))),
            0xcc => self.array().map(|bytes| leaf(u8::from_be_bytes(bytes))),
            0xcd => self.array().map(|bytes| leaf(u16::from_be_bytes(bytes))),
            0xce => self.array().map(|bytes| leaf(u32::from_be_bytes(bytes))),
            0xcf => self.array().map(|bytes| leaf(u64::from_be_bytes(bytes))),
            0xd0 => self.array().map(|bytes| leaf(i8::from_be_bytes(bytes))),
            0xd1 => self.array().map(|bytes| leaf(i16::from_be_bytes(bytes))),
            0xd2 => self.array().map(|bytes| leaf(i32::from_be_bytes(bytes))),
            0xd3 => self.array().map(|bytes| leaf(i64::from_be_bytes(bytes))),
            marker @ 0xd4..=0xd8 => Ok(Head::Extension(1 << (marker - 0xd4))),
            marker @ 0xd9..=0xdb => self.len(marker - 0xd9).map(Head::Text),
            marker @ 0xdc..=0xdd => self.len(marker - 0xdb).map(Head::List),
            marker @ 0xde..=0xdf => self.len(marker - 0xdd).map(Head::Map),
            marker @ 0xe0.. => Ok(leaf(marker.cast_signed())),
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
                return Err(DecodeError::malformed("the same key twice").in_key(&key).at_offset(start));
            }
            let value = self.value(depth).map_err(|error| error.in_key(&key))?;
            map.make_room(len, &mut self.budget).map_err(|error| error.in_key(&key).at_offset(start))?;
            map.insert(key, value);
        }
        Ok(Value::Map(map))
    }

    /// Allows a list or map of `len` items of at least `least` bytes each.
    fn enter(&mut self, len: usize, least: usize, depth: usize) -> Result<(), DecodeError> {
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
        let start = self.at;
        match self.head()? {
            Head::Text(len) => self.text(len),
            _ => Err(DecodeError::unsupported("a map key that is not a string").at_offset(start)),
        }
    }

    fn text(&mut self, len: usize) -> Result<String, DecodeError> {
        let start = self.at;
        self.budget.check_string(len).map_err(|error| error.at_offset(start))?;
        let bytes = &self.bytes[self.take(len)?];
        let text = std::str::from_utf8(bytes)
            .map_err(|error| DecodeError::malformed("invalid UTF-8").at_offset(start + error.valid_up_to()))?;
        self.budget.take_text(len).map_err(|error| error.at_offset(start))?;
        Ok(text.to_owned())
    }

    /// A byte string, sliced out of the input and not copied.
    fn segment(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let start = self.at;
        self.budget.check_segment(len).map_err(|error| error.at_offset(start))?;
        Ok(self.bytes.slice(self.take(len)?))
    }

    fn extension(&mut self, len: usize, depth: usize) -> Result<Value, DecodeError> {
        let code = self.byte()?.cast_signed();
        let start = self.at;
        if code != ext::TUPLE {
            let payload = self.segment(len)?;
            if let (ext::SEGMENT, Some(segments)) = (code, &mut self.segments) {
                let value = ext::segment(&payload, segments, &mut self.budget);
                return value.map_err(|error| error.at_offset(start));
            }
            return ext::leaf(code, &payload, &mut self.budget).map_err(|error| error.shifted(start));
        }
        let inside = self.take(len)?;
        // The items are read in place, and must end where the tuple ends.
        let outer_end = std::mem::replace(&mut self.end, inside.end);
        self.at = inside.start;
        let items = self.tuple(depth + 1)?;
        self.finish("more bytes in a tuple than its items")?;
        self.end = outer_end;
        Ok(Value::Tuple(items))
    }

    fn tuple(&mut self, depth: usize) -> Result<Vec<Value>, DecodeError> {
        let start = self.at;
        let Head::List(len) = self.head()? else {
            return Err(DecodeError::malformed("a tuple without the header of its items").at_offset(start));
        };
        self.items(len, depth)
    }

    fn finish(&self, message: &str) -> Result<(), DecodeError> {
        match self.at == self.end {
            true => Ok(()),
            false => Err(DecodeError::malformed(message).at_offset(self.at)),
        }
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

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let range = self.take(N)?;
        Ok(self.bytes[range].try_into().expect("a slice of N bytes"))
    }

    /// Steps over `len` bytes, if there are so many.
    fn take(&mut self, len: usize) -> Result<Range<usize>, DecodeError> {
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
