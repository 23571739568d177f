//! From any serde type to a [`Value`] and back, without a text or byte form between.
//!
//! A type takes the form that it has in JSON (a `Uuid` is text, an enum is externally tagged, a missing `Option` is
//! null), because a value may have come from JSON or go there; what JSON has no word for (bytes, tuples, tensors) is
//! kept.

mod de;
mod ser;

use ::serde::Serialize;
use ::serde::de::DeserializeOwned;

use crate::MAX_DEPTH;
use crate::error::{DecodeError, EncodeError};
use crate::metered::{Metered, refusal};
use crate::quoting::Short;
use crate::value::Value;

impl Value {
    /// Makes a value of any serde type.
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
        value.serialize(ser::ValueSerializer::new()).map_err(|error| error.of_type(std::any::type_name::<T>()))
    }

    /// What a Rust type becomes on its way to a stage or caller that asks for another type: the same as through
    /// MessagePack or an envelope, which have no word for a Rust tuple but a list.
    pub(crate) fn of_payload<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        value.serialize(ser::ValueSerializer::of_payload()).map_err(|error| error.of_type(std::any::type_name::<T>()))
    }

    /// Makes any serde type of the value.
    ///
    /// # Errors
    ///
    /// A [`Mismatch`](crate::DecodeErrorKind::Mismatch) that names the field: missing, of another type, or refused by
    /// the type's own `Deserialize`.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let read = T::deserialize(Metered::new(de::ValueDeserializer::new(self), MAX_DEPTH));
        // Also where it was read: an untagged enum goes on with its next variant after a refusal.
        refusal(MAX_DEPTH).map_or_else(|| read.map_err(Short::into_inner), Err)
    }
}
