//! The layout of an envelope: reads and writes the fixed prelude and the table of segment lengths.

use std::ops::Range;

use bytes::Bytes;

use crate::account::charge;
use crate::error::DecodeError;
use crate::limits::DecodeLimits;
use crate::out::ChargedBuffer;

pub(super) const MAGIC: [u8; 4] = *b"\x89CBE";
pub(super) const VERSION: u8 = 1;
/// Magic to total bytes.
pub(super) const PRELUDE_BYTES: usize = 24;
const LENGTH_BYTES: usize = 8;
/// Overhead of a segment in memory: its range, here and among the parts.
const SEGMENT_BYTES: usize = size_of::<Range<usize>>() + size_of::<(usize, Bytes)>();
/// A cache line, and Arrow's recommendation for its buffers.
pub(super) const SEGMENT_ALIGNMENT: usize = 64;

#[derive(Debug, PartialEq)]
pub(super) struct Layout {
    pub(super) tree: Range<usize>,
    pub(super) segments: Vec<Range<usize>>,
    pub(super) total: usize,
}

/// The fixed part, before the table.
struct EnvelopePrelude {
    tree: usize,
    segments: usize,
    total: usize,
}

impl EnvelopePrelude {
    fn read(bytes: &[u8; PRELUDE_BYTES], limits: &DecodeLimits) -> Result<Self, DecodeError> {
        let [m0, m1, m2, m3, version, flags, z0, z1, rest @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(DecodeError::malformed("not an envelope: another magic number").at_offset(0));
        }
        if version != VERSION {
            let message = format!("envelope version {version}: this reader knows {VERSION}");
            return Err(DecodeError::unsupported(message).at_offset(4));
        }
        if [flags, z0, z1] != [0; 3] {
            return Err(DecodeError::unsupported("an envelope with flags").at_offset(5));
        }
        let [t0, t1, t2, t3, s0, s1, s2, s3, total @ ..] = rest;
        let too_large = || DecodeError::malformed("a length beyond memory").at_offset(8);
        let prelude = Self {
            tree: usize::try_from(u32::from_le_bytes([t0, t1, t2, t3])).map_err(|_| too_large())?,
            segments: usize::try_from(u32::from_le_bytes([s0, s1, s2, s3])).map_err(|_| too_large())?,
            total: usize::try_from(u64::from_le_bytes(total)).map_err(|_| too_large())?,
        };
        limits.check_bytes(prelude.total).map_err(|error| error.at_offset(16))?;
        match prelude.head() {
            Some(head) if head <= prelude.total => Ok(prelude),
            _ => Err(DecodeError::malformed("tree and table are longer than the envelope").at_offset(8)),
        }
    }

    /// Bytes up to the end of the tree.
    fn head(&self) -> Option<usize> {
        PRELUDE_BYTES.checked_add(self.segments.checked_mul(LENGTH_BYTES)?)?.checked_add(self.tree)
    }
}

impl Layout {
    /// The bytes that [`read`](Self::read) needs of an input that starts with `bytes`.
    pub(super) fn needed(bytes: &[u8], limits: &DecodeLimits) -> Result<usize, DecodeError> {
        match bytes.first_chunk() {
            None => Ok(PRELUDE_BYTES),
            Some(prelude) => Ok(EnvelopePrelude::read(prelude, limits)?.head().expect("checked when it was read")),
        }
    }

    /// Reads prelude and table of an input that starts with `bytes`. `None` until the whole tree is there.
    pub(super) fn read(bytes: &[u8], limits: &DecodeLimits) -> Result<Option<Self>, DecodeError> {
        let Some(prelude) = bytes.first_chunk() else { return Ok(None) };
        let prelude = EnvelopePrelude::read(prelude, limits)?;
        let head = prelude.head().expect("checked when it was read");
        if bytes.len() < head {
            return Ok(None);
        }
        let table = &bytes[PRELUDE_BYTES..head - prelude.tree];
        charge(prelude.segments.saturating_mul(SEGMENT_BYTES))?;
        let mut segments = Vec::with_capacity(prelude.segments);
        let mut end = head;
        for (number, length) in table.as_chunks().0.iter().enumerate() {
            let at = PRELUDE_BYTES + number * LENGTH_BYTES;
            let beyond = || DecodeError::malformed(format!("segment {number} ends beyond the envelope")).at_offset(at);
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| beyond())?;
            if length == 0 {
                return Err(DecodeError::malformed(format!("segment {number} is empty")).at_offset(at));
            }
            let start = end.next_multiple_of(SEGMENT_ALIGNMENT);
            end = start.checked_add(length).filter(|end| *end <= prelude.total).ok_or_else(beyond)?;
            segments.push(start..end);
        }
        if end == prelude.total {
            Ok(Some(Self { tree: head - prelude.tree..head, segments, total: end }))
        } else {
            Err(DecodeError::malformed("an envelope longer than its parts").at_offset(16))
        }
    }

    /// Prelude and table for a tree and segments of these lengths, and the length of the envelope.
    pub(super) fn write(tree: u32, segments: &[usize]) -> (ChargedBuffer, usize) {
        let head = PRELUDE_BYTES + segments.len() * LENGTH_BYTES + tree as usize;
        let total = segments.iter().fold(head, |end, length| end.next_multiple_of(SEGMENT_ALIGNMENT) + length);
        let mut out = ChargedBuffer::new(head.next_multiple_of(SEGMENT_ALIGNMENT));
        let count = u32::try_from(segments.len()).expect("fewer segments than bytes of a tree");
        out.extend_from_slice(&Self::prelude(tree, count, total));
        segments.iter().for_each(|length| out.extend_from_slice(&(*length as u64).to_le_bytes()));
        (out, total)
    }

    /// The fixed part alone.
    pub(super) fn prelude(tree: u32, segments: u32, total: usize) -> [u8; PRELUDE_BYTES] {
        let mut out = [0; PRELUDE_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[8..12].copy_from_slice(&tree.to_le_bytes());
        out[12..16].copy_from_slice(&segments.to_le_bytes());
        out[16..].copy_from_slice(&(total as u64).to_le_bytes());
        out
    }
}

pub(super) fn short(len: usize) -> DecodeError {
    DecodeError::malformed("the input ends inside the envelope").at_offset(len)
}

pub(super) fn trailing(total: usize) -> DecodeError {
    DecodeError::malformed("more input after the envelope").at_offset(total)
}

pub(super) fn check_padding(padding: &[u8], start: usize) -> Result<(), DecodeError> {
    match padding.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(DecodeError::malformed("padding that is not zero").at_offset(start + at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::testing::charge_of;

    /// Prelude, table of segments of these lengths, and a tree of zeros.
    fn table(tree: u32, segments: &[u64], total: usize) -> Vec<u8> {
        let mut out = Layout::prelude(tree, segments.len() as u32, total).to_vec();
        segments.iter().for_each(|length| out.extend_from_slice(&length.to_le_bytes()));
        out.extend(std::iter::repeat_n(0, tree as usize));
        out
    }

    #[test]
    fn a_false_segment_is_reported_at_its_length() {
        let limits = DecodeLimits::default();
        for (third, message) in [(0, "segment 2 is empty"), (90, "ends beyond")] {
            let error = Layout::read(&table(1, &[1, 1, third], 200), &limits).unwrap_err();
            assert_eq!(error.offset(), Some(PRELUDE_BYTES + 2 * LENGTH_BYTES), "{error}");
            assert!(error.to_string().contains(message), "{error}");
        }
        let whole = Layout::read(&table(1, &[1, 1, 8], 200), &limits).unwrap().unwrap();
        assert_eq!((whole.tree, &whole.segments[2], whole.total), (48..49, &(192..200), 200));
    }

    #[test]
    fn a_table_is_charged_for_both_places_of_a_segment() {
        let segments = vec![64; 100];
        let bytes = table(1, &segments, 832 + 100 * 64);
        let limits = DecodeLimits::default();
        assert_eq!(Layout::needed(&bytes, &limits).unwrap(), bytes.len());
        assert_eq!(charge_of(|| Layout::read(&bytes, &limits).unwrap().unwrap()), 100 * (16 + 40));
    }
}
