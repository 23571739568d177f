//! Typed contents of an array, and its packed elements. Pure.
//!
//! FP16 and BF16 have no typed contents: they come and go as raw bytes only.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::DType;
use callboard_oip::parts::{Array, Datatype, InputSlot, Refusal, push_element};

use crate::proto::inference::InferTensorContents;
use crate::wire::{FieldValue, Fields, Malformed, WRONG_TYPE};

/// The names of the fields, from the first on.
const NAMES: [&str; 8] = [
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
    "fp32_contents",
    "fp64_contents",
    "bytes_contents",
];

/// The field with the elements of a type, if it has one.
fn field_of(datatype: Datatype) -> Option<u32> {
    let Datatype::Number(dtype) = datatype else { return Some(8) };
    Some(match dtype {
        DType::Bool => 1,
        DType::I8 | DType::I16 | DType::I32 => 2,
        DType::I64 => 3,
        DType::U8 | DType::U16 | DType::U32 => 4,
        DType::U64 => 5,
        DType::F32 => 6,
        DType::F64 => 7,
        _ => return None,
    })
}

/// Packs the elements of an input.
pub(crate) fn packed(slot: InputSlot<'_>, contents: Bytes) -> Result<Bytes, Refusal> {
    let InputSlot { name, datatype, count } = slot;
    let field = field_of(datatype).ok_or_else(|| {
        Refusal::new(format!("input '{name}' of {} has no typed contents: use raw_input_contents", datatype.name()))
    })?;
    let mut packer = Packer { slot, count: 0, packed: BytesMut::new(), shared: None };
    for next in Fields::new(contents) {
        let (number, value) = next?;
        if number == field {
            packer.take(value)?;
        } else if let Some(other) = number.checked_sub(1).and_then(|index| NAMES.get(index as usize)) {
            return Err(Refusal::new(format!("input '{name}' of {} has {other}", datatype.name())));
        }
    }
    if packer.count != count {
        return Err(Refusal::wrong_count(name, count, packer.count));
    }
    Ok(packer.shared.unwrap_or_else(|| packer.packed.freeze()))
}

struct Packer<'a> {
    slot: InputSlot<'a>,
    /// The elements until now, of which there are at most as many as the shape says.
    count: usize,
    packed: BytesMut,
    /// All elements, if they came packed as they are kept.
    shared: Option<Bytes>,
}

impl Packer<'_> {
    fn take(&mut self, value: FieldValue) -> Result<(), Refusal> {
        let Datatype::Number(dtype) = self.slot.datatype else {
            self.next()?;
            push_element(&mut self.packed, &value.bytes()?);
            return Ok(());
        };
        match (dtype, value) {
            (DType::F32, FieldValue::Fixed32(bits)) => {
                self.next()?;
                self.packed.put_u32_le(bits);
                Ok(())
            }
            (DType::F64, FieldValue::Fixed64(bits)) => {
                self.next()?;
                self.packed.put_u64_le(bits);
                Ok(())
            }
            (DType::F32 | DType::F64, FieldValue::Bytes(floats)) => self.take_floats(floats, dtype.size_bytes()),
            (DType::F32 | DType::F64, _) => Err(WRONG_TYPE.into()),
            (dtype, value) => value.varints(|number| self.take_number(dtype, number)),
        }
    }

    /// Takes packed floats: these are the elements.
    fn take_floats(&mut self, floats: Bytes, size: usize) -> Result<(), Refusal> {
        if !floats.len().is_multiple_of(size) {
            return Err(Malformed::new("packed floats end within one").into());
        }
        let is_all = self.count == 0 && self.slot.count.checked_mul(size) == Some(floats.len());
        for _ in 0..floats.len() / size {
            self.next()?;
        }
        if is_all {
            self.shared = Some(floats);
        } else {
            self.packed.extend_from_slice(&floats);
        }
        Ok(())
    }

    fn take_number(&mut self, dtype: DType, number: u64) -> Result<(), Refusal> {
        self.next()?;
        let wrong = || {
            let InputSlot { name, datatype, .. } = self.slot;
            let is_unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32);
            let shown = if is_unsigned { number.to_string() } else { number.cast_signed().to_string() };
            Refusal::new(format!("unable to read input '{name}': {shown} does not fit {}", datatype.name()))
        };
        let signed = number.cast_signed();
        match dtype {
            DType::Bool => self.packed.put_u8((number != 0).into()),
            DType::I8 => self.packed.put_i8(signed.try_into().map_err(|_| wrong())?),
            DType::I16 => self.packed.put_i16_le(signed.try_into().map_err(|_| wrong())?),
            DType::I32 => self.packed.put_i32_le(signed.try_into().map_err(|_| wrong())?),
            DType::I64 => self.packed.put_i64_le(signed),
            DType::U8 => self.packed.put_u8(number.try_into().map_err(|_| wrong())?),
            DType::U16 => self.packed.put_u16_le(number.try_into().map_err(|_| wrong())?),
            DType::U32 => self.packed.put_u32_le(number.try_into().map_err(|_| wrong())?),
            _ => self.packed.put_u64_le(number),
        }
        Ok(())
    }

    /// Counts an element.
    fn next(&mut self) -> Result<(), Refusal> {
        if self.count == self.slot.count {
            let InputSlot { name, count, .. } = self.slot;
            return Err(Refusal::wrong_count(name, count, count.saturating_add(1)));
        }
        self.count += 1;
        Ok(())
    }
}

/// Whether arrays of this type have typed contents.
pub(crate) fn has_contents(datatype: Datatype) -> bool {
    field_of(datatype).is_some()
}

/// The typed contents of an array. Each element is a number of at least four bytes.
pub(crate) fn typed(array: &Array) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    macro_rules! each {
        ($field:ident, $bytes:literal, $read:expr) => {
            contents.$field = array.data.as_chunks::<$bytes>().0.iter().map(|element| $read(*element)).collect()
        };
    }
    let Datatype::Number(dtype) = array.datatype else {
        contents.bytes_contents = array.elements().collect();
        return contents;
    };
    match dtype {
        DType::Bool => each!(bool_contents, 1, |[byte]: [u8; 1]| byte != 0),
        DType::I8 => each!(int_contents, 1, |bytes| i32::from(i8::from_le_bytes(bytes))),
        DType::I16 => each!(int_contents, 2, |bytes| i32::from(i16::from_le_bytes(bytes))),
        DType::I32 => each!(int_contents, 4, i32::from_le_bytes),
        DType::I64 => each!(int64_contents, 8, i64::from_le_bytes),
        DType::U8 => each!(uint_contents, 1, |[byte]: [u8; 1]| u32::from(byte)),
        DType::U16 => each!(uint_contents, 2, |bytes| u32::from(u16::from_le_bytes(bytes))),
        DType::U32 => each!(uint_contents, 4, u32::from_le_bytes),
        DType::U64 => each!(uint64_contents, 8, u64::from_le_bytes),
        DType::F32 => each!(fp32_contents, 4, f32::from_le_bytes),
        DType::F64 => each!(fp64_contents, 8, f64::from_le_bytes),
        _ => {}
    }
    contents
}
