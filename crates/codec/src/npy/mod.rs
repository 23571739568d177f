//! NumPy's own formats: `.npy` 1.0 to 3.0 for one array, `.npz` for several under names.
//!
//! Source: NEP 1 and `numpy.lib.format`. An array is a [`Tensor`], one of texts (`<U…`, and `|S…` that is UTF-8) a
//! [`StrTensor`]; `.npz` is a map of them. In C order and this machine's byte order the elements are used where they lie;
//! Fortran order and big-endian elements are copied once into ours.
//!
//! Refused: object arrays, which are pickles and so programs; structured and datetime arrays; and `bfloat16`, to which NumPy gives
//! no name of its own.

mod header;
mod npz;

use std::iter::repeat_n;

use bytes::Bytes;
use ndarray::{ArrayView, IxDyn, ShapeBuilder as _};

use crate::error::{DecodeError, EncodeError};
use crate::limits::Budget;
use crate::tensor::{AlignedBuffer, DType, END_BYTES, StrTensor, Tensor, size_of_shape, with_element};
use crate::value::Value;
use header::{Header, Kind};

pub(crate) use npz::{decode as decode_npz, encode as encode_npz};

/// Reads one array, and nothing after it.
pub(crate) fn decode(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    let (header, data_at) = Header::read(bytes)?;
    let data = bytes.slice(data_at..);
    budget.check_segment(data.len()).map_err(|error| error.at_offset(data_at))?;
    match header.kind {
        Kind::Number(dtype) => number(&header, dtype, data).map(Value::Tensor),
        Kind::Utf32 { chars } => texts(&header, chars.saturating_mul(4), &data, budget, utf32).map(Value::StrTensor),
        Kind::Utf8 { bytes } => texts(&header, bytes, &data, budget, utf8).map(Value::StrTensor),
    }
    .map_err(|error| error.at_offset(data_at))
}

fn refused(error: impl ToString) -> DecodeError {
    DecodeError::malformed(error.to_string())
}

/// Elements of a known size: in ours order as they are, else brought into it by one copy.
fn number(header: &Header, dtype: DType, data: Bytes) -> Result<Tensor, DecodeError> {
    let shape = &header.shape;
    if !header.fortran_order && !header.big_endian {
        return Tensor::try_new(dtype, shape, data).map_err(refused);
    }
    let needed = size_of_shape(dtype, shape).map_err(refused)?;
    if needed != data.len() {
        return Err(refused(format!("shape {shape:?} of {dtype} needs {needed} bytes, not {}", data.len())));
    }
    let mut buffer = AlignedBuffer::with_capacity(needed);
    buffer.push(&data);
    if header.big_endian {
        let part = if dtype.is_complex() { dtype.size_bytes() / 2 } else { dtype.size_bytes() };
        buffer.bytes_mut().chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    // With at most one axis that is longer than 1 both orders are the same.
    let same_order = shape.iter().filter(|axis| **axis != 1).count() < 2 || needed == 0;
    if !header.fortran_order || same_order {
        return Tensor::try_new(dtype, shape, buffer.into_bytes()).map_err(refused);
    }
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let columns = Tensor::try_new(dtype, &reversed, buffer.into_bytes()).map_err(refused)?;
    with_element!(dtype, T => {
        let elements = columns.as_slice::<T>().map_err(refused)?;
        let view = ArrayView::from_shape(IxDyn(shape).f(), elements).map_err(refused)?;
        Ok(Tensor::from_array(view.as_standard_layout().into_owned()))
    })
}

/// Texts of one width, padded with zeros. `read` appends one as UTF-8, which is never longer than its source.
fn texts(
    header: &Header,
    width: usize,
    data: &[u8],
    budget: &mut Budget<'_>,
    read: impl Fn(&[u8], &mut Vec<u8>) -> Result<(), DecodeError>,
) -> Result<StrTensor, DecodeError> {
    let len = size_of_shape(DType::U8, &header.shape).map_err(refused)?;
    if len.checked_mul(width) != Some(data.len()) {
        return Err(refused(format!("shape {:?} of {width} bytes each, and {} bytes", header.shape, data.len())));
    }
    // What has no width has no bytes to count against.
    if width == 0 && len > MAX_EMPTY_TEXTS {
        return Err(refused("more texts of no characters than can be told apart"));
    }
    let order = FortranOrder::new(header);
    let table = len * END_BYTES;
    budget.take_memory(table)?;
    let mut out = Vec::with_capacity(table + data.len());
    out.resize(table, 0);
    for index in 0..len {
        let at = order.place(index) * width;
        read(&data[at..at + width], &mut out).map_err(|error| error.in_index(index))?;
        let end = (out.len() - table) as u64;
        out[index * END_BYTES..(index + 1) * END_BYTES].copy_from_slice(&end.to_le_bytes());
    }
    StrTensor::try_new(&header.shape, out.into()).map_err(refused)
}

const MAX_EMPTY_TEXTS: usize = 1024;

/// Where the element at a row-major index lies.
struct FortranOrder<'a>(Option<&'a [usize]>);

impl<'a> FortranOrder<'a> {
    fn new(header: &'a Header) -> Self {
        Self(header.fortran_order.then_some(&header.shape))
    }

    fn place(&self, index: usize) -> usize {
        let Some(shape) = self.0 else { return index };
        let mut rest = index;
        let mut axes = [0; crate::MAX_RANK];
        for (axis, len) in shape.iter().enumerate().rev() {
            (axes[axis], rest) = (rest % len, rest / len);
        }
        shape.iter().zip(axes).rev().fold(0, |place, (len, at)| place * len + at)
    }
}

fn utf8(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if std::str::from_utf8(&bytes[..end]).is_err() {
        return Err(DecodeError::unsupported("a byte string that is not UTF-8"));
    }
    out.extend_from_slice(&bytes[..end]);
    Ok(())
}

fn utf32(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let chars = bytes.as_chunks::<4>().0;
    let end = chars.iter().rposition(|char| *char != [0; 4]).map_or(0, |last| last + 1);
    for char in &chars[..end] {
        let char = char::from_u32(u32::from_le_bytes(*char));
        let char = char.ok_or_else(|| DecodeError::malformed("a code point that is not a character"))?;
        out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(())
}

/// Writes an array: version 1.0, C order.
pub(crate) fn encode(value: &Value) -> Result<Bytes, EncodeError> {
    let mut out = Vec::new();
    match value {
        Value::StrTensor(texts) => write_texts(&mut out, texts),
        Value::Tensor(tensor) => write_tensor(&mut out, tensor)?,
        other => {
            // Lists of numbers, or of texts: whatever reads as an array.
            match Tensor::from_value(other, None) {
                Ok(tensor) => write_tensor(&mut out, &tensor)?,
                Err(error) => match StrTensor::from_value(other) {
                    Ok(texts) => write_texts(&mut out, &texts),
                    Err(_) => return Err(EncodeError::new(other.kind(), format!("not an array: {error}"))),
                },
            }
        }
    }
    Ok(out.into())
}

fn write_tensor(out: &mut Vec<u8>, tensor: &Tensor) -> Result<(), EncodeError> {
    let descr = header::descr(tensor.dtype())
        .ok_or_else(|| EncodeError::new(tensor.dtype().name(), "NumPy has no name for it in .npy: cast it to f32"))?;
    out.reserve_exact(header::ALIGNMENT * 4 + tensor.data().len());
    header::write(out, descr, tensor.shape());
    out.extend_from_slice(tensor.data());
    Ok(())
}

/// As NumPy writes `<U…`: four bytes for each character, as many as the longest text has.
fn write_texts(out: &mut Vec<u8>, texts: &StrTensor) {
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    header::write(out, &format!("<U{width}"), texts.shape());
    for text in texts.iter() {
        let chars = text.chars().map(u32::from);
        let missing = width - text.chars().count();
        chars.chain(repeat_n(0, missing)).for_each(|char| out.extend_from_slice(&char.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, Format};

    #[test]
    fn a_bfloat16_has_no_npy() {
        let tensor = Tensor::from_vec(&[1], vec![half::bf16::ONE]).unwrap();
        assert_eq!(Value::from(tensor).encode(Format::Npy).unwrap_err().type_name(), "bf16");
    }

    #[test]
    fn fortran_texts_are_brought_into_order() {
        let mut file = Vec::new();
        header::write(&mut file, "<U1", &[2, 3]);
        let at = file.windows(5).position(|window| window == b"False").unwrap();
        file[at..at + 5].copy_from_slice(b"True ");
        "adbecf".chars().for_each(|char| file.extend_from_slice(&u32::from(char).to_le_bytes()));
        let value = Value::decode(Format::Npy, &file.into(), &DecodeLimits::default()).unwrap();
        assert_eq!(value.as_str_tensor().unwrap().iter().collect::<String>(), "abcdef");
    }
}
