//! Writes a [`Value`] as MessagePack, each part in its shortest form.
//!
//! A tuple's length in bytes is known only when its items are written: its header keeps room for four bytes of length, which
//! are filled in afterwards, so that nothing is written twice.

use bytes::Bytes;

use crate::MAX_DEPTH;
use crate::error::EncodeError;
use crate::msgpack::ext;
use crate::value::{Map, Value};

pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let mut out = Vec::with_capacity(128);
    write(&mut out, value, 0)?;
    Ok(out.into())
}

/// An array header and the items, which lie one deeper than `depth`.
pub(crate) fn list_payload(items: &[Value], depth: usize) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    write_list(&mut out, items, depth + 1)?;
    Ok(out)
}

fn write(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), EncodeError> {
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
            write_len(out, bytes.len(), "bytes", [Some(0xc4), Some(0xc5)], 0xc6)?;
            out.extend_from_slice(bytes);
        }
        Value::List(items) => write_list(out, items, depth + 1)?,
        Value::Tuple(items) => write_tuple(out, items, depth + 1)?,
        Value::Map(map) => write_map(out, map, depth + 1)?,
        Value::Scalar(scalar) => write_ext(out, ext::SCALAR, &[&ext::scalar_payload(*scalar)])?,
        Value::Tensor(tensor) => write_ext(out, ext::TENSOR, &[&ext::tensor_header(tensor), tensor.data()])?,
        Value::StrTensor(tensor) => {
            write_ext(out, ext::STR_TENSOR, &[&ext::str_tensor_header(tensor), tensor.data()])?;
        }
        #[cfg(feature = "arrow")]
        Value::DataFrame(frame) => write_stream(out, ext::DATA_FRAME, &frame.to_stream_parts()?)?,
        #[cfg(feature = "arrow")]
        Value::Series(series) => write_stream(out, ext::SERIES, &series.to_stream_parts()?)?,
    }
    Ok(())
}

fn write_int(out: &mut Vec<u8>, value: i64) {
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

fn write_uint(out: &mut Vec<u8>, value: u64) {
    match (u8::try_from(value), u16::try_from(value), u32::try_from(value)) {
        (Ok(small @ ..0x80), ..) => out.push(small),
        (Ok(value), ..) => put(out, 0xcc, value.to_be_bytes()),
        (_, Ok(value), _) => put(out, 0xcd, value.to_be_bytes()),
        (.., Ok(value)) => put(out, 0xce, value.to_be_bytes()),
        _ => put(out, 0xcf, value.to_be_bytes()),
    }
}

fn write_str(out: &mut Vec<u8>, text: &str) -> Result<(), EncodeError> {
    match u8::try_from(text.len()) {
        Ok(len @ ..32) => out.push(0xa0 | len),
        _ => write_len(out, text.len(), "str", [Some(0xd9), Some(0xda)], 0xdb)?,
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

fn write_list(out: &mut Vec<u8>, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(items.len()) {
        Ok(len @ ..16) => out.push(0x90 | len),
        _ => write_len(out, items.len(), "list", [None, Some(0xdc)], 0xdd)?,
    }
    let mut indexed = items.iter().enumerate();
    indexed.try_for_each(|(index, item)| write(out, item, depth).map_err(|error| error.in_index(index)))
}

fn write_map(out: &mut Vec<u8>, map: &Map, depth: usize) -> Result<(), EncodeError> {
    match u8::try_from(map.len()) {
        Ok(len @ ..16) => out.push(0x80 | len),
        _ => write_len(out, map.len(), "map", [None, Some(0xde)], 0xdf)?,
    }
    map.iter().try_for_each(|(key, value)| {
        write_str(out, key)?;
        write(out, value, depth).map_err(|error| error.in_key(key))
    })
}

fn write_tuple(out: &mut Vec<u8>, items: &[Value], depth: usize) -> Result<(), EncodeError> {
    out.push(0xc9);
    let len_at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(ext::TUPLE.cast_unsigned());
    let start = out.len();
    write_list(out, items, depth)?;
    let len = u32::try_from(out.len() - start).map_err(|_| too_long("tuple"))?;
    out[len_at..len_at + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

#[cfg(feature = "arrow")]
fn write_stream(out: &mut Vec<u8>, code: i8, parts: &[Bytes]) -> Result<(), EncodeError> {
    let parts: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
    write_ext(out, code, &parts)
}

fn write_ext(out: &mut Vec<u8>, code: i8, parts: &[&[u8]]) -> Result<(), EncodeError> {
    let len = parts.iter().map(|part| part.len()).sum();
    write_len(out, len, "tensor", [Some(0xc7), Some(0xc8)], 0xc9)?;
    out.push(code.cast_unsigned());
    out.reserve(len);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// A marker with a length of 8 bits, 16 bits or 32 bits, whichever is there and holds it first.
fn write_len(out: &mut Vec<u8>, len: usize, kind: &str, short: [Option<u8>; 2], long: u8) -> Result<(), EncodeError> {
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

fn put<const N: usize>(out: &mut Vec<u8>, marker: u8, bytes: [u8; N]) {
    out.push(marker);
    out.extend_from_slice(&bytes);
}
