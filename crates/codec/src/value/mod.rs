//! The dynamic value: a payload without a Rust type.
//!
//! Defines the set of types and keeps them apart: a tuple is not a list, a bool not an integer, bytes are not text, and
//! a float keeps its 64 bits. Integers have one form only: [`Value::UInt`] is for numbers that do not fit an `i64`, so
//! build integers with `Value::from`.

mod convert;
#[cfg(feature = "arrow")]
pub(crate) mod data_frame;
mod map;
mod scalar;
pub(crate) mod size;
pub(crate) mod tensor;

use bytes::Bytes;

pub use map::{IntoIter as MapIntoIter, Iter as MapIter, Map};
pub use scalar::Scalar;

#[cfg(feature = "arrow")]
use crate::value::data_frame::{DataFrame, Series};
use crate::value::tensor::{StrTensor, Tensor};

/// A value whose type is known at run time.
///
/// ```
/// use callboard_codec::{DecodeLimits, Format, Map, Value};
///
/// let input = r#"{"name": "Ada", "scores": [1, 2.5], "admin": true}"#;
/// let value = Value::decode(Format::Json, &input.into(), &DecodeLimits::default())?;
/// assert_eq!(value.get("name").and_then(Value::as_str), Some("Ada"));
/// assert_eq!(value.get("scores"), Some(&Value::from(vec![Value::Int(1), Value::Float(2.5)])));
///
/// let reply = Value::from(Map::from_iter([("greeting", "hello")]));
/// assert_eq!(reply.encode(Format::Json).unwrap(), r#"{"greeting":"hello"}"#);
/// # Ok::<(), callboard_codec::DecodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Value {
    /// No value: JSON's `null`, Python's `None`, an empty `Option`.
    #[default]
    Null,
    /// True or false; never 0 or 1.
    Bool(bool),
    /// An integer that fits an `i64`.
    Int(i64),
    /// An integer beyond `i64::MAX`, and no other. `Value::from(n)` chooses.
    UInt(u64),
    /// A 64-bit float, kept bit by bit (NaN payloads and the sign of zero included).
    Float(f64),
    /// Text.
    Str(String),
    /// A byte string. Decoded ones share the input's buffer.
    Bytes(Bytes),
    /// A sequence of any values.
    List(Vec<Self>),
    /// A sequence whose length is part of its type, as a Rust or Python tuple.
    Tuple(Vec<Self>),
    /// String keys to values, in insertion order.
    Map(Map),
    /// A number with the width of its type.
    Scalar(Scalar),
    /// An n-dimensional array.
    Tensor(Tensor),
    /// An n-dimensional array of texts.
    StrTensor(StrTensor),
    /// Named columns of equal length.
    #[cfg(feature = "arrow")]
    DataFrame(DataFrame),
    /// One named column.
    #[cfg(feature = "arrow")]
    Series(Series),
}

impl Value {
    /// The kind of the value in one word, for messages: `null`, `bool`, `int`, `float`, `str`, `bytes`, `list`,
    /// `tuple`, `map`, `scalar`, `tensor`, `str_tensor`, `data_frame`, `series`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::UInt(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Map(_) => "map",
            Self::Scalar(_) => "scalar",
            Self::Tensor(_) => "tensor",
            Self::StrTensor(_) => "str_tensor",
            #[cfg(feature = "arrow")]
            Self::DataFrame(_) => "data_frame",
            #[cfg(feature = "arrow")]
            Self::Series(_) => "series",
        }
    }

    /// Whether it is [`Value::Null`].
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The bool, if it is one, plain or as a scalar.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) | Self::Scalar(Scalar::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// The integer, plain or as a scalar, if it fits an `i64`.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::UInt(value) => i64::try_from(*value).ok(),
            Self::Scalar(scalar) => scalar.as_i64(),
            _ => None,
        }
    }

    /// The integer, plain or as a scalar, if it fits a `u64`.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(*value).ok(),
            Self::UInt(value) => Some(*value),
            Self::Scalar(scalar) => scalar.as_u64(),
            _ => None,
        }
    }

    /// The number as an `f64`: a float unchanged, an integer beyond 2⁵³ rounded.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Int(value) => Some(*value as f64),
            Self::UInt(value) => Some(*value as f64),
            Self::Scalar(scalar) => scalar.as_f64(),
            _ => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(value) => Some(value),
            _ => None,
        }
    }

    /// The items of a list or tuple. Match on the variant where the difference matters.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) | Self::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The map, if it is one, to be changed.
    pub const fn as_map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The value under a key, if this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_map()?.get(key)
    }
}

/// Declares how the content of one variant is read.
macro_rules! accessors {
    ($($(#[$about:meta])* $name:ident: $variant:ident($type:ty);)*) => {
        impl Value {
            $(
                $(#[$about])*
                #[must_use]
                pub const fn $name(&self) -> Option<&$type> {
                    match self {
                        Self::$variant(content) => Some(content),
                        _ => None,
                    }
                }
            )*
        }
    };
}

accessors! {
    /// The byte string, if it is one.
    as_bytes: Bytes(Bytes);
    /// The map, if it is one.
    as_map: Map(Map);
    /// The scalar, if it is one.
    as_scalar: Scalar(Scalar);
    /// The tensor, if it is one. [`Tensor::from_value`] takes nested lists too.
    as_tensor: Tensor(Tensor);
    /// The array of texts, if it is one. [`StrTensor::from_value`] takes nested lists too.
    as_str_tensor: StrTensor(StrTensor);
    /// The data frame, if it is one. [`DataFrame::from_value`] takes a map of columns too.
    #[cfg(feature = "arrow")]
    as_data_frame: DataFrame(DataFrame);
    /// The series, if it is one.
    #[cfg(feature = "arrow")]
    as_series: Series(Series);
}

#[cfg(test)]
mod tests;
