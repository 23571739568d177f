//! Checks the tree of an envelope that stays encoded: whatever [reading](super::decode) would refuse is refused here,
//! and nothing is built.
//!
//! The limits count what a later decoder allocates. Only the keys of open maps are remembered, and charged meanwhile.

use std::ops::Range;

use bytes::Bytes;

use crate::account::TemporaryCharge;
use crate::error::DecodeError;
use crate::limits::{DecodeLimits, next_room};
use crate::msgpack::decode::{MsgpackDecoder, Token, same_key};
use crate::msgpack::{Segments, ext};
use crate::value::{Map, Value};

/// Checks the tree of an envelope, which is part of `head`, and all its segments.
pub(crate) fn check_tree(
    head: &Bytes,
    tree: Range<usize>,
    segments: Segments,
    limits: &DecodeLimits,
) -> Result<(), DecodeError> {
    let decoder = MsgpackDecoder::of_tree(head, tree, segments, limits);
    let mut check = TreeCheck { decoder, keys: Vec::new(), charge: TemporaryCharge::new() };
    check.value(0)?;
    check.decoder.finish_tree()
}

struct TreeCheck<'a> {
    decoder: MsgpackDecoder<'a>,
    /// The keys of the open maps, the innermost last, each with its offset.
    keys: Vec<(&'a str, usize)>,
    charge: TemporaryCharge,
}

impl<'a> TreeCheck<'a> {
    fn value(&mut self, depth: usize) -> Result<(), DecodeError> {
        match self.decoder.head()? {
            Token::Leaf(_) => Ok(()),
            Token::Text(len) => self.decoder.str(len).map(drop),
            Token::Bytes(len) => self.decoder.take(len).map(drop),
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
        let (first, mut capacity) = (self.keys.len(), 0);
        for index in 0..len {
            let start = self.decoder.at;
            let key = self.key(first, start)?;
            self.value(depth).map_err(|error| error.in_key(key))?;
            let claimed = Map::claim_room((index, capacity), len, &mut self.decoder.budget);
            capacity = claimed.map_err(|error| error.in_key(key).at_offset(start))?;
        }
        self.keys_are_unique(first)?;
        self.keys.truncate(first);
        Ok(())
    }

    /// The next key of the map whose keys begin at `first`.
    fn key(&mut self, first: usize, start: usize) -> Result<&'a str, DecodeError> {
        let len = self.decoder.key_len()?;
        let key = self.decoder.str(len)?;
        let known = &self.keys[first..];
        if known.len() < FEW_KEYS && known.iter().any(|(other, _)| *other == key) {
            return Err(same_key(key, start));
        }
        if self.keys.len() == self.keys.capacity() {
            let room = (self.keys.len() * 2).max(FEW_KEYS);
            self.charge.grow((room - self.keys.len()) * size_of::<(&str, usize)>())?;
            self.keys.reserve_exact(room - self.keys.len());
        }
        self.keys.push((key, start));
        Ok(key)
    }

    /// The keys of a large map are compared when all of them are known, in order, so that no key costs a look at all
    /// others.
    fn keys_are_unique(&mut self, first: usize) -> Result<(), DecodeError> {
        let keys = &mut self.keys[first..];
        if keys.len() <= FEW_KEYS {
            return Ok(());
        }
        keys.sort_unstable();
        let again = keys.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1]);
        match again.min_by_key(|(_, at)| *at) {
            Some((key, at)) => Err(same_key(key, at)),
            None => Ok(()),
        }
    }

    fn extension(&mut self, len: usize, depth: usize) -> Result<(), DecodeError> {
        let code = self.decoder.byte()?.cast_signed();
        let start = self.decoder.at;
        if code != ext::TUPLE {
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

/// Maps with at most this many keys are checked key by key.
const FEW_KEYS: usize = 16;
