//! Writes the tree of an envelope as JSON, without a [`Value`](crate::Value) of it: only leaves are built, one at a
//! time.
//!
//! The result is that of decoding and encoding. The tree was checked when it arrived, or written here.

use std::ops::Range;

use bytes::Bytes;

use super::encode::{leaf, separate, write, write_base64, write_list};
use crate::error::EncodeError;
use crate::limits::{DecodeLimits, MAX_DEPTH};
use crate::msgpack::{MsgpackDecoder, Segments, Token, ext};
use crate::out::ChargedBuffer;

/// Writes the tree of an envelope, which is part of `head`.
pub(crate) fn transcode(head: &Bytes, tree: Range<usize>, segments: Segments) -> Result<Bytes, EncodeError> {
    let mut out = ChargedBuffer::new(tree.len().max(128));
    let mut tree = Tree(MsgpackDecoder::of_tree(head, tree, segments, &DecodeLimits::UNLIMITED));
    tree.value(&mut out, 0)?;
    tree.0.finish_tree()?;
    Ok(out.into_bytes()?)
}

struct Tree<'a>(MsgpackDecoder<'a>);

impl Tree<'_> {
    fn value(&mut self, out: &mut ChargedBuffer, depth: usize) -> Result<(), EncodeError> {
        if depth > MAX_DEPTH {
            return Err(EncodeError::too_deep("value", MAX_DEPTH));
        }
        match self.0.head()? {
            Token::Leaf(value) => write(out, &value, depth),
            Token::Text(len) => leaf(out, self.0.str(len)?),
            Token::Bytes(len) => write_base64(out, &self.0.segment(len)?),
            Token::Extension(len) => self.extension(out, len, depth),
            Token::List(len) => self.list(out, len, depth + 1),
            Token::Map(len) => self.map(out, len, depth + 1),
        }
    }

    fn list(&mut self, out: &mut ChargedBuffer, len: usize, depth: usize) -> Result<(), EncodeError> {
        self.0.enter(len, 1, depth)?;
        write_list(out, len, |out, _| self.value(out, depth))
    }

    fn map(&mut self, out: &mut ChargedBuffer, len: usize, depth: usize) -> Result<(), EncodeError> {
        self.0.enter(len, 2, depth)?;
        out.push(b'{');
        out.check()?;
        for index in 0..len {
            separate(out, index);
            let key = self.0.key_len().and_then(|len| self.0.str(len))?;
            leaf(out, key)?;
            out.push(b':');
            self.value(out, depth).map_err(|error| error.in_key(key))?;
        }
        out.push(b'}');
        Ok(())
    }

    fn extension(&mut self, out: &mut ChargedBuffer, len: usize, depth: usize) -> Result<(), EncodeError> {
        let code = self.0.byte()?.cast_signed();
        if code != ext::TUPLE {
            return write(out, &self.0.leaf(code, len)?, depth);
        }
        let (outer_end, items) = self.0.begin_tuple(len)?;
        self.list(out, items, depth + 1)?;
        Ok(self.0.end_tuple(outer_end)?)
    }
}
