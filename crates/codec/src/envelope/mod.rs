//! The envelope: a MessagePack tree, followed by its large leaves, raw and aligned.
//!
//! It carries values to other processes and nodes. Tensors, arrays of text, data frames and byte strings of 1 KiB and
//! more become *segments*; the tree refers to them. Writing copies no segment: [`Envelope`] is a list of pieces that
//! share the values' memory. Reading one aligned buffer copies no segment, and reading chunks copies each at most once
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
//! * The tree is MessagePack as on [`crate::msgpack`], and extension 7 refers to a segment: one byte is its kind (0
//!   bytes; 3, 4, 5, 6 as the extension of that code), three are zero, four are its number (u32 LE); for 3 and 4 the
//!   header of the tensor follows. The references are in the order of the segments, each once.
//! * An unknown version or flag is refused as unsupported: a reader must understand every flag.
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

pub(crate) use encode::{encode, encode_typed, from_json, from_msgpack};
pub use stream::EnvelopeDecoder;

use crate::account::ChargeError;
use crate::error::{DecodeError, EncodeError};
use crate::json;
use crate::limits::DecodeLimits;
use crate::msgpack::{self, Segments};
use crate::out;
use crate::typed::{self, Data};
use crate::value::Value;
use layout::Layout;

/// An encoded value: pieces to be written in order. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Envelope {
    parts: EnvelopeParts,
    len: usize,
}

/// Most envelopes are small and have one piece.
#[derive(Debug, Clone)]
enum EnvelopeParts {
    One(Bytes),
    Many(Vec<Bytes>),
}

#[expect(clippy::len_without_is_empty, reason = "no envelope is empty")]
impl Envelope {
    /// An envelope that another encoder has written. It is not checked: its reader does that.
    #[must_use]
    pub fn from_bytes(encoded: Bytes) -> Self {
        Self { len: encoded.len(), parts: EnvelopeParts::One(encoded) }
    }

    /// The pieces. All but the first and the padding share the memory of the value.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        match &self.parts {
            EnvelopeParts::One(part) => std::slice::from_ref(part),
            EnvelopeParts::Many(parts) => parts,
        }
    }

    /// The pieces, to be sent.
    #[must_use]
    pub fn into_parts(self) -> Vec<Bytes> {
        match self.parts {
            EnvelopeParts::One(part) => vec![part],
            EnvelopeParts::Many(parts) => parts,
        }
    }

    /// Maps each piece to a piece with the same bytes, such as a piece that keeps its owner alive.
    #[must_use]
    pub fn map_parts(self, map: impl FnMut(Bytes) -> Bytes) -> Self {
        let len = self.len;
        let mut map = map;
        let parts = match self.parts {
            EnvelopeParts::One(part) => EnvelopeParts::One(map(part)),
            EnvelopeParts::Many(parts) => EnvelopeParts::Many(parts.into_iter().map(map).collect()),
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
            EnvelopeParts::One(only) => Ok(only),
            EnvelopeParts::Many(parts) => out::concat(&parts)?.into_bytes(),
        }
    }

    /// All pieces in one buffer: copies the segments, if any, once. The copy is charged to no account.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.parts {
            EnvelopeParts::One(only) => only,
            EnvelopeParts::Many(parts) => {
                let mut all = Vec::with_capacity(self.len);
                parts.iter().for_each(|part| all.extend_from_slice(part));
                all.into()
            }
        }
    }
}

impl Value {
    /// The value as an envelope, in pieces that share its tensors, frames and byte strings.
    ///
    /// # Errors
    ///
    /// When it is nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH), or a frame has columns that do not travel.
    pub fn to_envelope(&self) -> Result<Envelope, EncodeError> {
        encode(self)
    }
}

/// A received envelope whose tree is not decoded yet.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedEnvelope {
    /// Everything up to the end of the tree.
    head: Bytes,
    tree: Range<usize>,
    segments: Segments,
}

impl ReceivedEnvelope {
    /// Splits one buffer; the segments are slices of it.
    pub(crate) fn from_buffer(bytes: &Bytes, limits: &DecodeLimits) -> Result<Self, DecodeError> {
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
        Ok(Self { head: bytes.slice(..layout.tree.end), tree: layout.tree, segments: Segments::new(parts) })
    }

    /// Checks what reading would check, and builds nothing.
    pub(crate) fn check(&self, limits: &DecodeLimits) -> Result<(), DecodeError> {
        msgpack::check_tree(&self.head, self.tree.clone(), self.segments.clone(), limits)
    }

    /// Its value as JSON, without the value.
    pub(crate) fn json(self) -> Result<Bytes, EncodeError> {
        json::transcode(&self.head, self.tree, self.segments)
    }

    /// The envelope in pieces that share what was received.
    pub(crate) fn envelope(&self) -> Envelope {
        let mut parts = vec![self.head.clone()];
        let mut end = self.head.len();
        for (start, segment) in self.segments.iter() {
            encode::push_segment(&mut parts, &mut end, *start, std::iter::once(segment.clone()));
        }
        Envelope { parts: EnvelopeParts::Many(parts), len: end }
    }

    fn value(self, limits: &DecodeLimits) -> Result<Value, DecodeError> {
        msgpack::decode_tree(&self.head, self.tree, self.segments, limits)
    }

    /// Straight into the type if there are no segments, otherwise through a value that shares them.
    pub(crate) fn typed<T: Data>(self, limits: &DecodeLimits) -> Result<T, DecodeError> {
        if self.segments.is_empty() && TypeId::of::<T>() != TypeId::of::<Value>() {
            let start = self.tree.start;
            typed::msgpack::from_bytes(&self.head.slice(self.tree), limits).map_err(|error| error.shifted(start))
        } else {
            typed::from_value(self.value(limits)?)
        }
    }
}

/// Reads one buffer.
pub(crate) fn decode(bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    ReceivedEnvelope::from_buffer(bytes, limits)?.value(limits)
}

/// Reads one buffer into a Rust type.
pub(crate) fn decode_typed<T: Data>(bytes: &Bytes, limits: &DecodeLimits) -> Result<T, DecodeError> {
    ReceivedEnvelope::from_buffer(bytes, limits)?.typed(limits)
}
