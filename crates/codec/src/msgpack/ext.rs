//! The extension types: what a tuple, a typed scalar and a tensor are in MessagePack.
//!
//! The codes and layouts are part of the wire format; the drawing is in [the module](super)'s documentation.

use bytes::Bytes;

use crate::error::{DecodeError, EncodeError};
use crate::limits::{Budget, DecodeLimits};
use crate::msgpack::{decode::list_payload, encode};
use crate::tensor::{DType, MAX_RANK, Tensor};
use crate::value::{Scalar, Value};

pub(crate) const TUPLE: i8 = 1;
pub(crate) const SCALAR: i8 = 2;
pub(crate) const TENSOR: i8 = 3;

/// dtype, rank and padding, so that the axes and the elements keep the alignment of the payload.
const TENSOR_HEADER_BYTES: usize = 8;
const AXIS_BYTES: usize = 8;

/// The payload of a tuple that lies at `depth`.
pub(crate) fn tuple_payload(items: &[Value], depth: usize) -> Result<Vec<u8>, EncodeError> {
    encode::list_payload(items, depth)
}

pub(crate) fn scalar_payload(scalar: Scalar) -> Vec<u8> {
    let mut payload = vec![scalar.dtype().code()];
    payload.extend_from_slice(&scalar.to_bytes());
    payload
}

/// Everything of a tensor's payload that stands before its elements.
pub(crate) fn tensor_header(tensor: &Tensor) -> Vec<u8> {
    let rank = u8::try_from(tensor.shape().len()).expect("at most MAX_RANK axes");
    let mut header = vec![tensor.dtype().code(), rank, 0, 0, 0, 0, 0, 0];
    tensor.shape().iter().for_each(|axis| header.extend_from_slice(&(*axis as u64).to_le_bytes()));
    header
}

pub(crate) fn tensor_payload(tensor: &Tensor) -> Vec<u8> {
    let mut payload = tensor_header(tensor);
    payload.extend_from_slice(tensor.data());
    payload
}

/// Reads an extension by itself, outside any input.
pub(crate) fn decode(code: i8, payload: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    match code {
        TUPLE => list_payload(payload, limits),
        _ => leaf(code, payload, &Budget::new(limits)),
    }
}

/// Reads an extension that has no values inside.
pub(crate) fn leaf(code: i8, payload: &Bytes, budget: &Budget<'_>) -> Result<Value, DecodeError> {
    budget.check_segment(payload.len())?;
    match code {
        SCALAR => scalar(payload).map(Value::Scalar),
        TENSOR => tensor(payload).map(Value::Tensor),
        _ => Err(DecodeError::unsupported(format!("extension type {code}"))),
    }
}

fn scalar(payload: &[u8]) -> Result<Scalar, DecodeError> {
    let (code, bytes) = payload.split_first().ok_or_else(|| DecodeError::malformed("an empty scalar"))?;
    Scalar::from_bytes(dtype(*code)?, bytes)
        .ok_or_else(|| DecodeError::malformed("a scalar whose bytes are not of its dtype"))
}

fn tensor(payload: &Bytes) -> Result<Tensor, DecodeError> {
    let short = || DecodeError::malformed("a tensor that ends in its header");
    let [code, rank, padding @ ..] = payload.first_chunk::<TENSOR_HEADER_BYTES>().ok_or_else(short)?;
    let (dtype, rank) = (dtype(*code)?, usize::from(*rank));
    if *padding != [0; 6] || rank > MAX_RANK {
        return Err(DecodeError::malformed("not the header of a tensor"));
    }
    let elements_at = TENSOR_HEADER_BYTES + rank * AXIS_BYTES;
    let axes = payload.get(TENSOR_HEADER_BYTES..elements_at).ok_or_else(short)?;
    let shape = axes.as_chunks().0.iter().map(|axis| usize::try_from(u64::from_le_bytes(*axis)));
    let shape: Vec<usize> =
        shape.collect::<Result<_, _>>().map_err(|_| DecodeError::malformed("an axis longer than memory"))?;
    Tensor::try_new(dtype, &shape, payload.slice(elements_at..))
        .map_err(|error| DecodeError::malformed(error.to_string()))
}

fn dtype(code: u8) -> Result<DType, DecodeError> {
    DType::from_code(code).ok_or_else(|| DecodeError::unsupported(format!("dtype code {code}")))
}
