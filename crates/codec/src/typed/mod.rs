//! Rust types straight into and out of bytes, with no [`Value`] between where the format allows it.

pub(crate) mod json;
pub(crate) mod msgpack;

use std::any::{Any, TypeId};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DecodeError;
use crate::value::Value;

/// A type that may travel between stages: serde can write and read it, and threads may share it.
///
/// Implemented for all such types, [`Value`] included. A type that serde does not know
/// goes from stage to stage in a [`Local`](crate::Local).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an input or output",
    label = "needs `Serialize`, `DeserializeOwned`, `Send`, `Sync` and `'static`",
    note = "derive both: `#[derive(serde::Serialize, serde::Deserialize)]`, on a type without borrowed fields",
    note = "between stages of one node, `Local<Type>` needs no serde",
    note = "if this is what a call gives, say its type: `let output: Type = client.call(route, input).await?`"
)]
pub trait Data: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Data for T {}

/// Makes a `T` of a value. A `Value` is returned as it is.
pub(crate) fn from_value<T: Data>(value: Value) -> Result<T, DecodeError> {
    if TypeId::of::<T>() != TypeId::of::<Value>() {
        return value.deserialize();
    }
    let mut same = Some(value);
    let same: &mut dyn Any = &mut same;
    let taken = same.downcast_mut::<Option<T>>().and_then(Option::take);
    Ok(taken.expect("T is Value"))
}
