//! How values and Rust types pass through serde.
//!
//! * [`exact`] is the rule: our own types have a plain form for people and an exact one for programs.
//! * `value`, `scalar`, `tensor` and `data_frame` are the `Serialize` and `Deserialize` of our own types.
//! * [`to_value`] and [`from_value`] make a [`Value`] of any serde type and back, without a text or byte form between.
//!   A type takes the form that it has in JSON: a `Uuid` is text, an enum is externally tagged, a missing `Option` is
//!   null. Bytes, tuples and tensors, for which JSON has no form, are kept.
//! * [`uniform`] gives a type that same form in every format.

#[cfg(feature = "arrow")]
mod data_frame;
pub(crate) mod exact;
mod from_value;
pub(crate) mod handover;
pub(crate) mod scalar;
mod tensor;
mod to_value;
pub(crate) mod uniform;
mod value;

use ::serde::Serialize;
use ::serde::de::DeserializeOwned;

use crate::error::{DecodeError, EncodeError};
use crate::limits::MAX_DEPTH;
use crate::metered::{Metered, refusal};
use crate::quoting::ShortError;
use crate::value::Value;

impl Value {
    /// Makes a value from any serde type.
    ///
    /// ```
    /// use callboard_codec::Value;
    ///
    /// let value = Value::from_serialize(&(1_u8, "two", [3.0]))?;
    /// assert!(matches!(value, Value::Tuple(_)));
    /// assert_eq!(value.deserialize::<(u8, String, Vec<f64>)>().unwrap(), (1, "two".to_owned(), vec![3.0]));
    /// # Ok::<(), callboard_codec::EncodeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the type's own `Serialize` fails, when a map key is no string, number, bool or unit variant, when a 128-bit
    /// integer does not fit 64, or when it is nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        value.serialize(to_value::ValueSerializer::new()).map_err(|error| error.with_type(std::any::type_name::<T>()))
    }

    /// Makes a value for a stage or caller of another type. It is the same as through MessagePack or an envelope, where
    /// a Rust tuple is a list.
    pub(crate) fn from_payload<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        value
            .serialize(to_value::ValueSerializer::from_payload())
            .map_err(|error| error.with_type(std::any::type_name::<T>()))
    }

    /// Makes any serde type from the value.
    ///
    /// # Errors
    ///
    /// A [`Mismatch`](crate::DecodeErrorKind::Mismatch) that names the field: missing, of another type, or refused by
    /// the type's own `Deserialize`.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let read = T::deserialize(Metered::new(from_value::ValueDeserializer::new(self), MAX_DEPTH));
        // Checked also after success: an untagged enum tries its next variant after a refusal.
        refusal(MAX_DEPTH).map_or_else(|| read.map_err(ShortError::into_inner), Err)
    }
}
