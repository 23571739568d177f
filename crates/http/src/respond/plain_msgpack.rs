//! MessagePack for programs without our extension types: each becomes the nearest plain value.
//!
//! | extension | plain |
//! |---|---|
//! | 1, a tuple | an array |
//! | 2, a scalar | a number or bool; a complex one `[real, imaginary]` |
//! | 3, a tensor | a map of `dtype` (NumPy's name), `shape` and `data` (bin: the elements, row-major, little-endian) |
//! | 4, texts | arrays of strings, one level per axis |
//! | 5, a data frame; 6, a series | bin: an Arrow IPC stream |
//! Works on the encoded bytes: an extension is one item, and so is its replacement, so no header around it changes. The
//! first pass looks for extensions; the second writes. The input always comes from our own encoder.

use callboard_codec::DType;
use half::{bf16, f16};
use rmp::Marker;
use rmp::encode::{
    ValueWriteError, write_array_len, write_bin, write_f32, write_f64, write_map_len, write_sint, write_str,
    write_str_len, write_uint,
};

/// Fails never: memory takes all bytes.
type Written = Result<(), ValueWriteError>;

/// The media type of MessagePack with extension types.
pub(crate) const WITH_EXTENSIONS: &str = "application/msgpack; extensions=callboard";

/// Whether a media type, or a list of them, asks for MessagePack with extension types.
pub(crate) fn asks_for_extensions(header: &str) -> bool {
    header.split([',', ';']).any(|part| {
        let Some((name, value)) = part.split_once('=') else { return false };
        name.trim().eq_ignore_ascii_case("extensions")
            && value.trim().trim_matches('"').eq_ignore_ascii_case("callboard")
    })
}

/// The longest possible length without extension types. `None` without extensions: the value is plain already.
pub(crate) fn plain_length(bytes: &[u8]) -> Option<usize> {
    let mut items = MsgpackItems { rest: bytes };
    let (mut found, mut more) = (false, 0_usize);
    while let Some(item) = items.next() {
        let MsgpackItem::Extension(code, payload) = item else { continue };
        found = true;
        match code {
            // The items of the tuple follow.
            TUPLE => more += items.enter(payload, bytes),
            TENSOR => more += TENSOR_WORDS + payload.get(1).map_or(0, |rank| usize::from(*rank)),
            // Five bytes for the header of each list, besides the texts.
            TEXTS => more += texts(payload).map_or(0, |texts| texts.lists()).saturating_mul(5),
            _ => more += 16,
        }
    }
    found.then(|| bytes.len().saturating_add(more))
}

/// The same value without extension types, of at most this length.
pub(crate) fn plain(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length);
    write_plain(&mut out, bytes).expect("a vector takes all bytes");
    out
}

fn write_plain(out: &mut Vec<u8>, bytes: &[u8]) -> Written {
    let mut items = MsgpackItems { rest: bytes };
    let mut copied = bytes;
    loop {
        let before = items.rest;
        let item = items.next();
        if let Some(MsgpackItem::Other) = item {
            continue;
        }
        // Bytes since the last extension are copied.
        out.extend_from_slice(&copied[..copied.len() - before.len()]);
        let Some(MsgpackItem::Extension(code, payload)) = item else { return Ok(()) };
        match code {
            TUPLE => _ = items.enter(payload, bytes),
            SCALAR => write_scalar(out, payload)?,
            TENSOR => write_tensor(out, payload)?,
            TEXTS => write_texts(out, payload)?,
            _ => write_bin(out, payload)?,
        }
        copied = items.rest;
    }
}

const TUPLE: u8 = 1;
const SCALAR: u8 = 2;
const TENSOR: u8 = 3;
const TEXTS: u8 = 4;

/// The map, its three keys, the longest name and the headers of shape and data.
const TENSOR_WORDS: usize = 48;

/// One item; the header alone of an array or map, whose members follow.
enum MsgpackItem<'a> {
    Other,
    Extension(u8, &'a [u8]),
}

struct MsgpackItems<'a> {
    rest: &'a [u8],
}

impl<'a> MsgpackItems<'a> {
    /// Continues inside the extension that was just read. It becomes no longer.
    fn enter(&mut self, payload: &'a [u8], whole: &'a [u8]) -> usize {
        self.rest = &whole[whole.len() - self.rest.len() - payload.len()..];
        0
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// A length in this many bytes.
    fn length(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn skip(&mut self, length: usize) -> Option<MsgpackItem<'a>> {
        self.take(length).map(|_| MsgpackItem::Other)
    }

    fn extension(&mut self, length: usize) -> Option<MsgpackItem<'a>> {
        let code = *self.take(1)?.first()?;
        Some(MsgpackItem::Extension(code, self.take(length)?))
    }
}

impl<'a> Iterator for MsgpackItems<'a> {
    type Item = MsgpackItem<'a>;

    fn next(&mut self) -> Option<MsgpackItem<'a>> {
        let marker = *self.take(1)?.first()?;
        match marker {
            0xa0..=0xbf => self.skip(usize::from(marker & 0x1f)),
            0xc4 | 0xd9 => self.length(1).and_then(|length| self.skip(length)),
            0xc5 | 0xda => self.length(2).and_then(|length| self.skip(length)),
            0xc6 | 0xdb => self.length(4).and_then(|length| self.skip(length)),
            0xc7 => self.length(1).and_then(|length| self.extension(length)),
            0xc8 => self.length(2).and_then(|length| self.extension(length)),
            0xc9 => self.length(4).and_then(|length| self.extension(length)),
            0xcc | 0xd0 => self.skip(1),
            0xcd | 0xd1 | 0xdc | 0xde => self.skip(2),
            0xca | 0xce | 0xd2 | 0xdd | 0xdf => self.skip(4),
            0xcb | 0xcf | 0xd3 => self.skip(8),
            0xd4..=0xd8 => self.extension(1 << (marker - 0xd4)),
            _ => Some(MsgpackItem::Other),
        }
    }
}

/// The type of a code. Codes count from 1 in the order of all types.
fn dtype_of(code: u8) -> Option<DType> {
    DType::all().nth(usize::from(code).checked_sub(1)?)
}

fn write_null(out: &mut Vec<u8>) -> Written {
    out.push(Marker::Null.to_u8());
    Ok(())
}

fn write_scalar(out: &mut Vec<u8>, payload: &[u8]) -> Written {
    let Some((code, number)) = payload.split_first() else { return write_null(out) };
    match dtype_of(*code) {
        Some(dtype @ (DType::C64 | DType::C128)) => {
            let (real, imaginary) = number.split_at(number.len() / 2);
            write_array_len(out, 2)?;
            let part = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            write_number(out, part, real)?;
            write_number(out, part, imaginary)
        }
        Some(dtype) => write_number(out, dtype, number),
        None => write_null(out),
    }
}

fn write_number(out: &mut Vec<u8>, dtype: DType, number: &[u8]) -> Written {
    let mut wide = [0; 8];
    let length = number.len().min(8);
    wide[..length].copy_from_slice(&number[..length]);
    let unsigned = u64::from_le_bytes(wide);
    // The sign is in the last byte.
    let bits = 64 - 8 * length as u32;
    let signed = (unsigned.checked_shl(bits).unwrap_or(0) as i64).checked_shr(bits).unwrap_or(0);
    match dtype {
        DType::Bool => out.push(if unsigned == 0 { Marker::False } else { Marker::True }.to_u8()),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => _ = write_sint(out, signed)?,
        DType::F16 => write_f32(out, f16::from_bits(unsigned as u16).to_f32())?,
        DType::BF16 => write_f32(out, bf16::from_bits(unsigned as u16).to_f32())?,
        DType::F32 => write_f32(out, f32::from_bits(unsigned as u32))?,
        DType::F64 => write_f64(out, f64::from_bits(unsigned))?,
        _ => _ = write_uint(out, unsigned)?,
    }
    Ok(())
}

/// The header of a tensor or of texts: code, rank, six zeros, the axes; then the data.
fn header(payload: &[u8]) -> Option<(u8, Vec<u64>, &[u8])> {
    let (front, rest) = payload.split_at_checked(8)?;
    let (axes, rest) = rest.split_at_checked(8 * usize::from(front[1]))?;
    let (axes, _) = axes.as_chunks::<8>();
    Some((front[0], axes.iter().map(|axis| u64::from_le_bytes(*axis)).collect(), rest))
}

fn write_tensor(out: &mut Vec<u8>, payload: &[u8]) -> Written {
    let Some((code, axes, data)) = header(payload) else { return write_null(out) };
    write_map_len(out, 3)?;
    write_str(out, "dtype")?;
    write_str(out, dtype_of(code).map_or("?", DType::numpy_name))?;
    write_str(out, "shape")?;
    write_array_len(out, axes.len() as u32)?;
    for axis in axes {
        write_uint(out, axis)?;
    }
    write_str(out, "data")?;
    write_bin(out, data)
}

struct TextArray<'a> {
    axes: Vec<u64>,
    ends: &'a [[u8; 8]],
    text: &'a [u8],
}

impl TextArray<'_> {
    /// The number of arrays that they become.
    fn lists(&self) -> usize {
        let of_level =
            |level: usize| self.axes[..level].iter().fold(1_u64, |product, axis| product.saturating_mul(*axis));
        let all = (0..self.axes.len()).map(of_level).fold(0, u64::saturating_add);
        usize::try_from(all).unwrap_or(usize::MAX)
    }
}

fn texts(payload: &[u8]) -> Option<TextArray<'_>> {
    let (_, axes, rest) = header(payload)?;
    let count = axes.iter().try_fold(1_usize, |product, axis| product.checked_mul(usize::try_from(*axis).ok()?))?;
    let (ends, text) = rest.split_at_checked(count.checked_mul(8)?)?;
    Some(TextArray { axes, ends: ends.as_chunks::<8>().0, text })
}

fn write_texts(out: &mut Vec<u8>, payload: &[u8]) -> Written {
    let Some(TextArray { axes, ends, text }) = texts(payload) else { return write_null(out) };
    let mut begin = 0;
    let mut ends = ends.iter().map(|end| usize::try_from(u64::from_le_bytes(*end)).unwrap_or(usize::MAX));
    write_level(out, &axes, &mut |out: &mut Vec<u8>| {
        let end = ends.next().unwrap_or(begin);
        let text = text.get(begin..end).unwrap_or_default();
        begin = end;
        write_str_len(out, text.len() as u32)?;
        out.extend_from_slice(text);
        Ok(())
    })
}

/// Ranks are at most 32, which bounds the recursion.
fn write_level(out: &mut Vec<u8>, axes: &[u64], leaf: &mut dyn FnMut(&mut Vec<u8>) -> Written) -> Written {
    let Some((length, inner)) = axes.split_first() else { return leaf(out) };
    let length = u32::try_from(*length).unwrap_or(0);
    write_array_len(out, length)?;
    (0..length).try_for_each(|_| write_level(out, inner, leaf))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use callboard_codec::{DecodeLimits, Format, Map, Scalar, StrTensor, Tensor, Value};

    use super::*;

    fn plainly(value: &Value) -> Value {
        let bytes = value.encode(Format::Msgpack).unwrap();
        let Some(length) = plain_length(&bytes) else { return value.clone() };
        let plain = plain(&bytes, length);
        assert!(plain.len() <= length, "{} > {length}: {value:?}", plain.len());
        assert_eq!(plain_length(&plain), None, "nothing is left");
        Value::decode(Format::Msgpack, &plain.into(), &DecodeLimits::default()).unwrap()
    }

    fn list(items: impl IntoIterator<Item = Value>) -> Value {
        Value::List(items.into_iter().collect())
    }

    #[test]
    fn each_extension_becomes_the_plain_value_nearest_to_it() {
        let tensor = Tensor::from_vec(&[1, 2], vec![1.5_f32, -2.0]).unwrap();
        let data = Bytes::copy_from_slice(tensor.data());
        let as_map = Value::Map(Map::from_iter([
            ("dtype", Value::from("float32")),
            ("shape", list([Value::Int(1), Value::Int(2)])),
            ("data", Value::Bytes(data)),
        ]));
        let texts = StrTensor::from_texts(&[2, 2], ["", "b", "c".repeat(300).as_str(), "ü"]).unwrap();
        let as_lists =
            list([list([Value::from(""), Value::from("b")]), list([Value::from("c".repeat(300)), Value::from("ü")])]);
        let inner = Value::Tuple(vec![Value::Tensor(tensor.clone()), Value::Tuple(Vec::new()), Value::from("x")]);
        let whole = Value::Map(Map::from_iter([
            ("before", list([Value::Float(0.5), Value::Bytes(vec![0xc7; 300].into()), Value::Int(-70000)])),
            ("inner", inner),
            ("texts", Value::StrTensor(texts)),
            ("after", Value::Null),
        ]));
        let expected = Value::Map(Map::from_iter([
            ("before", list([Value::Float(0.5), Value::Bytes(vec![0xc7; 300].into()), Value::Int(-70000)])),
            ("inner", list([as_map.clone(), list([]), Value::from("x")])),
            ("texts", as_lists),
            ("after", Value::Null),
        ]));
        assert_eq!(plainly(&whole), expected);
        assert_eq!(plainly(&Value::Tensor(tensor.clone())), as_map);
        // The sent form decodes to the same tensor.
        assert_eq!(Tensor::from_value(&as_map, Some(DType::F32)).unwrap(), tensor);
    }

    #[test]
    fn a_scalar_becomes_a_number() {
        for (scalar, number) in [
            (Scalar::Bool(true), Value::Bool(true)),
            (Scalar::I8(-1), Value::Int(-1)),
            (Scalar::I16(-200), Value::Int(-200)),
            (Scalar::I32(-70_000), Value::Int(-70_000)),
            (Scalar::I64(i64::MIN), Value::Int(i64::MIN)),
            (Scalar::I64(5), Value::Int(5)),
            (Scalar::U8(200), Value::Int(200)),
            (Scalar::U64(u64::MAX), Value::UInt(u64::MAX)),
            (Scalar::F32(0.5), Value::Float(0.5)),
            (Scalar::F64(0.1), Value::Float(0.1)),
        ] {
            assert_eq!(plainly(&Value::Scalar(scalar)), number, "{scalar:?}");
        }
    }

    #[test]
    fn empty_axes_are_preserved() {
        let texts = StrTensor::from_texts(&[3, 0], std::iter::empty::<&str>()).unwrap();
        assert_eq!(plainly(&Value::StrTensor(texts)), list([list([]), list([]), list([])]));
        assert_eq!(plain_length(&Value::from("plain").encode(Format::Msgpack).unwrap()), None);
    }

    #[test]
    fn the_extensions_parameter_is_parsed_like_any_parameter() {
        for asks in [
            WITH_EXTENSIONS,
            "application/msgpack;Extensions=\"Callboard\"",
            "a/b, application/msgpack; q=0.5; extensions=callboard",
        ] {
            assert!(asks_for_extensions(asks), "{asks}");
        }
        for not in ["application/msgpack", "application/msgpack; extensions=none", ""] {
            assert!(!asks_for_extensions(not), "{not}");
        }
    }
}
