//! The fields of a protobuf message, one by one, without building it.
//!
//! A message of a few bytes may stand for a structure of many: `2a 00` is an input of an inference request. So requests
//! with a body of any length are read field by field, and nothing is built that their reader does not keep. Lengths are
//! compared with the bytes that are there; nothing is allocated for them, and nothing recurses.

use std::fmt;

use bytes::{Buf, Bytes};
use callboard_core::ErrorKind;
use callboard_http::protocol::ApiError;
use callboard_oip::parts::Refusal;

/// A field's number and value.
pub(crate) type FieldResult = Result<(u32, FieldValue), Malformed>;

/// The value of a field on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldValue {
    Varint(u64),
    Fixed64(u64),
    /// A text, bytes, a message, or several numbers.
    Bytes(Bytes),
    Fixed32(u32),
}

/// Bytes that are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(&'static str);

impl Malformed {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self(what)
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Malformed> for ApiError {
    fn from(malformed: Malformed) -> Self {
        Self::new(ErrorKind::InvalidInput, format!("the message cannot be read: {malformed}"))
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::new(format!("the message cannot be read: {malformed}"))
    }
}

/// Iterates over the fields of a message. Bytes are shared with it. It ends after an error.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Bytes);

impl Fields {
    pub(crate) const fn new(message: Bytes) -> Self {
        Self(message)
    }

    fn field(&mut self) -> FieldResult {
        let key = varint(&mut self.0)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0 && *number < 1 << 29);
        let number = number.ok_or(Malformed("a field has no valid number"))?;
        let value = match key & 7 {
            0 => FieldValue::Varint(varint(&mut self.0)?),
            1 => FieldValue::Fixed64(self.0.try_get_u64_le().map_err(|_| CUT)?),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).map_err(|_| CUT)?;
                if length > self.0.len() {
                    return Err(CUT);
                }
                FieldValue::Bytes(self.0.split_to(length))
            }
            5 => FieldValue::Fixed32(self.0.try_get_u32_le().map_err(|_| CUT)?),
            _ => return Err(Malformed("a field is a group, which no message here has")),
        };
        Ok((number, value))
    }
}

impl Iterator for Fields {
    type Item = FieldResult;

    fn next(&mut self) -> Option<FieldResult> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0.clear();
        }
        Some(field)
    }
}

/// The end of a message within a field.
const CUT: Malformed = Malformed("the message ends within a field");

/// At most ten bytes; bits beyond the 64th are dropped, as everywhere.
pub(crate) fn varint(bytes: &mut Bytes) -> Result<u64, Malformed> {
    // Most keys, lengths and axes.
    if let Some(byte @ ..0x80) = bytes.first().copied() {
        bytes.advance(1);
        return Ok(byte.into());
    }
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            bytes.advance(index + 1);
            return Ok(value);
        }
    }
    Err(if bytes.len() < 10 { CUT } else { Malformed("a number has more than ten bytes") })
}

impl FieldValue {
    /// A text.
    pub(crate) fn text(self) -> Result<String, Malformed> {
        let text = String::from_utf8(self.bytes()?.into());
        text.map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// A name or another short text.
    pub(crate) fn short_text(self) -> Result<String, Malformed> {
        match self {
            Self::Bytes(bytes) if bytes.len() > MAX_TEXT_BYTES => Err(LONG_TEXT),
            text => text.text(),
        }
    }

    /// Bytes, or a message.
    pub(crate) fn bytes(self) -> Result<Bytes, Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WRONG_TYPE),
        }
    }

    /// Gives each of its numbers: one, or several in a packed field.
    pub(crate) fn varints<E: From<Malformed>>(self, mut take: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        match self {
            Self::Varint(value) => take(value),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    take(varint(&mut packed)?)?;
                }
                Ok(())
            }
            _ => Err(WRONG_TYPE.into()),
        }
    }
}

/// The longest name, id or media type. Such texts are copied without a charge.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

const LONG_TEXT: Malformed = Malformed("a name, an id or a media type is longer than 1,024 bytes");

/// A field of another type than its declaration.
pub(crate) const WRONG_TYPE: Malformed = Malformed("a field has another type than it is declared with");

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(string, tag = "1")]
        text: String,
        #[prost(int64, repeated, tag = "3")]
        packed: Vec<i64>,
        #[prost(double, tag = "4")]
        double: f64,
        #[prost(fixed32, tag = "2000")]
        fixed: u32,
    }

    fn fields(bytes: &'static [u8]) -> Vec<FieldResult> {
        Fields::new(Bytes::from_static(bytes)).collect()
    }

    #[test]
    fn what_prost_writes_is_read_field_by_field() {
        let sample = Sample { text: "é".to_owned(), packed: vec![1, -1, i64::MIN], double: 0.5, fixed: 7 };
        let read: Vec<_> = Fields::new(sample.encode_to_vec().into()).map(Result::unwrap).collect();
        let [(1, text), (3, packed), (4, FieldValue::Fixed64(double)), (2000, FieldValue::Fixed32(7))] = &read[..]
        else {
            panic!("{read:?}")
        };
        assert_eq!(text.clone().text().unwrap(), "é");
        assert_eq!(f64::from_bits(*double), 0.5);
        let mut numbers = Vec::new();
        let push = |number: u64| {
            numbers.push(number.cast_signed());
            Ok::<_, Malformed>(())
        };
        packed.clone().varints(push).unwrap();
        assert_eq!(numbers, sample.packed);
    }

    #[test]
    fn no_length_is_trusted() {
        for cut in [&b"\x0a"[..], b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x09\0\0", b"\x80"]
        {
            assert_eq!(fields(cut), [Err(CUT)], "{cut:?}");
        }
        for bad in [&b"\x00\x00"[..], b"\x0b\x0c", b"\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(matches!(fields(bad)[..], [Err(_)]), "{bad:?}");
        }
    }
}
