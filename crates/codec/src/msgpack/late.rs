//! Writes MessagePack from a source that tells the length of a text, list or map at its end.
//!
//! Each header gets one byte at first, which is enough for most. At the end one pass makes room for the longer headers.
//! The result has the same bytes as that of [`encode`](super::encode).

use crate::account::ChargeError;
use crate::error::EncodeError;
use crate::msgpack::encode::{TreeWriter, too_long, write, write_str};
use crate::msgpack::marker;
use crate::out::{ChargedBuffer, TemporaryList};
use crate::value::Value;

/// A tree whose lengths are written late.
pub(crate) struct LateWriter {
    out: TreeWriter,
    /// The headers that are longer than a byte, each with the offset of its byte.
    long: TemporaryList<(usize, Header)>,
}

/// The place of a header that was begun.
#[derive(Clone, Copy)]
#[must_use = "what begins has to end"]
pub(crate) struct Begun(usize);

impl LateWriter {
    /// An empty tree after `before` bytes for another header. It has room for `expected` bytes.
    pub(crate) fn new(before: usize, expected: usize) -> Self {
        let mut bytes = ChargedBuffer::new(before + expected);
        bytes.extend_with(0, before);
        Self { out: TreeWriter::new(bytes), long: TemporaryList::default() }
    }

    pub(crate) fn buffer(&mut self) -> &mut ChargedBuffer {
        &mut self.out
    }

    /// A value without others inside.
    pub(crate) fn leaf(&mut self, leaf: &Value) -> Result<(), EncodeError> {
        write(&mut self.out, leaf, 0)
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), EncodeError> {
        write_str(&mut self.out, text)
    }

    /// Begins a text, whose bytes are pushed into the [buffer](Self::buffer).
    pub(crate) fn begin_text(&mut self) -> Begun {
        self.begin(marker::FIX_STR)
    }

    pub(crate) fn begin_list(&mut self) -> Begun {
        self.begin(marker::FIX_ARRAY)
    }

    pub(crate) fn begin_map(&mut self) -> Begun {
        self.begin(marker::FIX_MAP)
    }

    fn begin(&mut self, marker: u8) -> Begun {
        let at = self.out.len();
        self.out.push(marker);
        Begun(at)
    }

    /// Ends what was begun: a text of the bytes since then, or a list or map of `len` items or entries.
    pub(crate) fn end(&mut self, Begun(at): Begun, len: usize) -> Result<(), EncodeError> {
        self.out.check()?;
        let marker = &mut self.out.bytes_mut()[at];
        match u8::try_from(len) {
            Ok(len) if len < most_in_marker(*marker) => {
                *marker |= len;
                Ok(())
            }
            _ => {
                let header = Header::new(*marker, len)?;
                Ok(self.long.push((at, header))?)
            }
        }
    }

    /// The tree, after the bytes before it.
    pub(crate) fn finish(mut self) -> Result<ChargedBuffer, ChargeError> {
        if !self.long.is_empty() {
            self.lengthen();
        }
        self.out.check().map(|()| self.out.into_inner())
    }

    /// Drops what was written, and releases its bytes.
    pub(crate) fn discard(self) {
        self.out.into_inner().discard();
    }

    /// Moves what follows each long header, the last one first, so that each byte moves once.
    fn lengthen(&mut self) {
        let more = self.long.iter().map(|(_, header)| header.len() - 1).sum();
        let mut from_end = self.out.len();
        self.out.reserve_exact(more);
        self.out.extend_with(0, more);
        if self.out.check().is_err() {
            return;
        }
        self.long.sort_unstable_by_key(|(at, _)| *at);
        let bytes = self.out.bytes_mut();
        let mut to_end = bytes.len();
        for (at, header) in self.long.iter().rev() {
            let to_start = to_end - (from_end - at - 1);
            bytes.copy_within(at + 1..from_end, to_start);
            to_end = to_start - header.len();
            bytes[to_end..to_start].copy_from_slice(header.as_slice());
            from_end = *at;
        }
    }
}

const fn most_in_marker(marker: u8) -> u8 {
    if marker == marker::FIX_STR { 32 } else { 16 }
}

/// A header that is longer than its marker.
struct Header {
    bytes: [u8; 5],
    len: u8,
}

impl Header {
    fn new(marker: u8, items: usize) -> Result<Self, EncodeError> {
        let (kind, of_8, of_16, of_32) = match marker {
            marker::FIX_STR => ("str", Some(marker::STR_8), marker::STR_16, marker::STR_32),
            marker::FIX_ARRAY => ("list", None, marker::ARRAY_16, marker::ARRAY_32),
            _ => ("map", None, marker::MAP_16, marker::MAP_32),
        };
        let [a, b, c, d] = u32::try_from(items).map_err(|_| too_long(kind))?.to_be_bytes();
        let (bytes, len) = match (of_8, [a, b, c]) {
            (Some(marker), [0, 0, 0]) => ([marker, d, 0, 0, 0], 2),
            (_, [0, 0, _]) => ([of_16, c, d, 0, 0], 3),
            _ => ([of_32, a, b, c, d], 5),
        };
        Ok(Self { bytes, len })
    }

    fn len(&self) -> usize {
        self.len.into()
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }
}
