//! From Rust's own types to [`Value`]: the conversions that cannot fail.
//!
//! Integers get their single form here. There is no `From<Vec<u8>>`: a list of small integers and a byte string would
//! look alike. Use `Value::Bytes` for bytes.

use bytes::Bytes;

use crate::value::tensor::{StrTensor, Tensor};
use crate::value::{Map, Scalar, Value};

macro_rules! from {
    ($($source:ty => |$value:ident| $made:expr),* $(,)?) => {$(
        impl From<$source> for Value {
            fn from($value: $source) -> Self {
                $made
            }
        }
    )*};
}

from! {
    () => |_unit| Self::Null,
    bool => |value| Self::Bool(value),
    i8 => |value| Self::Int(value.into()),
    i16 => |value| Self::Int(value.into()),
    i32 => |value| Self::Int(value.into()),
    i64 => |value| Self::Int(value),
    u8 => |value| Self::Int(value.into()),
    u16 => |value| Self::Int(value.into()),
    u32 => |value| Self::Int(value.into()),
    u64 => |value| i64::try_from(value).map_or(Self::UInt(value), Self::Int),
    usize => |value| Self::from(value as u64),
    f32 => |value| Self::Float(value.into()),
    f64 => |value| Self::Float(value),
    &str => |value| Self::Str(value.to_owned()),
    String => |value| Self::Str(value),
    Bytes => |value| Self::Bytes(value),
    Vec<Self> => |items| Self::List(items),
    Map => |map| Self::Map(map),
    Scalar => |scalar| Self::Scalar(scalar),
    Tensor => |tensor| Self::Tensor(tensor),
    StrTensor => |tensor| Self::StrTensor(tensor),
}

#[cfg(feature = "arrow")]
from! {
    crate::value::data_frame::DataFrame => |frame| Self::DataFrame(frame),
    crate::value::data_frame::Series => |series| Self::Series(series),
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Self>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}
