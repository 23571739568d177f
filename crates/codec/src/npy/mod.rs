//! NumPy's own formats: `.npy` 1.0 to 3.0 for one array, `.npz` for several under names.
//!
//! Source: NEP 1 and `numpy.lib.format`. An array is a [`Tensor`], one of texts (`<U…`, and `|S…` that is UTF-8) a
//! [`StrTensor`]; `.npz` is a map of them. Little-endian elements in C order are used in place; Fortran order and
//! big-endian elements are copied once.
//!
//! Numbers are written unchanged, texts as `<U…`: each padded to the longest, four bytes a character. An array of texts
//! that would take more than 256 MiB and more than 64 times its own bytes is refused: the format does not suit one long
//! text among many short ones.
//!
//! Refused when read: object arrays, which are pickles and so programs; structured and datetime arrays; and `bfloat16`,
//! to which NumPy gives no name of its own.

mod header;
mod npz;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::account::charge;
use crate::error::{DecodeError, EncodeError};
use crate::limits::Budget;
use crate::out::ChargedBuffer;
use crate::value::Value;
use crate::value::tensor::view::{self, AlignedZeros};
use crate::value::tensor::{DType, END_BYTES, StrTensor, Tensor, size_of_shape};
use header::{ElementKind, Header};

pub(crate) use npz::{decode as decode_npz, encode as encode_npz};

/// Reads one array, and nothing after it.
pub(crate) fn decode(bytes: &Bytes, budget: &mut Budget<'_>) -> Result<Value, DecodeError> {
    let (header, data_at) = Header::read(bytes)?;
    let data = bytes.slice(data_at..);
    match header.kind {
        ElementKind::Number(dtype) => number(&header, dtype, data).map(Value::Tensor),
        ElementKind::Utf32 { chars } => {
            texts(&header, chars.saturating_mul(4), &data, budget, utf32).map(Value::StrTensor)
        }
        ElementKind::Utf8 { bytes } => texts(&header, bytes, &data, budget, utf8).map(Value::StrTensor),
    }
    .map_err(|error| error.at_offset(data_at))
}

fn refused(error: impl ToString) -> DecodeError {
    DecodeError::malformed(error.to_string())
}

/// Elements of a known size: shared if they are in our order, otherwise copied once.
fn number(header: &Header, dtype: DType, data: Bytes) -> Result<Tensor, DecodeError> {
    let shape = &header.shape;
    let order = ElementOrder::new(header);
    if order.is_row_major() && !header.big_endian {
        view::charge_aligned(&data, dtype.size_bytes())?;
        return Tensor::try_new(dtype, shape, data).map_err(refused);
    }
    let needed = size_of_shape(dtype, shape).map_err(refused)?;
    if needed != data.len() {
        return Err(refused(format!("shape {shape:?} of {dtype} needs {needed} bytes, not {}", data.len())));
    }
    charge(needed.next_multiple_of(view::ALIGNMENT))?;
    let mut copy = AlignedZeros::zeroed(needed);
    match dtype.size_bytes() {
        1 => order.copy::<1>(&data, copy.bytes_mut()),
        2 => order.copy::<2>(&data, copy.bytes_mut()),
        4 => order.copy::<4>(&data, copy.bytes_mut()),
        8 => order.copy::<8>(&data, copy.bytes_mut()),
        _ => order.copy::<16>(&data, copy.bytes_mut()),
    }
    if header.big_endian {
        let part = if dtype.is_complex() { dtype.size_bytes() / 2 } else { dtype.size_bytes() };
        copy.bytes_mut().chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    Tensor::try_new(dtype, shape, copy.into_bytes()).map_err(refused)
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
    // Texts without width have no bytes that could be counted.
    if width == 0 && len > MAX_EMPTY_TEXTS {
        return Err(refused("more texts of no characters than can be told apart"));
    }
    let table = len * END_BYTES;
    budget.take_memory(table)?;
    charge(data.len())?;
    let mut out = Vec::with_capacity(table + data.len());
    out.resize(table, 0);
    for (index, place) in ElementOrder::new(header).places(len).enumerate() {
        read(&data[place * width..][..width], &mut out).map_err(|error| error.in_index(index))?;
        let end = (out.len() - table) as u64;
        out[index * END_BYTES..(index + 1) * END_BYTES].copy_from_slice(&end.to_le_bytes());
    }
    StrTensor::try_new(&header.shape, out.into()).map_err(refused)
}

const MAX_EMPTY_TEXTS: usize = 1024;

/// The places of the elements, in row-major order.
struct ElementOrder(SmallVec<[Axis; 8]>);

/// An axis that is longer than 1, the first varying slowest.
struct Axis {
    len: usize,
    /// Elements between two that are neighbours along this axis.
    stride: usize,
}

impl ElementOrder {
    /// In Fortran order the first axis varies fastest. Axes of length 1 do not matter. With at most one other axis both
    /// orders are the same, and no axes are kept.
    fn new(header: &Header) -> Self {
        let mut axes = SmallVec::new();
        if header.fortran_order {
            let mut stride = 1_usize;
            for len in header.shape.iter().copied().filter(|len| *len != 1) {
                axes.push(Axis { len, stride });
                stride = stride.saturating_mul(len);
            }
        }
        if axes.len() < 2 {
            axes.clear();
        }
        Self(axes)
    }

    fn is_row_major(&self) -> bool {
        self.0.is_empty()
    }

    /// The places of the first `len` elements. The indices along the axes count up like the digits of a number, so the
    /// cost of an element does not depend on the count of axes: the last digit changes each time, the digit before it
    /// at most half as often, and so on.
    fn places(&self, len: usize) -> impl Iterator<Item = usize> {
        let mut digits: SmallVec<[usize; 8]> = smallvec![0; self.0.len()];
        let mut place = 0;
        (0..len).map(move |index| {
            if self.0.is_empty() {
                return index;
            }
            let here = place;
            for (axis, digit) in self.0.iter().zip(&mut digits).rev() {
                *digit += 1;
                place += axis.stride;
                if *digit < axis.len {
                    break;
                }
                place -= axis.len * axis.stride;
                *digit = 0;
            }
            here
        })
    }

    /// Copies elements of N bytes into row-major order.
    fn copy<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
        let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
        if self.is_row_major() {
            to.copy_from_slice(from)
        } else {
            to.iter_mut().zip(self.places(from.len())).for_each(|(to, place)| *to = from[place])
        }
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
    let mut out = ChargedBuffer::new(0);
    write(&mut out, value)?;
    Ok(out.into_bytes()?)
}

fn write(out: &mut ChargedBuffer, value: &Value) -> Result<(), EncodeError> {
    match value {
        Value::StrTensor(texts) => write_texts(out, texts),
        Value::Tensor(tensor) => write_tensor(out, tensor),
        other => {
            // Lists of numbers or of texts.
            match Tensor::from_value(other, None) {
                Ok(tensor) => write_tensor(out, &tensor),
                Err(error) => match StrTensor::from_value(other) {
                    Ok(texts) => write_texts(out, &texts),
                    Err(_) => Err(EncodeError::new(other.kind(), format!("not an array: {error}"))),
                },
            }
        }
    }
}

fn write_tensor(out: &mut ChargedBuffer, tensor: &Tensor) -> Result<(), EncodeError> {
    let descr = header::descr(tensor.dtype())
        .ok_or_else(|| EncodeError::new(tensor.dtype().name(), "NumPy has no name for it in .npy: cast it to f32"))?;
    out.reserve(header::ALIGNMENT * 4 + tensor.data().len());
    header::write(out, descr, tensor.shape());
    out.extend_from_slice(tensor.data());
    Ok(out.check()?)
}

/// As NumPy writes `<U…`: four bytes for each character, as many as the longest text has.
fn write_texts(out: &mut ChargedBuffer, texts: &StrTensor) -> Result<(), EncodeError> {
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    let bytes = width.saturating_mul(4).saturating_mul(texts.len());
    if is_overpadded(bytes, texts.data().len()) {
        let what = format!("{bytes} bytes, because each text is padded to the longest, exceed");
        return Err(
            EncodeError::limit_exceeded("max_decompressed_bytes", MAX_PADDED_BYTES, what).with_type("str_tensor")
        );
    }
    out.reserve((header::ALIGNMENT * 4).saturating_add(bytes));
    header::write(out, &format!("<U{width}"), texts.shape());
    out.check()?;
    for text in texts.iter() {
        let start = out.len();
        text.chars().for_each(|char| out.extend_from_slice(&u32::from(char).to_le_bytes()));
        out.extend_with(0, width * 4 - (out.len() - start));
    }
    Ok(out.check()?)
}

/// Whether texts of `own` bytes may not take `padded` bytes.
const fn is_overpadded(padded: usize, own: usize) -> bool {
    padded > MAX_PADDED_BYTES && padded / MAX_PADDING > own
}

/// Padded texts of up to this many bytes are always written.
const MAX_PADDED_BYTES: usize = 256 << 20;
/// Larger ones may take this many times their own bytes.
const MAX_PADDING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::testing::charge_of;
    use crate::{DecodeLimits, Format};

    #[test]
    fn padding_is_bounded_by_its_size_and_by_its_share() {
        let own = MAX_PADDED_BYTES / MAX_PADDING;
        let cases = [(0, 0), (0, 1), (own - 1, 0), (own - 1, 1), (own, MAX_PADDING), (own + 1, 2 * MAX_PADDING)];
        let refused = cases.map(|(own, more)| is_overpadded(MAX_PADDED_BYTES + more, own));
        assert_eq!(refused, [false, true, false, true, true, true]);
        assert!(!is_overpadded(MAX_PADDED_BYTES + MAX_PADDING - 1, own));
    }

    /// A header of a few axes takes less than four times its alignment.
    #[test]
    fn the_room_of_an_array_is_charged_at_once() {
        let tensor = Value::from(Tensor::from_vec(&[100], vec![7_u8; 100]).unwrap());
        let texts = Value::from(StrTensor::from_texts(&[25], vec!["a"; 25]).unwrap());
        for array in [tensor, texts] {
            assert_eq!(charge_of(|| array.encode(Format::Npy).unwrap()), 4 * header::ALIGNMENT + 100);
        }
    }

    #[test]
    fn a_bfloat16_has_no_npy() {
        let tensor = Tensor::from_vec(&[1], vec![half::bf16::ONE]).unwrap();
        assert_eq!(Value::from(tensor).encode(Format::Npy).unwrap_err().type_name(), "bf16");
    }

    #[test]
    fn the_number_of_texts_without_characters_is_bounded() {
        let decoded = |texts: usize| {
            let mut file = ChargedBuffer::new(0);
            header::write(&mut file, "|S0", &[texts]);
            Value::decode(Format::Npy, &file.into_bytes().unwrap(), &DecodeLimits::default())
        };
        assert_eq!(decoded(MAX_EMPTY_TEXTS).unwrap().as_str_tensor().unwrap().len(), MAX_EMPTY_TEXTS);
        assert!(decoded(MAX_EMPTY_TEXTS + 1).is_err());
    }

    /// An array of 2 × 3 elements.
    fn decoded(descr: &str, fortran_order: bool, data: &[u8]) -> Value {
        let mut file = ChargedBuffer::new(0);
        header::write(&mut file, descr, &[2, 3]);
        if fortran_order {
            let at = file.as_slice().windows(5).position(|window| window == b"False").unwrap();
            file.bytes_mut()[at..at + 5].copy_from_slice(b"True ");
        }
        file.extend_from_slice(data);
        Value::decode(Format::Npy, &file.into_bytes().unwrap(), &DecodeLimits::default()).unwrap()
    }

    #[test]
    fn fortran_texts_are_converted_to_c_order() {
        let texts: Vec<u8> = "adbecf".chars().flat_map(|char| u32::from(char).to_le_bytes()).collect();
        let value = decoded("<U1", true, &texts);
        assert_eq!(value.as_str_tensor().unwrap().iter().collect::<String>(), "abcdef");
    }

    #[test]
    fn elements_of_every_size_are_brought_into_order() {
        let parts = [DType::U8, DType::U16, DType::U32, DType::U64, DType::C64, DType::C128];
        for (dtype, part) in parts.into_iter().zip([1, 2, 4, 8, 4, 8]) {
            let data: Vec<u8> = (0..6 * dtype.size_bytes() as u8).collect();
            let elements: Vec<_> = data.chunks(dtype.size_bytes()).collect();
            let descr = header::descr(dtype).unwrap();
            let fortran = decoded(descr, true, &data);
            assert_eq!(fortran.as_tensor().unwrap().data(), &[0, 2, 4, 1, 3, 5].map(|at| elements[at]).concat());
            let big_endian = decoded(&format!(">{}", &descr[1..]), false, &data);
            let reversed: Vec<u8> = data.chunks(part).flat_map(|part| part.iter().rev()).copied().collect();
            assert_eq!(big_endian.as_tensor().unwrap().data(), &reversed, "{dtype}");
        }
    }
}
