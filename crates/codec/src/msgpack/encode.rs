//! Writes a [`Value`] as MessagePack, each part in its shortest form.
//!
//! A tuple's length in bytes is known only when its items are written: its header keeps room for four bytes of length,
//! which are filled in afterwards, so that nothing is written twice.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::MAX_DEPTH;
use crate::account::{ChargeError, charge};
use crate::envelope::INLINE_BELOW;
use crate::error::EncodeError;
use crate::msgpack::ext;
use crate::out::ChargedBuffer;
use crate::value::{Map, Value};

/// Where the tree goes, and, in an envelope, the large leaves.
struct Out {
    bytes: ChargedBuffer,
    segments: Option<Vec<Vec<Bytes>>>,
}

impl Deref for Out {
    type Target = ChargedBuffer;

    fn deref(&self) -> &ChargedBuffer {
        &self.bytes
    }
}

impl DerefMut for Out {
    fn deref_mut(&mut self) -> &mut ChargedBuffer {
        &mut self.bytes
    }
}

impl Out {
    /// Puts data beside the tree and returns its number, if it is large and there is such a place.
    fn segment(&mut self, pieces: &[Bytes]) -> Result<Option<usize>, ChargeError> {
        let Some(segments) = &mut self.segments else { return Ok(None) };
        if pieces.iter().map(Bytes::len).sum::<usize>() < INLINE_BELOW {
            return Ok(None);
        }
        charge(SEGMENT_BYTES + pieces.len() * PIECE_BYTES)?;
        segments.push(pieces.to_vec());
        Ok(Some(segments.len() - 1))
    }
}

/// What a segment takes beside its bytes, in the lists of segments, lengths and parts while these grow.
const SEGMENT_BYTES: usize = 160;
/// What each of its pieces takes, in the segment's own list and among the parts.
const PIECE_BYTES: usize = 3 * size_of::<Bytes>();

pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let mut out = Out { bytes: ChargedBuffer::new(128), segments: None };
    write(&mut out, value, 0)?;
    Ok(out.bytes.into_bytes()?)
}

/// Writes the tree of an envelope behind `room` bytes for what stands before it, and the segments, each in pieces.
pub(crate) fn encode_tree(value: &Value, room: usize) -> Result<(ChargedBuffer, Vec<Vec<Bytes>>), EncodeError> {
    let mut out = Out { bytes: ChargedBuffer::new(128), segments: Some(Vec::new()) };
    out.extend_with(0, room);
    write(&mut out, value, 0)?;
    out.check()?;
    Ok((out.bytes, out.segments.unwrap_or_default()))
}

/// An array header and the items, which lie one deeper than `depth`.
pub(crate) fn list_payload(items: &[Value], depth: usize) -> Result<ChargedBuffer, EncodeError> {
    let mut out = Out { bytes: ChargedBuffer::new(0), segments: None };
    write_list(&mut out, items, depth + 1)?;
    out.check()?;
    Ok(out.bytes)
}

fn write(out: &mut Out, value: &Value, depth: usize) -> Result<(), EncodeError> {
    if depth > MAX_DEPTH {
        return Err(EncodeError::too_deep(value.kind()));
    }
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(0xc2 + u8::from(*value)),
        Value::Int(value) => write_int(out, *value),
        Value::UInt(value) => write_uint(out, *value),
        Value::Float(value) => put(out, 0xcb, value.to_be_bytes()),
        Value::Str(text) => write_str(out, text)?,
        Value::Bytes(bytes) => {
            if let Some(number) = out.segment(std::slice::from_ref(bytes))? {
                return write_ext(out, ext::SEGMENT, &[&ext::segment_header(ext::BYTES, number)]);
            }
            write_len(out, bytes.len(), "bytes", [Some(0xc4), Some(0xc5)], 0xc6)?;
            out.extend_from_slice(bytes);
        }
        Value::List(items) => write_list(out, items, depth + 1)?,
        Value::Tuple(items) => write_tuple(out, items, depth + 1)?,
        Value::Map(map) => write_map(out, map, depth + 1)?,
        Value::Scalar(scalar) => write_ext(out, ext::SCALAR, &[&ext::scalar_payload(*scalar)])?,
        Value::Tensor(tensor) => {
            write_leaf(out, ext::TENSOR, &ext::tensor_header(tensor), std::slice::from_ref(tensor.data()))?;
        }
        Value::StrTensor(tensor) => {
            write_leaf(out, ext::STR_TENSOR, &ext::str_tensor_header(tensor), std::slice::from_ref(tensor.data()))?;
        }
        #[cfg(feature = "arrow")]
        Value::DataFrame(frame) => write_leaf(out, ext::DATA_FRAME, &[], &frame.to_stream_parts()?)?,
        #[cfg(feature = "arrow")]
        Value::Series(series) => write_leaf(out, ext::SERIES, &[], &series.to_stream_parts()?)?,
    }
    Ok(())
}

fn write_int(out: &mut Out, value: i64) {
    if let Ok(unsigned) = u64::try_from(value) {
        return write_uint(out, unsigned);
    }
    match (i8::try_from(value), i16::try_from(value), i32::try_from(value)) {
        (Ok(small @ -32..), ..) => out.push(small.cast_unsigned()),
        (Ok(value), ..) => put(out, 0xd0, value.to_be_bytes()),
        (_, Ok(value), _) => put(out, 0xd1, value.to_be_bytes()),
        (.., Ok(value)) => put(out, 0xd2, value.to_be_bytes()),
        _ => put(out, 0xd3, value.to_be_bytes()),
    }
}

fn write_uint(out: &mut Out, value: u64) {
    match (u8::try_from(value), u16::try_from(value), u32::try_from(value)) {
        (Ok(small @ ..0x80), ..) => out.push(small),
        (Ok(value), ..) => put(out, 0xcc, value.to_be_bytes()),
        (_, Ok(value), _) => put(out, 0xcd, value.to_be_bytes()),
        (.., Ok(value)) => put(out, 0xce, value.to_be_bytes()),
        _ => put(out, 0xcf, value.to_be_bytes()),
    }
}

fn write_str(out: &mut Out, text: &str) -> Result<(), EncodeError> {
    match u8::try_from(text.len()) {
        Ok(len @ ..32) => out.push(0xa0 | len),
        _ => write_len(out, text.len(), "str", [Some(0xd9), Some(0xda)], 0xdb)?,
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn write_list(out: &mut Out, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(items.len()) {
        Ok(len @ ..16) => out.push(0x90 | len),
        _ => write_len(out, items.len(), "list", [None, Some(0xdc)], 0xdd)?,
    }
    out.check()?;
    let mut indexed = items.iter().enumerate();
    indexed.try_for_each(|(index, item)| write(out, item, depth).map_err(|error| error.in_index(index)))
}

fn write_map(out: &mut Out, map: &Map, depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(map.len()) {
        Ok(len @ ..16) => out.push(0x80 | len),
        _ => write_len(out, map.len(), "map", [None, Some(0xde)], 0xdf)?,
    }
    out.check()?;
    map.iter().try_for_each(|(key, value)| {
        write_str(out, key)?;
        write(out, value, depth).map_err(|error| error.in_key(key))
    })
}

fn write_tuple(out: &mut Out, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    out.push(0xc9);
    let len_at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(ext::TUPLE.cast_unsigned());
    let start = out.len();
    write_list(out, items, depth)?;
    let len = u32::try_from(out.len() - start).map_err(|_| too_long("tuple"))?;
    out.check()?;
    out.bytes_mut()[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

/// An extension of a header and data; in an envelope, large data becomes a segment.
fn write_leaf(out: &mut Out, code: i8, header: &[u8], data: &[Bytes]) -> Result<(), EncodeError> {
    if let Some(number) = out.segment(data)? {
        return write_ext(out, ext::SEGMENT, &[&ext::segment_header(code, number), header]);
    }
    let parts: Vec<&[u8]> = std::iter::once(header).chain(data.iter().map(AsRef::as_ref)).collect();
    write_ext(out, code, &parts)
}

fn write_ext(out: &mut Out, code: i8, parts: &[&[u8]]) -> Result<(), EncodeError> {
    let len = parts.iter().map(|part| part.len()).sum();
    match len {
        1 | 2 | 4 | 8 | 16 => out.push(0xd4 + len.trailing_zeros() as u8),
        _ => write_len(out, len, "tensor", [Some(0xc7), Some(0xc8)], 0xc9)?,
    }
    out.push(code.cast_unsigned());
    out.reserve(len);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// A marker with a length of 8 bits, 16 bits or 32 bits, whichever is there and holds it first.
fn write_len(out: &mut Out, len: usize, kind: &str, short: [Option<u8>; 2], long: u8) -> Result<(), EncodeError> {
    match (short, u8::try_from(len), u16::try_from(len), u32::try_from(len)) {
        ([Some(marker), _], Ok(len), ..) => put(out, marker, len.to_be_bytes()),
        ([_, Some(marker)], _, Ok(len), _) => put(out, marker, len.to_be_bytes()),
        (.., Ok(len)) => put(out, long, len.to_be_bytes()),
        _ => return Err(too_long(kind)),
    }
    Ok(())
}

fn too_long(kind: &str) -> EncodeError {
    EncodeError::new(kind, "longer than the 32-bit length of MessagePack")
}

fn put<const N: usize>(out: &mut Out, marker: u8, bytes: [u8; N]) {
    out.push(marker);
    out.extend_from_slice(&bytes);
}
