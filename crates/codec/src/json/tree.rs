//! Reads JSON text into the tree of an envelope, without a [`Value`] of it.
//!
//! It writes the same bytes as reading a value and encoding it, under the same limits. Refused input is read again by
//! the decoder for values, whose error names the place.

use std::borrow::Cow;

use super::decimals::Decimals;
use super::decode::{JsonDecoder, whole};
use crate::account::ChargeError;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{DecodeLimits, next_room};
use crate::msgpack::{LateWriter, OpenKeys};
use crate::out::ChargedBuffer;
use crate::value::{Map, Value};

/// Reads one value into a tree after `before` bytes for another header. Only white space may follow the value.
/// `decimals`: the numbers whose digits become texts.
pub(crate) fn to_tree(
    bytes: &[u8],
    before: usize,
    limits: &DecodeLimits,
    decimals: Option<&Decimals>,
) -> Result<ChargedBuffer, DecodeError> {
    match decimals {
        None => tree::<false>(bytes, before, limits, None),
        Some(_) => tree::<true>(bytes, before, limits, decimals),
    }
}

fn tree<const DIGITS: bool>(
    bytes: &[u8],
    before: usize,
    limits: &DecodeLimits,
    decimals: Option<&Decimals>,
) -> Result<ChargedBuffer, DecodeError> {
    use DecodeErrorKind::{Exhausted, LimitExceeded, Stopped};
    write::<DIGITS>(bytes, before, limits, decimals).map_err(|error| match error.kind() {
        Exhausted | Stopped => error,
        first => match whole::<DIGITS>(bytes, limits, decimals).err() {
            // The value takes more memory than the tree, which may have none of it.
            Some(again) if matches!(again.kind(), Exhausted | Stopped | LimitExceeded) && again.kind() != first => {
                error
            }
            Some(again) => again,
            None => error,
        },
    })
}

fn write<const DIGITS: bool>(
    bytes: &[u8],
    before: usize,
    limits: &DecodeLimits,
    decimals: Option<&Decimals>,
) -> Result<ChargedBuffer, DecodeError> {
    let json = JsonDecoder::<DIGITS>::new(bytes, limits, decimals)?;
    let out = LateWriter::new(before, bytes.len() + LEAF_BYTES);
    let mut writer = TreeWriter { json, out, keys: OpenKeys::default() };
    if let Err(error) = writer.value(0).and_then(|()| writer.json.finish()) {
        writer.out.discard();
        return Err(error);
    }
    Ok(writer.out.finish()?)
}

struct TreeWriter<'a, const DIGITS: bool> {
    json: JsonDecoder<'a, DIGITS>,
    out: LateWriter,
    keys: OpenKeys<Cow<'a, str>>,
}

impl<const DIGITS: bool> TreeWriter<'_, DIGITS> {
    /// Writes the next value, which lies inside `depth` lists and maps.
    fn value(&mut self, depth: usize) -> Result<(), DecodeError> {
        self.make_room()?;
        match self.json.peek() {
            Some(b'{') => self.map(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => self.text(),
            next => {
                let leaf = self.json.leaf(next)?;
                Ok(self.out.leaf(&leaf)?)
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<(), DecodeError> {
        let outer = self.json.decimals;
        self.json.open(depth)?;
        let begun = self.out.begin_list();
        let (mut len, mut capacity, mut is_over) = (0, 0, self.json.take(b']'));
        while !is_over {
            if DIGITS {
                self.json.decimals = outer.and_then(|outer| outer.item(len));
            }
            self.json.element()?;
            self.value(depth)?;
            capacity = self.json.budget.claim_room::<Value>((len, capacity), next_room(capacity, 0))?;
            len += 1;
            is_over = self.json.closes(b']', "expected , or ] after a list item")?;
        }
        Ok(self.out.end(begun, len)?)
    }

    fn map(&mut self, depth: usize) -> Result<(), DecodeError> {
        let outer = self.json.decimals;
        self.json.open(depth)?;
        let (begun, first) = (self.out.begin_map(), self.keys.open());
        let (mut len, mut capacity, mut is_over) = (0, 0, self.json.take(b'}'));
        while !is_over {
            let at = self.json.begin_key()?;
            let key = match self.json.plain_text()? {
                Some(key) => Cow::Borrowed(key),
                None => Cow::Owned(self.json.string()?),
            };
            self.out.text(&key)?;
            self.json.end_key()?;
            if DIGITS {
                self.json.decimals = outer.and_then(|outer| outer.field(&key));
            }
            self.keys.push(first, key, at)?;
            self.json.element()?;
            self.value(depth)?;
            capacity = Map::claim_room((len, capacity), 0, &mut self.json.budget)?;
            len += 1;
            is_over = self.json.closes(b'}', "expected , or } after a map entry")?;
        }
        self.keys.close(first)?;
        Ok(self.out.end(begun, len)?)
    }

    fn text(&mut self) -> Result<(), DecodeError> {
        if let Some(text) = self.json.plain_text()? {
            return Ok(self.out.text(text)?);
        }
        let (start, begun) = (self.json.at, self.out.begin_text());
        let text_at = self.out.buffer().len();
        self.json.at += 1;
        loop {
            let buffer = self.out.buffer();
            buffer.extend_from_slice(self.json.piece().as_bytes());
            let len = buffer.len() - text_at;
            self.json.budget.check_string(len)?;
            match self.json.after_piece(start)? {
                Some(char) => buffer.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                None => return Ok(self.out.end(begun, len)?),
            }
        }
    }

    /// Makes room for the next value and the rest of the input. Only floats and texts of 64 KiB take more bytes than
    /// their source, so this seldom grows; doubling would take more than [`DecodeLimits`] promise.
    #[inline]
    fn make_room(&mut self) -> Result<(), ChargeError> {
        let (rest, buffer) = (self.json.rest(), self.out.buffer());
        if buffer.room() >= rest + LEAF_BYTES {
            return Ok(());
        }
        let ahead = buffer.len().saturating_sub(self.json.at);
        buffer.reserve_exact(rest + 2 * ahead + LEAF_BYTES);
        buffer.check()
    }
}

/// More than a header or number takes.
const LEAF_BYTES: usize = 16;
