//! A payload travels between stages: a shared Rust value that is encoded only when it leaves the process.
//!
//! A [`Payload`] is an `Arc` of the value and a static table of functions for its type. Making one is a single
//! allocation; passing it on is a reference count. The receiver decides about encoding: a stage that takes the same
//! type gets the value itself, a stage that takes another type gets a conversion through [`Value`], and an edge gets
//! bytes.

use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::encoded::Encoded;
use crate::envelope::{self, Envelope};
use crate::error::{DecodeError, EncodeError};
use crate::format::Format;
use crate::typed::{self, Data, from_value};
use crate::value::Value;
use crate::value::tensor::Tensor;
use bytes::Bytes;

/// A shared Rust value of any [`Data`] type. Cloning shares it.
///
/// ```
/// use callboard_codec::{Format, Payload, Value};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// struct Greeting { name: String }
///
/// let payload = Payload::new(Greeting { name: "Ada".to_owned() });
/// assert_eq!(payload.downcast_ref::<Greeting>().unwrap().name, "Ada"); // the value itself
/// assert_eq!(payload.encode(Format::Json).unwrap(), r#"{"name":"Ada"}"#); // straight through serde_json
/// let dynamic = payload.into_arc::<Value>()?; // a conversion, because the types differ
/// assert_eq!(dynamic.get("name"), Some(&Value::from("Ada")));
/// # Ok::<(), callboard_codec::DecodeError>(())
/// ```
#[derive(Clone)]
pub struct Payload {
    value: Arc<dyn Any + Send + Sync>,
    functions: &'static Functions,
}

impl Payload {
    /// Shares a value. One allocation, and nothing is encoded.
    #[must_use]
    pub fn new<T: Data>(value: T) -> Self {
        Self::from_arc(Arc::new(value))
    }

    /// Makes a payload of a shared value. Nothing is allocated.
    #[must_use]
    pub fn from_arc<T: Data>(value: Arc<T>) -> Self {
        Self { value, functions: FunctionTable::<T>::FUNCTIONS }
    }

    /// Whether the value is a `T`.
    #[must_use]
    pub fn is<T: Data>(&self) -> bool {
        self.value.is::<T>()
    }

    /// The value, if it is a `T`.
    #[must_use]
    pub fn downcast_ref<T: Data>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }

    /// The value itself, if it is a `T`.
    ///
    /// # Errors
    ///
    /// This payload, if its value is of another type.
    pub fn downcast<T: Data>(self) -> Result<Arc<T>, Self> {
        self.value.downcast::<T>().map_err(|value| Self { value, functions: self.functions })
    }

    /// The value as a `T`: itself if it is a `T`, otherwise converted through [`Value`].
    ///
    /// # Errors
    ///
    /// When the types differ and the value does not fit `T`; the error names the field.
    pub fn into_arc<T: Data>(self) -> Result<Arc<T>, DecodeError> {
        self.downcast().or_else(Self::convert)
    }

    /// The dynamic value, if it is one; decoded if it is [`Encoded`].
    ///
    /// # Errors
    ///
    /// When the scope's account has no room for the decoded value.
    pub fn value(&self) -> Result<Option<&Value>, DecodeError> {
        match self.downcast_ref::<Encoded>() {
            Some(encoded) => encoded.value().map(|value| Some(&**value)),
            None => Ok(self.downcast_ref()),
        }
    }

    /// The value as an owned `T`: moved out if this payload is its only holder, cloned otherwise.
    ///
    /// # Errors
    ///
    /// As [`into_arc`](Self::into_arc).
    pub fn into_inner<T: Data + Clone>(self) -> Result<T, DecodeError> {
        self.into_arc().map(Arc::unwrap_or_clone)
    }

    /// The value as a dynamic one, as it would arrive over a network: a Rust tuple is a list. A [`Value`] inside is
    /// cloned, which copies its lists and texts but shares tensors and byte strings.
    ///
    /// # Errors
    ///
    /// When the type's own `Serialize` fails, or a part of it has no dynamic form.
    pub fn to_value(&self) -> Result<Value, EncodeError> {
        (self.functions.to_value)(&*self.value)
    }

    /// Writes the value by its own `Serialize`, without a [`Value`].
    ///
    /// # Errors
    ///
    /// When the type's own `Serialize` fails, or the format has no form for a part of the value.
    pub fn encode(&self, format: Format) -> Result<Bytes, EncodeError> {
        (self.functions.encode)(&*self.value, format)
    }

    /// The value as an envelope for another process, in pieces that share its tensors, frames and byte strings.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn to_envelope(&self) -> Result<Envelope, EncodeError> {
        (self.functions.to_envelope)(&*self.value)
    }

    /// The name of the Rust type inside, for logs and errors.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        (self.functions.type_name)()
    }

    /// An estimate of the value's memory in bytes: exact for dynamic values, tensors, texts and byte strings; for other
    /// types the size of the type, without heap memory.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        (self.functions.size_hint)(&*self.value)
    }

    /// The same, at most `most`. The walk over the value stops there.
    #[must_use]
    pub fn size_up_to(&self, most: usize) -> usize {
        match self.downcast_ref::<Value>() {
            Some(value) => most - value.left_of(most).unwrap_or(0),
            None => self.size_hint().min(most),
        }
    }

    /// The bytes of its envelope, if it is [`Encoded`] and reading it decodes it; else 0.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.downcast_ref::<Encoded>().map_or(0, |_| self.size_hint())
    }

    fn convert<T: Data>(self) -> Result<Arc<T>, DecodeError> {
        if TypeId::of::<T>() == TypeId::of::<Encoded>() {
            return Ok(known_as(Arc::new(Encoded::written(self.to_envelope()?))));
        }
        match self.downcast::<Encoded>() {
            Ok(encoded) if TypeId::of::<T>() == TypeId::of::<Value>() => {
                let value = Arc::try_unwrap(encoded).map_or_else(|shared| shared.value().cloned(), Encoded::into_value);
                value.map(|value| known_as(value))
            }
            Ok(encoded) => encoded.decode().map(Arc::new),
            Err(other) => match other.downcast_ref::<Value>() {
                Some(value) => value.deserialize().map(Arc::new),
                None => from_value(other.to_value()?).map(Arc::new),
            },
        }
    }
}

impl Envelope {
    /// The envelope of a value that is only borrowed: as [`Payload::to_envelope`].
    ///
    /// # Errors
    ///
    /// As [`Payload::encode`].
    pub fn of<T: Data>(value: &T) -> Result<Self, EncodeError> {
        to_envelope(value)
    }
}

/// Prints the type; the value need not be printable.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({})", self.type_name())
    }
}

/// The operations of a payload without its type.
struct Functions {
    type_name: fn() -> &'static str,
    encode: fn(&(dyn Any + Send + Sync), Format) -> Result<Bytes, EncodeError>,
    to_envelope: fn(&(dyn Any + Send + Sync)) -> Result<Envelope, EncodeError>,
    to_value: fn(&(dyn Any + Send + Sync)) -> Result<Value, EncodeError>,
    size_hint: fn(&(dyn Any + Send + Sync)) -> usize,
}

/// The table of one type, made at compile time.
struct FunctionTable<T>(PhantomData<T>);

impl<T: Data> FunctionTable<T> {
    const FUNCTIONS: &'static Functions = &Functions {
        type_name: std::any::type_name::<T>,
        encode: |value, format| encode::<T>(known(value), format),
        to_envelope: |value| to_envelope::<T>(known(value)),
        to_value: |value| to_value::<T>(known(value)),
        size_hint: |value| size_hint::<T>(known(value)),
    };
}

/// A value whose type is known to be `T`.
fn known_as<T: Data>(value: Arc<dyn Any + Send + Sync>) -> Arc<T> {
    value.downcast().unwrap_or_else(|_| unreachable!("the type was compared"))
}

fn known<T: Data>(value: &(dyn Any + Send + Sync)) -> &T {
    value.downcast_ref().expect("a payload's table is made with its value")
}

/// The downcasts below compare two types known at compile time, so they cost nothing at run time.
fn encode<T: Data>(value: &T, format: Format) -> Result<Bytes, EncodeError> {
    if let Some(value) = (value as &dyn Any).downcast_ref::<Value>() {
        return value.encode(format);
    }
    if let Some(encoded) = (value as &dyn Any).downcast_ref::<Encoded>() {
        return match format {
            Format::Envelope => Ok(encoded.envelope().clone().try_into_bytes()?),
            Format::Json => encoded.to_json(),
            other => encoded.to_value()?.encode(other),
        };
    }
    match format {
        Format::Json => typed::json::to_bytes(value),
        Format::Msgpack => typed::msgpack::to_bytes(value),
        Format::Envelope => Ok(envelope::encode_typed(value)?.try_into_bytes()?),
        // The other formats know values only.
        other => Value::from_payload(value)?.encode(other),
    }
}

fn to_envelope<T: Data>(value: &T) -> Result<Envelope, EncodeError> {
    let any: &dyn Any = value;
    match (any.downcast_ref::<Value>(), any.downcast_ref::<Encoded>()) {
        (Some(value), _) => value.to_envelope(),
        (_, Some(encoded)) => Ok(encoded.envelope().clone()),
        _ => envelope::encode_typed(value),
    }
}

fn to_value<T: Data>(value: &T) -> Result<Value, EncodeError> {
    let any: &dyn Any = value;
    match (any.downcast_ref::<Value>(), any.downcast_ref::<Encoded>()) {
        (Some(value), _) => Ok(value.clone()),
        (_, Some(encoded)) => Ok(encoded.to_value()?),
        _ => Value::from_payload(value),
    }
}

fn size_hint<T: Data>(value: &T) -> usize {
    let any: &dyn Any = value;
    if let Some(value) = any.downcast_ref::<Value>() {
        return value.resident_bytes();
    }
    if let Some(encoded) = any.downcast_ref::<Encoded>() {
        return encoded.envelope().len();
    }
    let tensor = any.downcast_ref::<Tensor>().map(|tensor| tensor.data().len());
    let text = || any.downcast_ref::<String>().map(String::len);
    let bytes = || any.downcast_ref::<Vec<u8>>().map(Vec::len);
    size_of::<T>() + tensor.or_else(text).or_else(bytes).unwrap_or(0)
}
