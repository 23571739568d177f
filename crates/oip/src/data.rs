//! `data` of an array in JSON: flat or nested lists of numbers, bools or texts, to packed bytes and back.
//!
//! Numbers are read as the array's type: whole numbers never through a float, and none out of range. FP16 and BF16,
//! which the protocol has in binary only, are accepted as numbers. JSON has no NaN and no infinities: clients can
//! request them in binary.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::DType;
use half::{bf16, f16};
use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::array::{Array, LENGTH_BYTES, push_element};
use super::datatype::Datatype;
use super::error::Refusal;

/// Packs the elements of `raw`, which must be `count`.
pub(crate) fn read(name: &str, datatype: Datatype, count: usize, raw: &RawValue) -> Result<Bytes, Refusal> {
    let text = raw.get();
    // An element has at least one character, and a comma follows all but the last.
    let most = text.len() / 2 + 1;
    if count > most {
        return Err(Refusal::wrong_count(name, count, most.min(text.len())));
    }
    let mut elements = ElementWriter::with_room(datatype, count);
    read_into(&mut elements, text).map_err(|error| Refusal::unparsable(name, error))?;
    if elements.count != count {
        return Err(Refusal::wrong_count(name, count, elements.count));
    }
    Ok(elements.packed.freeze())
}

fn read_into(elements: &mut ElementWriter, text: &str) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    NestedList { elements, depth: 0 }.deserialize(&mut json)
}

struct ElementWriter {
    datatype: Datatype,
    /// How many there may be.
    most: usize,
    count: usize,
    packed: BytesMut,
    /// The length of each axis, from the first complete list at its depth.
    shape: Vec<usize>,
}

impl ElementWriter {
    fn with_room(datatype: Datatype, count: usize) -> Self {
        let room = count.saturating_mul(datatype.size_bytes().unwrap_or(LENGTH_BYTES));
        Self { datatype, most: count, count: 0, packed: BytesMut::with_capacity(room), shape: Vec::new() }
    }

    fn push<E: de::Error>(&mut self, element: Element<'_>) -> Result<(), E> {
        if self.count == self.most {
            return Err(E::custom(format_args!("more than {} elements", self.most)));
        }
        self.count += 1;
        let wrong = || E::custom(format_args!("{element} does not fit {}", self.datatype.name()));
        let Datatype::Number(dtype) = self.datatype else {
            let Element::Text(text) = element else { return Err(wrong()) };
            push_element(&mut self.packed, text.as_bytes());
            return Ok(());
        };
        let packed = &mut self.packed;
        match (dtype, element) {
            (DType::Bool, Element::Bool(value)) => packed.put_u8(value.into()),
            (DType::I8, Element::Whole(value)) => packed.put_i8(value.try_into().map_err(|_| wrong())?),
            (DType::I16, Element::Whole(value)) => packed.put_i16_le(value.try_into().map_err(|_| wrong())?),
            (DType::I32, Element::Whole(value)) => packed.put_i32_le(value.try_into().map_err(|_| wrong())?),
            (DType::I64, Element::Whole(value)) => packed.put_i64_le(value.try_into().map_err(|_| wrong())?),
            (DType::U8, Element::Whole(value)) => packed.put_u8(value.try_into().map_err(|_| wrong())?),
            (DType::U16, Element::Whole(value)) => packed.put_u16_le(value.try_into().map_err(|_| wrong())?),
            (DType::U32, Element::Whole(value)) => packed.put_u32_le(value.try_into().map_err(|_| wrong())?),
            (DType::U64, Element::Whole(value)) => packed.put_u64_le(value.try_into().map_err(|_| wrong())?),
            (_, element) => {
                let value = match element {
                    Element::Whole(value) => value as f64,
                    Element::Number(value) => value,
                    Element::Bool(_) | Element::Text(_) => return Err(wrong()),
                };
                match dtype {
                    // JSON has no infinity: an infinite result is a number out of range.
                    DType::F16 if f16::from_f64(value).is_infinite() => return Err(wrong()),
                    DType::BF16 if bf16::from_f64(value).is_infinite() => return Err(wrong()),
                    DType::F32 if (value as f32).is_infinite() => return Err(wrong()),
                    DType::F16 => packed.put_u16_le(f16::from_f64(value).to_bits()),
                    DType::BF16 => packed.put_u16_le(bf16::from_f64(value).to_bits()),
                    DType::F32 => packed.put_f32_le(value as f32),
                    DType::F64 => packed.put_f64_le(value),
                    _ => return Err(wrong()),
                }
            }
        }
        Ok(())
    }

    /// A list at this depth had this many items.
    fn close<E: de::Error>(&mut self, depth: usize, items: usize) -> Result<(), E> {
        if self.shape.len() <= depth {
            self.shape.resize(depth + 1, usize::MAX);
        }
        match &mut self.shape[depth] {
            length @ &mut usize::MAX => *length = items,
            length if *length == items => {}
            length => return Err(E::custom(format_args!("a row of {items} beside one of {length}"))),
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Element<'a> {
    Bool(bool),
    Whole(i128),
    Number(f64),
    Text(&'a str),
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Whole(value) => value.fmt(f),
            // Not all 301 digits of 1e300.
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Text(_) => f.write_str("a text"),
        }
    }
}

/// Above this a float stands for several whole numbers.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn is_integer(dtype: DType) -> bool {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// A value, or a list of them. serde_json limits nesting to 128.
struct NestedList<'e> {
    elements: &'e mut ElementWriter,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for NestedList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestedList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or lists of them", self.elements.datatype.name())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.elements.push(Element::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.elements.push(Element::Whole(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.elements.push(Element::Whole(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        // `1.0` is a whole number for languages with one type of numbers, and `-0` is no float.
        match (self.elements.datatype, value) {
            (Datatype::Number(dtype), value) if is_integer(dtype) && value.fract() == 0.0 && value.abs() < EXACT => {
                self.elements.push(Element::Whole(value as i128))
            }
            (_, value) => self.elements.push(Element::Number(value)),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.elements.push(Element::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { elements, depth } = self;
        let mut items = 0;
        while seq.next_element_seed(NestedList { elements: &mut *elements, depth: depth + 1 })?.is_some() {
            items += 1;
        }
        elements.close(depth, items)
    }
}

/// Appends `data` of an array: a flat list.
pub(crate) fn write(name: &str, array: &Array, json: &mut Vec<u8>) -> Result<(), Refusal> {
    match array.datatype {
        Datatype::Bytes => write_texts(name, array, json),
        Datatype::Number(dtype) => write_numbers(name, dtype, array, json),
    }
}

fn write_texts(name: &str, array: &Array, json: &mut Vec<u8>) -> Result<(), Refusal> {
    json.push(b'[');
    for (index, element) in array.elements().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        let text = std::str::from_utf8(&element).map_err(|_| {
            Refusal::new(format!("element {index} of output '{name}' is not a string: request it with 'binary_data'"))
        })?;
        write_json(json, text);
    }
    json.push(b']');
    Ok(())
}

fn write_numbers(name: &str, dtype: DType, array: &Array, json: &mut Vec<u8>) -> Result<(), Refusal> {
    let not_finite = || {
        Refusal::new(format!(
            "output '{name}' has NaN or an infinity, which JSON does not have: request it with 'binary_data'"
        ))
    };
    macro_rules! list {
        ($bytes:literal, $read:expr) => {{
            let (elements, _) = array.data.as_chunks::<$bytes>();
            json.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    json.push(b',');
                }
                write_json(json, $read(*element));
            }
            json.push(b']');
        }};
    }
    macro_rules! floats {
        ($bytes:literal, $read:expr) => {{
            let (elements, _) = array.data.as_chunks::<$bytes>();
            if !elements.iter().all(|element| $read(*element).is_finite()) {
                return Err(not_finite());
            }
            list!($bytes, $read);
        }};
    }
    match dtype {
        DType::Bool => list!(1, |[byte]: [u8; 1]| byte != 0),
        DType::I8 => list!(1, i8::from_le_bytes),
        DType::I16 => list!(2, i16::from_le_bytes),
        DType::I32 => list!(4, i32::from_le_bytes),
        DType::I64 => list!(8, i64::from_le_bytes),
        DType::U8 => list!(1, u8::from_le_bytes),
        DType::U16 => list!(2, u16::from_le_bytes),
        DType::U32 => list!(4, u32::from_le_bytes),
        DType::U64 => list!(8, u64::from_le_bytes),
        DType::F16 => floats!(2, |bytes| f16::from_le_bytes(bytes).to_f32()),
        DType::BF16 => floats!(2, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        DType::F32 => floats!(4, f32::from_le_bytes),
        DType::F64 => floats!(8, f64::from_le_bytes),
        // Complex numbers have no datatype, so no array has them.
        _ => {
            return Err(Refusal::unsupported(format!(
                "output '{name}' is of {dtype}, which the protocol does not have"
            )));
        }
    }
    Ok(())
}

/// Writes to memory a type that serializes without errors.
fn write_json<T: serde::Serialize>(json: &mut Vec<u8>, value: T) {
    serde_json::to_writer(json, &value).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_text(datatype: Datatype, count: usize, json: &str) -> Result<Bytes, String> {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        read("x", datatype, count, raw).map_err(|error| error.to_string())
    }

    fn number(dtype: DType) -> Datatype {
        Datatype::Number(dtype)
    }

    #[test]
    fn whole_numbers_keep_all_their_bits() {
        let most = read_text(number(DType::U64), 1, "[18446744073709551615]").unwrap();
        assert_eq!(most[..], u64::MAX.to_le_bytes());
        let odd = read_text(number(DType::I64), 1, "-9007199254740993").unwrap();
        assert_eq!(odd[..], (-9_007_199_254_740_993_i64).to_le_bytes());
    }

    /// As languages with one type of numbers write it.
    #[test]
    fn a_whole_number_may_be_written_as_a_float() {
        assert_eq!(read_text(number(DType::U8), 3, "[1.0, 2, -0]").unwrap()[..], [1, 2, 0]);
    }

    #[test]
    fn numbers_out_of_range_and_of_another_kind_are_named() {
        for (dtype, json, named) in [
            (DType::U8, "[256]", "256 does not fit UINT8"),
            (DType::U8, "[-1]", "-1 does not fit UINT8"),
            (DType::I32, "[1.5]", "1.5 does not fit INT32"),
            (DType::U8, "[256.0]", "256 does not fit UINT8"),
            (DType::I64, "[1e300]", "1e300 does not fit INT64"),
            (DType::F32, "[1e300]", "does not fit FP32"),
            (DType::F16, "[1e6]", "does not fit FP16"),
            (DType::F32, "[true]", "true does not fit FP32"),
            (DType::F32, "[\"1\"]", "a text does not fit FP32"),
            (DType::Bool, "[1]", "1 does not fit BOOL"),
            (DType::F32, "[null]", "null"),
            (DType::F32, "[{}]", "map"),
        ] {
            let error = read_text(number(dtype), 1, json).unwrap_err();
            assert!(error.contains(named) && error.contains("'x'"), "{json}: {error}");
        }
    }

    #[test]
    fn the_number_of_elements_must_match_the_shape() {
        let f32s = number(DType::F32);
        assert_eq!(read_text(f32s, 4, "[[1,2],[3,4]]").unwrap().len(), 16);
        assert_eq!(read_text(f32s, 4, "[1,2,3,4]").unwrap().len(), 16);
        assert!(read_text(f32s, 4, "[1,2,3]").unwrap_err().contains("expecting 4"));
        assert!(read_text(f32s, 2, "[1,2,3]").unwrap_err().contains("more than 2"));
        assert!(read_text(f32s, usize::MAX, "[1]").unwrap_err().contains("unexpected size"));
        assert!(read_text(f32s, 3, "[[1,2],[3]]").unwrap_err().contains("a row of 1 beside one of 2"));
        assert_eq!(read_text(f32s, 0, "[]").unwrap().len(), 0);
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert!(read_text(f32s, 0, &deep).unwrap_err().contains("recursion"));
    }

    #[test]
    fn a_number_that_json_lacks_is_an_error_with_a_remedy() {
        let nan = Array { datatype: number(DType::F32), shape: vec![1], data: f32::NAN.to_le_bytes().to_vec().into() };
        assert!(write("y", &nan, &mut Vec::new()).unwrap_err().to_string().contains("binary_data"));
        let bytes = Array::from_elements(vec![1], [b"\xff"]);
        assert!(write("y", &bytes, &mut Vec::new()).unwrap_err().to_string().contains("binary_data"));
    }

    proptest! {
        #[test]
        fn written_data_reads_back(numbers: Vec<f32>, words: Vec<String>, halves: Vec<u16>) {
            let finite: Vec<u8> = numbers.iter().filter(|n| n.is_finite()).flat_map(|n| n.to_le_bytes()).collect();
            let halves = halves.into_iter().filter(|bits| f16::from_bits(*bits).is_finite());
            let halves: Vec<u8> = halves.flat_map(u16::to_le_bytes).collect();
            for array in [
                Array { datatype: number(DType::F32), shape: vec![finite.len() / 4], data: finite.into() },
                Array { datatype: number(DType::I16), shape: vec![halves.len() / 2], data: halves.clone().into() },
                Array { datatype: number(DType::F16), shape: vec![halves.len() / 2], data: halves.into() },
                Array::from_elements(vec![words.len()], &words),
            ] {
                let mut json = Vec::new();
                write("x", &array, &mut json).unwrap();
                let again = read_text(array.datatype, array.shape[0], std::str::from_utf8(&json).unwrap()).unwrap();
                prop_assert_eq!(again, array.data);
            }
        }
    }
}
