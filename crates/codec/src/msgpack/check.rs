//! Checks MessagePack that stays encoded, the tree of an envelope or a body: whatever [reading](super::decode) would
//! refuse is refused here, and nothing is built.
//!
//! The limits count what a later decoder allocates.

use std::ops::Range;

use bytes::Bytes;

use crate::error::DecodeError;
use crate::limits::{Budget, DecodeLimits, next_room};
use crate::msgpack::decode::{MsgpackDecoder, Token};
use crate::msgpack::{INLINE_BELOW, OpenKeys, Segments, ext};
use crate::value::{Map, Value};

/// Checks the tree of an envelope, which is part of `head`, and all its segments.
pub(crate) fn check_tree(
    head: &Bytes,
    tree: Range<usize>,
    segments: Segments,
    limits: &DecodeLimits,
) -> Result<(), DecodeError> {
    let mut check = TreeCheck::new(MsgpackDecoder::of_tree(head, tree, segments, limits));
    check.value(0)?;
    check.decoder.finish_tree()
}

/// Checks a body. Returns whether the tree of an envelope may hold it as it is: it has no leaf that belongs into a
/// segment.
pub(crate) fn check_body(bytes: &Bytes, limits: &DecodeLimits) -> Result<bool, DecodeError> {
    limits.check_bytes(bytes.len())?;
    let mut check = TreeCheck::new(MsgpackDecoder::new(bytes, Budget::new(limits)));
    check.value(0)?;
    check.decoder.finish_tree()?;
    Ok(check.largest < INLINE_BELOW)
}

struct TreeCheck<'a> {
    decoder: MsgpackDecoder<'a>,
    /// The keys of the open maps, each with its offset.
    keys: OpenKeys<&'a str>,
    /// Bytes of the largest byte string or extension in the tree.
    largest: usize,
}

impl<'a> TreeCheck<'a> {
    fn new(decoder: MsgpackDecoder<'a>) -> Self {
        Self { decoder, keys: OpenKeys::default(), largest: 0 }
    }

    fn value(&mut self, depth: usize) -> Result<(), DecodeError> {
        match self.decoder.head()? {
            Token::Leaf(_) => Ok(()),
            Token::Text(len) => self.decoder.str(len).map(drop),
            Token::Bytes(len) => {
                self.largest = self.largest.max(len);
                self.decoder.take(len).map(drop)
            }
            Token::Extension(len) => self.extension(len, depth),
            Token::List(len) => self.items(len, depth + 1),
            Token::Map(len) => self.map(len, depth + 1),
        }
    }

    fn items(&mut self, len: usize, depth: usize) -> Result<(), DecodeError> {
        self.decoder.enter(len, 1, depth)?;
        let mut capacity = 0;
        for index in 0..len {
            let at = self.decoder.at;
            let room = next_room(capacity, len);
            let claimed = self.decoder.budget.claim_room::<Value>((index, capacity), room);
            capacity = claimed.map_err(|error| error.in_index(index).at_offset(at))?;
            self.value(depth).map_err(|error| error.in_index(index))?;
        }
        Ok(())
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<(), DecodeError> {
        self.decoder.enter(len, 2, depth)?;
        let first = self.keys.open();
        let entries = self.entries(first, len, depth);
        // Whatever else is wrong comes after a key that is there twice.
        self.keys.close(first).and(entries)
    }

    /// The entries of a map whose keys begin at `first`.
    fn entries(&mut self, first: usize, len: usize, depth: usize) -> Result<(), DecodeError> {
        let mut capacity = 0;
        for index in 0..len {
            let start = self.decoder.at;
            let key = self.decoder.key_len().and_then(|len| self.decoder.str(len))?;
            self.keys.push(first, key, start)?;
            self.value(depth).map_err(|error| error.in_key(key))?;
            let claimed = Map::claim_room((index, capacity), len, &mut self.decoder.budget);
            capacity = claimed.map_err(|error| error.in_key(key).at_offset(start))?;
        }
        Ok(())
    }

    fn extension(&mut self, len: usize, depth: usize) -> Result<(), DecodeError> {
        let code = self.decoder.byte()?.cast_signed();
        let start = self.decoder.at;
        if code != ext::TUPLE {
            self.largest = self.largest.max(len);
            let payload = self.decoder.segment(len)?;
            let MsgpackDecoder { segments, budget, .. } = &mut self.decoder;
            return match (code, segments) {
                (ext::SEGMENT, Some(segments)) => {
                    ext::check_segment(&payload, segments, budget).map_err(|error| error.at_offset(start))
                }
                _ => ext::check_leaf(code, &payload, budget).map_err(|error| error.shifted(start)),
            };
        }
        let (outer_end, items) = self.decoder.begin_tuple(len)?;
        self.items(items, depth + 1)?;
        self.decoder.end_tuple(outer_end)
    }
}
