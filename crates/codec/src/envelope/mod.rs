//! The envelope: a MessagePack tree whose large leaves lie behind it, raw and aligned.
//!
//! What crosses a process or a node. Tensors, arrays of text, data frames and byte strings of 1 KiB and more become
//! *segments*; in the tree stands a reference. Writing copies no segment: [`Envelope`] is a list of pieces that share
//! the values' memory. Reading copies none out of one aligned buffer, and each at most once out of chunks
//! ([`EnvelopeDecoder`]).
//!
//! ```text
//!  byte  0      4        5      6      8            12          16            24
//!        ┌──────┬────────┬──────┬──────┬────────────┬───────────┬─────────────┬──────────────────┬──────┬─────────┬───
//!        │magic │version │flags │ zero │ tree bytes │ segments  │ total bytes │ segment lengths  │ tree │ zeros   │ segment 0 …
//!        │89 CBE│   1    │  0   │      │ u32 LE     │ n, u32 LE │ u64 LE      │ n × u64 LE       │      │ to 64·k │
//!        └──────┴────────┴──────┴──────┴────────────┴───────────┴─────────────┴──────────────────┴──────┴─────────┴───
//! ```
//!
//! * Each segment starts at a multiple of 64 bytes from the start of the envelope; zeros fill the gap before it.
//!   Nothing follows the last one. With n = 0 the envelope ends with the tree.
//! * The tree is MessagePack as on [`crate::msgpack`], and extension 7 stands for a segment: one byte says of what (0
//!   bytes; 3, 4, 5, 6 as the extension of that code), three are zero, four are its number (u32 LE); for 3 and 4 the
//!   header of the tensor follows. The references come in the order of the segments, each once.
//! * An unknown version or flag is refused as unsupported: a flag is for what a reader must understand. What a reader
//!   may ignore does not belong into this format.
//!
//! ```
//! use callboard_codec::{DecodeLimits, EnvelopeDecoder, Map, Tensor, Value};
//!
//! let image = Tensor::from_vec(&[1000], vec![0.5_f32; 1000])?;
//! let value = Value::from(Map::from_iter([("image", Value::from(image.clone()))]));
//!
//! let envelope = value.to_envelope().unwrap();
//! assert!(envelope.parts().iter().any(|part| part.as_ptr() == image.data().as_ptr())); // the very bytes
//!
//! let mut decoder = EnvelopeDecoder::new(&DecodeLimits::default());
//! for part in envelope.into_parts() {
//!     decoder.push(part).unwrap();
//! }
//! assert_eq!(decoder.finish().unwrap(), value);
//! # Ok::<(), callboard_codec::TensorError>(())
//! ```

mod encode;
mod fill;
mod layout;
mod stream;

use std::any::TypeId;
use std::ops::Range;

use bytes::Bytes;

pub(crate) use encode::{encode, encode_typed};
pub use stream::EnvelopeDecoder;

use crate::DecodeLimits;
use crate::account::ChargeError;
use crate::error::DecodeError;
use crate::msgpack;
use crate::out;
use crate::payload::{self, Data};
use crate::value::Value;
use layout::Layout;

/// Leaves of fewer bytes stand in the tree: a segment costs an entry, padding, and a piece to send.
pub(crate) const INLINE_BELOW: usize = 1024;

/// A value as it is sent: pieces to be written one behind the other. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Envelope {
    parts: Parts,
    len: usize,
}

/// Small envelopes, which are most, are one piece.
#[derive(Debug, Clone)]
enum Parts {
    One(Bytes),
    Many(Vec<Bytes>),
}

#[expect(clippy::len_without_is_empty, reason = "no envelope is empty")]
impl Envelope {
    /// The pieces; all but the first, and the zeros between, share the memory of the value.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    /// The pieces, to be sent.
    #[must_use]
    pub fn into_parts(self) -> Vec<Bytes> {
        match self.parts {
            Parts::One(part) => vec![part],
            Parts::Many(parts) => parts,
        }
    }

    /// The same envelope with each piece replaced by one of the same bytes, such as one that keeps something alive.
    #[must_use]
    pub fn map_parts(self, map: impl FnMut(Bytes) -> Bytes) -> Self {
        let len = self.len;
        let mut map = map;
        let parts = match self.parts {
            Parts::One(part) => Parts::One(map(part)),
            Parts::Many(parts) => Parts::Many(parts.into_iter().map(map).collect()),
        };
        Self { parts, len }
    }

    /// Bytes of all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// As [`into_bytes`](Self::into_bytes), with the copy charged to the scope's account.
    pub(crate) fn try_into_bytes(self) -> Result<Bytes, ChargeError> {
        match self.parts {
            Parts::One(only) => Ok(only),
            Parts::Many(parts) => out::concat(&parts)?.into_bytes(),
        }
    }

    /// All pieces in one buffer: copies the segments once, unless there are none. The copy is charged to no account.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.parts {
            Parts::One(only) => only,
            Parts::Many(parts) => {
                let mut all = Vec::with_capacity(self.len);
                parts.iter().for_each(|part| all.extend_from_slice(part));
                all.into()
            }
        }
    }
}

/// An envelope taken apart, with nothing in the tree looked at yet.
pub(crate) struct Opened {
    /// Everything up to the end of the tree.
    head: Bytes,
    tree: Range<usize>,
    segments: Segments,
}

/// Segments that are taken in their order, with the byte at which each lies.
#[derive(Debug)]
pub(crate) struct Segments {
    parts: Vec<(usize, Bytes)>,
    next: usize,
}

impl Segments {
    /// The segment of a number, which must be the one after the last that was taken.
    pub(crate) fn take(&mut self, number: usize) -> Result<(usize, Bytes), DecodeError> {
        match self.parts.get_mut(number) {
            Some((start, segment)) if number == self.next => {
                self.next += 1;
                Ok((*start, std::mem::take(segment)))
            }
            _ => Err(DecodeError::malformed(format!("segment {number} where {} comes next", self.next))),
        }
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.next == self.parts.len() {
            true => Ok(()),
            false => Err(DecodeError::malformed(format!("segment {} is in no place of the tree", self.next))),
        }
    }
}

impl Opened {
    /// Takes one buffer apart; the segments are slices of it.
    fn of(bytes: &Bytes, limits: &DecodeLimits) -> Result<Self, DecodeError> {
        limits.check_bytes(bytes.len())?;
        let layout = Layout::read(bytes, limits)?.ok_or_else(|| layout::short(bytes.len()))?;
        match bytes.len().checked_sub(layout.total) {
            None => return Err(layout::short(bytes.len())),
            Some(1..) => return Err(layout::trailing(layout.total)),
            Some(0) => {}
        }
        let mut parts = Vec::with_capacity(layout.segments.len());
        let mut end = layout.tree.end;
        for segment in &layout.segments {
            layout::check_padding(&bytes[end..segment.start], end)?;
            parts.push((segment.start, bytes.slice(segment.clone())));
            end = segment.end;
        }
        Ok(Self { head: bytes.slice(..layout.tree.end), tree: layout.tree, segments: Segments { parts, next: 0 } })
    }

    fn value(self, limits: &DecodeLimits) -> Result<Value, DecodeError> {
        msgpack::decode_tree(&self.head, self.tree, self.segments, limits)
    }

    /// Straight into the type where the tree is all there is, through a value that shares the segments otherwise.
    fn typed<T: Data>(self, limits: &DecodeLimits) -> Result<T, DecodeError> {
        match self.segments.parts.is_empty() && TypeId::of::<T>() != TypeId::of::<Value>() {
            true => {
                let start = self.tree.start;
                msgpack::from_bytes(&self.head.slice(self.tree), limits).map_err(|error| error.shifted(start))
            }
            false => payload::from_value(self.value(limits)?),
        }
    }
}

/// Reads one buffer.
pub(crate) fn decode(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    Opened::of(bytes, limits)?.value(limits)
}

/// Reads one buffer into a Rust type.
pub(crate) fn decode_typed<T: Data>(bytes: &Bytes, limits: &DecodeLimits) -> Result<T, DecodeError> {
    Opened::of(bytes, limits)?.typed(limits)
}
