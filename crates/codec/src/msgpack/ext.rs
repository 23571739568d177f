//! The extension types: tuples, typed scalars, tensors and tables in MessagePack.
//!
//! The codes and layouts are part of the wire format; the drawing is in [the module](super)'s documentation.

use bytes::Bytes;

use crate::error::{DecodeError, EncodeError};
use crate::limits::{Budget, DecodeLimits};
use crate::msgpack::{Segments, decode::list_payload, encode};
use crate::out::{self, ChargedBuffer};
#[cfg(feature = "arrow")]
use crate::value::data_frame;
use crate::value::tensor::{DType, MAX_RANK, StrTensor, Tensor, view};
use crate::value::{Scalar, Value};

pub(crate) const TUPLE: i8 = 1;
pub(crate) const SCALAR: i8 = 2;
pub(crate) const TENSOR: i8 = 3;
pub(crate) const STR_TENSOR: i8 = 4;
pub(crate) const DATA_FRAME: i8 = 5;
pub(crate) const SERIES: i8 = 6;
/// Refers to a segment in the tree of an envelope. It is refused outside an envelope.
pub(crate) const SEGMENT: i8 = 7;

/// dtype, rank and padding, so that the axes and the elements keep the alignment of the payload.
const TENSOR_HEADER_BYTES: usize = 8;
const AXIS_BYTES: usize = 8;

/// The payload of a tuple that lies at `depth`.
pub(crate) fn tuple_payload(items: &[Value], depth: usize) -> Result<ChargedBuffer, EncodeError> {
    encode::list_payload(items, depth)
}

pub(crate) fn scalar_payload(scalar: Scalar) -> Vec<u8> {
    let mut payload = vec![scalar.dtype().code()];
    payload.extend_from_slice(&scalar.to_bytes());
    payload
}

/// The code of a byte string in a reference.
pub(crate) const BYTES: i8 = 0;

/// The start of a reference to a segment. The header of an array follows it.
pub(crate) fn segment_header(code: i8, number: usize) -> [u8; SEGMENT_HEADER_BYTES] {
    let number = u32::try_from(number).expect("fewer segments than bytes of a tree");
    let [a, b, c, d] = number.to_le_bytes();
    [code.cast_unsigned(), 0, 0, 0, a, b, c, d]
}

const SEGMENT_HEADER_BYTES: usize = 8;

/// Reads a reference and its segment.
pub(crate) fn segment(payload: &Bytes, segments: &mut Segments, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    let (code, header, (start, data)) = segment_parts(payload, segments)?;
    budget.take_memory(LEAF_BYTES)?;
    segment_value(code, &header, data, budget).map_err(|error| in_segment(error, start))
}

/// Checks a reference and its segment as [`segment`] does, and builds nothing.
pub(crate) fn check_segment(
    payload: &Bytes,
    segments: &mut Segments,
    budget: &mut Budget<'_>,
) -> Result<(), DecodeError> {
    let (code, header, (start, data)) = segment_parts(payload, segments)?;
    budget.claim(LEAF_BYTES)?;
    let checked = match code {
        TENSOR => array_parts(&header).and_then(|(dtype, shape, rest)| {
            if rest.is_empty() { check_tensor(dtype, &shape, &data) } else { Err(long_reference()) }
        }),
        // Nothing of it is copied, except what a frame unpacks.
        _ => budget.discard(|budget| segment_value(code, &header, data, budget)),
    };
    checked.map_err(|error| in_segment(error, start))
}

/// An error without an offset is in the header, which is part of the tree.
fn in_segment(error: DecodeError, start: usize) -> DecodeError {
    if error.offset().is_some() { error.shifted(start) } else { error }
}

/// The kind of a referenced segment, its header, and its offset and bytes.
fn segment_parts(payload: &Bytes, segments: &mut Segments) -> Result<(i8, Bytes, (usize, Bytes)), DecodeError> {
    let malformed = || DecodeError::malformed("not a reference to a segment");
    let [code, 0, 0, 0, number @ ..] = *payload.first_chunk::<SEGMENT_HEADER_BYTES>().ok_or_else(malformed)? else {
        return Err(malformed());
    };
    let number = usize::try_from(u32::from_le_bytes(number)).map_err(|_| malformed())?;
    let segment = segments.take(number)?;
    Ok((code.cast_signed(), payload.slice(SEGMENT_HEADER_BYTES..), segment))
}

fn segment_value(code: i8, header: &Bytes, data: Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    let bare = header.is_empty();
    match code {
        BYTES if bare => Ok(Value::Bytes(data)),
        TENSOR | STR_TENSOR => {
            let (dtype, shape, rest) = array_parts(header)?;
            match (rest.is_empty(), code) {
                (false, _) => Err(long_reference()),
                (true, TENSOR) => make_tensor(dtype, &shape, data).map(Value::Tensor),
                (true, _) => make_str_tensor(dtype, &shape, data).map(Value::StrTensor),
            }
        }
        #[cfg(feature = "arrow")]
        DATA_FRAME if bare => data_frame::from_stream(&data, budget).map(Value::DataFrame),
        #[cfg(feature = "arrow")]
        SERIES if bare => data_frame::series_from_stream(&data, budget).map(Value::Series),
        #[cfg(not(feature = "arrow"))]
        DATA_FRAME | SERIES => Err(without_arrow(budget)),
        _ => Err(DecodeError::unsupported(format!("a segment of kind {code}"))),
    }
}

fn long_reference() -> DecodeError {
    DecodeError::malformed("more bytes in a reference than its header")
}

#[cfg(not(feature = "arrow"))]
fn without_arrow(_: &mut Budget<'_>) -> DecodeError {
    DecodeError::unsupported("a data frame: this program was built without the feature `arrow` of callboard-codec")
}

/// The part of a tensor's payload before its elements.
pub(crate) fn tensor_header(tensor: &Tensor) -> Vec<u8> {
    array_header(tensor.dtype().code(), tensor.shape())
}

/// The same for an array of texts, which has no [`DType`].
pub(crate) fn str_tensor_header(tensor: &StrTensor) -> Vec<u8> {
    array_header(STR_CODE, tensor.shape())
}

/// The code of text in the place of a dtype.
const STR_CODE: u8 = 64;

fn array_header(code: u8, shape: &[usize]) -> Vec<u8> {
    let rank = u8::try_from(shape.len()).expect("at most MAX_RANK axes");
    let mut header = Vec::with_capacity(TENSOR_HEADER_BYTES + shape.len() * AXIS_BYTES);
    header.extend_from_slice(&[code, rank, 0, 0, 0, 0, 0, 0]);
    shape.iter().for_each(|axis| header.extend_from_slice(&(*axis as u64).to_le_bytes()));
    header
}

pub(crate) fn str_tensor_payload(tensor: &StrTensor) -> Result<ChargedBuffer, EncodeError> {
    Ok(out::concat(&[&str_tensor_header(tensor), &tensor.data()[..]])?)
}

pub(crate) fn tensor_payload(tensor: &Tensor) -> Result<ChargedBuffer, EncodeError> {
    Ok(out::concat(&[&tensor_header(tensor), &tensor.data()[..]])?)
}

/// Reads an extension by itself, outside any input.
pub(crate) fn decode(code: i8, payload: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    match code {
        TUPLE => list_payload(payload, limits),
        _ => leaf(code, payload, &mut Budget::new(limits)),
    }
}

/// Overhead of a tensor: shape, reference counts, and the header of a buffer that was copied for alignment.
pub(crate) const LEAF_BYTES: usize = 256;

/// Reads an extension that has no values inside.
pub(crate) fn leaf(code: i8, payload: &Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    budget.take_memory(LEAF_BYTES)?;
    leaf_value(code, payload, budget)
}

fn leaf_value(code: i8, payload: &Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    match code {
        SCALAR => scalar(payload).map(Value::Scalar),
        TENSOR => tensor(payload).map(Value::Tensor),
        STR_TENSOR => str_tensor(payload).map(Value::StrTensor),
        #[cfg(feature = "arrow")]
        DATA_FRAME => data_frame::from_stream(payload, budget).map(Value::DataFrame),
        #[cfg(feature = "arrow")]
        SERIES => data_frame::series_from_stream(payload, budget).map(Value::Series),
        #[cfg(not(feature = "arrow"))]
        DATA_FRAME | SERIES => Err(without_arrow(budget)),
        SEGMENT => Err(DecodeError::malformed("a reference to a segment outside an envelope")),
        _ => Err(DecodeError::unsupported(format!("extension type {code}"))),
    }
}

/// Checks an extension as [`leaf`] does, and builds nothing.
pub(crate) fn check_leaf(code: i8, payload: &Bytes, budget: &mut Budget<'_>) -> Result<(), DecodeError> {
    budget.claim(LEAF_BYTES)?;
    match code {
        TENSOR => array_parts(payload).and_then(|(dtype, shape, data)| check_tensor(dtype, &shape, &data)),
        _ => budget.discard(|budget| leaf_value(code, payload, budget)),
    }
}

fn scalar(payload: &[u8]) -> Result<Scalar, DecodeError> {
    let (code, bytes) = payload.split_first().ok_or_else(|| DecodeError::malformed("an empty scalar"))?;
    Scalar::from_bytes(dtype(*code)?, bytes)
        .ok_or_else(|| DecodeError::malformed("a scalar whose bytes are not of its dtype"))
}

/// A header's dtype code and shape, and the bytes after it.
pub(crate) fn array_parts(payload: &Bytes) -> Result<(u8, Vec<usize>, Bytes), DecodeError> {
    let short = || DecodeError::malformed("a tensor that ends in its header");
    let [code, rank, padding @ ..] = payload.first_chunk::<TENSOR_HEADER_BYTES>().ok_or_else(short)?;
    let rank = usize::from(*rank);
    if *padding != [0; 6] || rank > MAX_RANK {
        return Err(DecodeError::malformed("not the header of a tensor"));
    }
    let elements_at = TENSOR_HEADER_BYTES + rank * AXIS_BYTES;
    let axes = payload.get(TENSOR_HEADER_BYTES..elements_at).ok_or_else(short)?;
    let shape = axes.as_chunks().0.iter().map(|axis| usize::try_from(u64::from_le_bytes(*axis)));
    let shape: Vec<usize> =
        shape.collect::<Result<_, _>>().map_err(|_| DecodeError::malformed("an axis longer than memory"))?;
    Ok((*code, shape, payload.slice(elements_at..)))
}

fn tensor(payload: &Bytes) -> Result<Tensor, DecodeError> {
    let (code, shape, data) = array_parts(payload)?;
    make_tensor(code, &shape, data)
}

pub(crate) fn make_tensor(code: u8, shape: &[usize], data: Bytes) -> Result<Tensor, DecodeError> {
    let dtype = dtype(code)?;
    view::charge_aligned(&data, dtype.size_bytes())?;
    Tensor::try_new(dtype, shape, data).map_err(|error| DecodeError::malformed(error.to_string()))
}

fn check_tensor(code: u8, shape: &[usize], data: &[u8]) -> Result<(), DecodeError> {
    Tensor::check(dtype(code)?, shape, data).map_err(|error| DecodeError::malformed(error.to_string()))
}

fn str_tensor(payload: &Bytes) -> Result<StrTensor, DecodeError> {
    let (code, shape, data) = array_parts(payload)?;
    make_str_tensor(code, &shape, data)
}

pub(crate) fn make_str_tensor(code: u8, shape: &[usize], data: Bytes) -> Result<StrTensor, DecodeError> {
    if code != STR_CODE {
        return Err(DecodeError::malformed("not the header of an array of texts"));
    }
    StrTensor::try_new(shape, data).map_err(|error| DecodeError::malformed(error.to_string()))
}

fn dtype(code: u8) -> Result<DType, DecodeError> {
    DType::from_code(code).ok_or_else(|| DecodeError::unsupported(format!("dtype code {code}")))
}
