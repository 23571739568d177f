//! Writes an envelope: the tree into one small buffer, everything large by reference.

use bytes::Bytes;
use serde::Serialize;

use crate::envelope::layout::{Layout, PRELUDE_BYTES, SEGMENT_ALIGNMENT};
use crate::envelope::{Envelope, EnvelopeParts};
use crate::error::{DecodeError, EncodeError};
use crate::json::{self, Decimals};
use crate::limits::DecodeLimits;
use crate::msgpack::{self, INLINE_BELOW};
use crate::out::ChargedBuffer;
use crate::serde_impls::handover;
use crate::typed;
use crate::value::Value;

static ZEROS: [u8; SEGMENT_ALIGNMENT] = [0; SEGMENT_ALIGNMENT];

/// Writes a dynamic value.
pub(crate) fn encode(value: &Value) -> Result<Envelope, EncodeError> {
    let (tree, segments) = msgpack::encode_tree(value, PRELUDE_BYTES)?;
    assemble(tree, segments)
}

/// Writes a Rust type: by rmp-serde if no leaf is large, otherwise through a value that shares the large leaves.
pub(crate) fn encode_typed<T: Serialize>(value: &T) -> Result<Envelope, EncodeError> {
    let mut tree = ChargedBuffer::new(128);
    tree.extend_with(0, PRELUDE_BYTES);
    let (written, large) = handover::watch(INLINE_BELOW, || typed::msgpack::write(&mut tree, value));
    if large {
        return encode(&Value::from_payload(value)?);
    }
    tree.check()?;
    written.map_err(|error| typed::msgpack::unwritable(value, &error))?;
    assemble(tree, Vec::new())
}

/// Reads JSON text into an envelope, without a value of it.
pub(crate) fn from_json(
    bytes: &[u8],
    limits: &DecodeLimits,
    decimals: Option<&Decimals>,
) -> Result<Envelope, DecodeError> {
    let tree = json::to_tree(bytes, PRELUDE_BYTES, limits, decimals)?;
    Ok(assemble(tree, Vec::new())?)
}

/// Puts MessagePack that was checked into an envelope as it is.
pub(crate) fn from_msgpack(bytes: &[u8]) -> Result<Envelope, EncodeError> {
    let mut tree = ChargedBuffer::new(PRELUDE_BYTES + bytes.len());
    tree.extend_with(0, PRELUDE_BYTES);
    tree.extend_from_slice(bytes);
    tree.check()?;
    assemble(tree, Vec::new())
}

/// Adds the pieces of a segment, after the padding before it.
pub(super) fn push_segment(
    parts: &mut Vec<Bytes>,
    end: &mut usize,
    start: usize,
    pieces: impl IntoIterator<Item = Bytes>,
) {
    if start > *end {
        parts.push(Bytes::from_static(&ZEROS[..start - *end]));
    }
    *end = start;
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        *end += piece.len();
        parts.push(piece);
    }
}

/// Joins the tree, which starts with room for the prelude, with its segments, each in one or more pieces.
fn assemble(mut tree: ChargedBuffer, segments: Vec<Vec<Bytes>>) -> Result<Envelope, EncodeError> {
    let tree_len = u32::try_from(tree.len() - PRELUDE_BYTES)
        .map_err(|_| EncodeError::new("", "a tree longer than the 32-bit length of an envelope"))?;
    if segments.is_empty() {
        let len = tree.len();
        tree.bytes_mut()[..PRELUDE_BYTES].copy_from_slice(&Layout::prelude(tree_len, 0, len));
        return Ok(Envelope { parts: EnvelopeParts::One(tree.into_bytes()?), len });
    }
    let lengths: Vec<usize> = segments.iter().map(|pieces| pieces.iter().map(Bytes::len).sum()).collect();
    let (mut head, len) = Layout::write(tree_len, &lengths);
    head.extend_from_slice(&tree.as_slice()[PRELUDE_BYTES..]);
    drop(tree);
    let mut end = head.len().next_multiple_of(SEGMENT_ALIGNMENT);
    head.extend_with(0, end - head.len());
    let mut parts = vec![head.into_bytes()?];
    for (length, pieces) in lengths.into_iter().zip(segments) {
        let start = end.next_multiple_of(SEGMENT_ALIGNMENT);
        push_segment(&mut parts, &mut end, start, pieces);
        debug_assert_eq!(end, start + length);
    }
    // No segment is empty, so none ends in padding that nothing follows.
    Ok(Envelope { parts: EnvelopeParts::Many(parts), len })
}
