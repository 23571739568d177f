//! Values that stay in their process.

use std::any::type_name;
use std::ops::{Deref, DerefMut};

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value between two stages of one process. Its type needs no serde: an open file, a tokenizer's output, a type of
/// another crate.
///
/// It goes from stage to stage as any [`Data`](crate::Data) does in process: shared, not encoded. It cannot be the
/// input or output of a route, because it has no schema. Its receiver must run on the same node: encoding it is an
/// error that names the type.
///
/// ```
/// use callboard_codec::{Format, Local, Payload};
///
/// struct Parsed(std::net::IpAddr, std::sync::Mutex<u32>);
///
/// let payload = Payload::new(Local(Parsed([127, 0, 0, 1].into(), Default::default())));
/// assert!(payload.downcast_ref::<Local<Parsed>>().unwrap().0.0.is_loopback());
/// let error = payload.encode(Format::Json).unwrap_err();
/// assert!(error.to_string().contains("does not leave its process"), "{error}");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Local<T>(pub T);

impl<T> Deref for Local<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> From<T> for Local<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> Serialize for Local<T> {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(format_args!("a value of type `{}` does not leave its process", type_name::<T>())))
    }
}

impl<'de, T> Deserialize<'de> for Local<T> {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom(format_args!("a value of type `{}` comes from no other process", type_name::<T>())))
    }
}
