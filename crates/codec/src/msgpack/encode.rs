//! Writes a [`Value`] as MessagePack, each part in its shortest form.
//!
//! A tuple's length in bytes is known only after its items are written. So its header reserves four bytes for the
//! length, which are filled in afterwards, and nothing is written twice.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::account::{ChargeError, charge};
use crate::error::EncodeError;
use crate::limits::MAX_DEPTH;
use crate::msgpack::{INLINE_BELOW, ext, marker};
use crate::out::ChargedBuffer;
use crate::value::{Map, Value};

/// The output: the tree and, in an envelope, the large leaves.
pub(super) struct TreeWriter {
    bytes: ChargedBuffer,
    segments: Option<Vec<Vec<Bytes>>>,
}

impl Deref for TreeWriter {
    type Target = ChargedBuffer;

    fn deref(&self) -> &ChargedBuffer {
        &self.bytes
    }
}

impl DerefMut for TreeWriter {
    fn deref_mut(&mut self) -> &mut ChargedBuffer {
        &mut self.bytes
    }
}

impl TreeWriter {
    /// Writes values without segments.
    pub(super) fn new(bytes: ChargedBuffer) -> Self {
        Self { bytes, segments: None }
    }

    pub(super) fn into_inner(self) -> ChargedBuffer {
        self.bytes
    }

    /// Makes large data a segment, in an envelope, and returns its number.
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

/// Overhead of a segment in the lists of segments, lengths and parts while these grow.
const SEGMENT_BYTES: usize = 160;
/// Overhead of each piece of a segment, in the segment's own list and among the parts.
const PIECE_BYTES: usize = 3 * size_of::<Bytes>();

pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let mut out = TreeWriter::new(ChargedBuffer::new(128));
    write(&mut out, value, 0)?;
    Ok(out.bytes.into_bytes()?)
}

/// Writes the tree of an envelope after `room` bytes for its prelude, and the segments, each in pieces.
pub(crate) fn encode_tree(value: &Value, room: usize) -> Result<(ChargedBuffer, Vec<Vec<Bytes>>), EncodeError> {
    let mut out = TreeWriter { bytes: ChargedBuffer::new(128), segments: Some(Vec::new()) };
    out.extend_with(0, room);
    write(&mut out, value, 0)?;
    out.check()?;
    Ok((out.bytes, out.segments.unwrap_or_default()))
}

/// An array header and the items, one level below `depth`.
pub(crate) fn list_payload(items: &[Value], depth: usize) -> Result<ChargedBuffer, EncodeError> {
    let mut out = TreeWriter::new(ChargedBuffer::new(0));
    write_list(&mut out, items, depth + 1)?;
    out.check()?;
    Ok(out.bytes)
}

pub(super) fn write(out: &mut TreeWriter, value: &Value, depth: usize) -> Result<(), EncodeError> {
    if depth > MAX_DEPTH {
        return Err(EncodeError::too_deep(value.kind(), MAX_DEPTH));
    }
    match value {
        Value::Null => out.push(marker::NULL),
        Value::Bool(value) => out.push(if *value { marker::TRUE } else { marker::FALSE }),
        Value::Int(value) => write_int(out, *value),
        Value::UInt(value) => write_uint(out, *value),
        Value::Float(value) => put(out, marker::F64, value.to_be_bytes()),
        Value::Str(text) => write_str(out, text)?,
        Value::Bytes(bytes) => {
            if let Some(number) = out.segment(std::slice::from_ref(bytes))? {
                return write_ext(out, ext::SEGMENT, &[&ext::segment_header(ext::BYTES, number)]);
            }
            write_len(out, bytes.len(), "bytes", [Some(marker::BIN_8), Some(marker::BIN_16)], marker::BIN_32)?;
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

fn write_int(out: &mut TreeWriter, value: i64) {
    if let Ok(unsigned) = u64::try_from(value) {
        return write_uint(out, unsigned);
    }
    match (i8::try_from(value), i16::try_from(value), i32::try_from(value)) {
        (Ok(small @ -32..), ..) => out.push(small.cast_unsigned()),
        (Ok(value), ..) => put(out, marker::I8, value.to_be_bytes()),
        (_, Ok(value), _) => put(out, marker::I16, value.to_be_bytes()),
        (.., Ok(value)) => put(out, marker::I32, value.to_be_bytes()),
        _ => put(out, marker::I64, value.to_be_bytes()),
    }
}

fn write_uint(out: &mut TreeWriter, value: u64) {
    match (u8::try_from(value), u16::try_from(value), u32::try_from(value)) {
        (Ok(small @ ..0x80), ..) => out.push(small),
        (Ok(value), ..) => put(out, marker::U8, value.to_be_bytes()),
        (_, Ok(value), _) => put(out, marker::U16, value.to_be_bytes()),
        (.., Ok(value)) => put(out, marker::U32, value.to_be_bytes()),
        _ => put(out, marker::U64, value.to_be_bytes()),
    }
}

pub(super) fn write_str(out: &mut TreeWriter, text: &str) -> Result<(), EncodeError> {
    match u8::try_from(text.len()) {
        Ok(len @ ..32) => out.push(marker::FIX_STR | len),
        _ => write_len(out, text.len(), "str", [Some(marker::STR_8), Some(marker::STR_16)], marker::STR_32)?,
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn write_list(out: &mut TreeWriter, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(items.len()) {
        Ok(len @ ..16) => out.push(marker::FIX_ARRAY | len),
        _ => write_len(out, items.len(), "list", [None, Some(marker::ARRAY_16)], marker::ARRAY_32)?,
    }
    out.check()?;
    let mut indexed = items.iter().enumerate();
    indexed.try_for_each(|(index, item)| write(out, item, depth).map_err(|error| error.in_index(index)))
}

fn write_map(out: &mut TreeWriter, map: &Map, depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(map.len()) {
        Ok(len @ ..16) => out.push(marker::FIX_MAP | len),
        _ => write_len(out, map.len(), "map", [None, Some(marker::MAP_16)], marker::MAP_32)?,
    }
    out.check()?;
    map.iter().try_for_each(|(key, value)| {
        write_str(out, key)?;
        write(out, value, depth).map_err(|error| error.in_key(key))
    })
}

fn write_tuple(out: &mut TreeWriter, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    out.push(marker::EXT_32);
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
fn write_leaf(out: &mut TreeWriter, code: i8, header: &[u8], data: &[Bytes]) -> Result<(), EncodeError> {
    if let Some(number) = out.segment(data)? {
        return write_ext(out, ext::SEGMENT, &[&ext::segment_header(code, number), header]);
    }
    let parts: Vec<&[u8]> = std::iter::once(header).chain(data.iter().map(AsRef::as_ref)).collect();
    write_ext(out, code, &parts)
}

fn write_ext(out: &mut TreeWriter, code: i8, parts: &[&[u8]]) -> Result<(), EncodeError> {
    let len = parts.iter().map(|part| part.len()).sum();
    match len {
        1 => out.push(marker::FIX_EXT_1),
        2 => out.push(marker::FIX_EXT_2),
        4 => out.push(marker::FIX_EXT_4),
        8 => out.push(marker::FIX_EXT_8),
        16 => out.push(marker::FIX_EXT_16),
        _ => write_len(out, len, "tensor", [Some(marker::EXT_8), Some(marker::EXT_16)], marker::EXT_32)?,
    }
    out.push(code.cast_unsigned());
    out.reserve(len);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// Writes the first marker whose length (8, 16 or 32 bits) holds `len`.
fn write_len(
    out: &mut TreeWriter,
    len: usize,
    kind: &str,
    short: [Option<u8>; 2],
    long: u8,
) -> Result<(), EncodeError> {
    match (short, u8::try_from(len), u16::try_from(len), u32::try_from(len)) {
        ([Some(marker), _], Ok(len), ..) => put(out, marker, len.to_be_bytes()),
        ([_, Some(marker)], _, Ok(len), _) => put(out, marker, len.to_be_bytes()),
        (.., Ok(len)) => put(out, long, len.to_be_bytes()),
        _ => return Err(too_long(kind)),
    }
    Ok(())
}

pub(super) fn too_long(kind: &str) -> EncodeError {
    EncodeError::new(kind, "longer than the 32-bit length of MessagePack")
}

fn put<const N: usize>(out: &mut TreeWriter, marker: u8, bytes: [u8; N]) {
    out.push(marker);
    out.extend_from_slice(&bytes);
}
