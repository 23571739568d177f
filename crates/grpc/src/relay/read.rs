//! A request of a relay as the arguments of a function.
//!
//! Two bytes of a message may stand for a value of a hundred. So all values are counted first, with their depth, and
//! the call pays for them before one is made. Arrays share the bytes of the message.

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Map, Value};
use callboard_core::FunctionCall;
use callboard_http::protocol::ApiError;

use super::{MAX_MESSAGES, kind, malformed};
use crate::wire::{FieldValue, Fields, WRONG_TYPE};

/// The memory of a value in a list while that grows, and of an entry of a map besides its texts.
const ITEM_BYTES: usize = 80;
const ENTRY_BYTES: usize = 160;

/// A `KaggleEvaluationRequest` whose arguments are not read yet.
#[derive(Clone, Debug)]
pub(crate) struct SendMessage {
    pub(crate) name: String,
    bytes: Bytes,
}

/// What the values of a request need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) values: usize,
    pub(crate) bytes: usize,
}

impl SendMessage {
    /// # Errors
    ///
    /// The bytes are no message, or the name of the function is too long.
    pub(crate) fn read(bytes: Bytes) -> Result<Self, ApiError> {
        let mut name = String::new();
        for field in Fields::new(bytes.clone()) {
            if let (1, value) = field? {
                name = value.short_text()?;
            }
        }
        Ok(Self { name, bytes })
    }

    /// Counts the values.
    ///
    /// # Errors
    ///
    /// The message is malformed or too deep, or has more values than the limits allow.
    pub(crate) fn count(&self, limits: &DecodeLimits) -> Result<Counted, ApiError> {
        // A level of values is two messages at least.
        let max_messages = MAX_MESSAGES.min(limits.max_depth.saturating_mul(2));
        let mut counter = Counter { counted: Counted::default(), max_messages, limits };
        for field in Fields::new(self.bytes.clone()) {
            match field? {
                (2, value) => counter.item(value.bytes()?, 1)?,
                (3, entry) => counter.entry(entry.bytes()?, 1)?,
                _ => {}
            }
        }
        Ok(counter.counted)
    }

    /// The arguments. They were [counted](Self::count).
    ///
    /// # Errors
    ///
    /// A value is malformed, or no value of a relay.
    pub(crate) fn decode(&self, limits: &DecodeLimits) -> Result<FunctionCall, ApiError> {
        let mut call = FunctionCall::default();
        for field in Fields::new(self.bytes.clone()) {
            match field? {
                (2, value) => call.args.push(payload(value.bytes()?, limits)?),
                (3, entry) => insert(&mut call.kwargs, entry.bytes()?, limits)?,
                _ => {}
            }
        }
        Ok(call)
    }
}

struct Counter<'a> {
    counted: Counted,
    max_messages: usize,
    limits: &'a DecodeLimits,
}

impl Counter<'_> {
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let Counted { values, bytes: all } = &mut self.counted;
        (*values, *all) = (*values + 1, *all + bytes);
        let DecodeLimits { max_elements, max_tree_bytes, .. } = self.limits;
        if *values > *max_elements {
            return Err(malformed(format!("more elements than max_elements = {max_elements}")));
        }
        if *all > *max_tree_bytes {
            return Err(malformed(format!("more structure than max_tree_bytes = {max_tree_bytes}")));
        }
        Ok(())
    }

    fn too_deep(&self) -> ApiError {
        malformed(format!("values in more than {} messages: those of protobuf, or max_depth", self.max_messages))
    }

    /// A `Payload` in this many messages.
    fn item(&mut self, bytes: Bytes, depth: usize) -> Result<(), ApiError> {
        self.take(ITEM_BYTES)?;
        self.payload(bytes, depth)
    }

    fn payload(&mut self, bytes: Bytes, depth: usize) -> Result<(), ApiError> {
        if depth > self.max_messages {
            return Err(self.too_deep());
        }
        for field in Fields::new(bytes) {
            match field? {
                // A list and a map are messages of their own, and so is an entry of a map.
                (kind::LIST | kind::TUPLE | kind::DICT, _) if depth >= self.max_messages => {
                    return Err(self.too_deep());
                }
                (kind::LIST | kind::TUPLE, value) => {
                    for field in Fields::new(value.bytes()?) {
                        if let (1, value) = field? {
                            self.item(value.bytes()?, depth + 2)?;
                        }
                    }
                }
                (kind::DICT, value) => {
                    for field in Fields::new(value.bytes()?) {
                        if let (1, entry) = field? {
                            self.entry(entry.bytes()?, depth + 2)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An entry of a map in this many messages.
    fn entry(&mut self, bytes: Bytes, depth: usize) -> Result<(), ApiError> {
        self.take(ENTRY_BYTES)?;
        for field in Fields::new(bytes) {
            if let (2, value) = field? {
                self.payload(value.bytes()?, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// The value of a `Payload`. Its depth was counted.
fn payload(bytes: Bytes, limits: &DecodeLimits) -> Result<Value, ApiError> {
    let mut found = None;
    for field in Fields::new(bytes) {
        let (number, value) = field?;
        // A later version may have other fields beside them.
        if let Some(value) = of_kind(number, value, limits)?
            && found.replace(value).is_some()
        {
            return Err(malformed("a value has two types"));
        }
    }
    found.ok_or_else(|| malformed("a value has no type that this server knows"))
}

fn of_kind(number: u32, value: FieldValue, limits: &DecodeLimits) -> Result<Option<Value>, ApiError> {
    let decoded = |format: Format, value: FieldValue| -> Result<Value, ApiError> {
        Ok(Value::decode(format, &value.bytes()?, limits)?)
    };
    Ok(Some(match (number, value) {
        (kind::STR, value) => Value::Str(text(value, limits)?),
        (kind::BOOL, FieldValue::Varint(value)) => Value::Bool(value != 0),
        // The sign is the last bit.
        (kind::INT, FieldValue::Varint(value)) => Value::Int((value >> 1).cast_signed() ^ -(value & 1).cast_signed()),
        (kind::FLOAT, FieldValue::Fixed32(bits)) => Value::Float(f32::from_bits(bits).into()),
        (kind::NONE, FieldValue::Varint(_)) => Value::Null,
        (kind::LIST, value) => Value::List(items(value, limits)?),
        (kind::TUPLE, value) => Value::Tuple(items(value, limits)?),
        (kind::DICT, value) => {
            let mut map = Map::new();
            for field in Fields::new(value.bytes()?) {
                if let (1, entry) = field? {
                    insert(&mut map, entry.bytes()?, limits)?;
                }
            }
            Value::Map(map)
        }
        (kind::ARRAY, value) => decoded(Format::Npy, value)?,
        (kind::SCALAR, value) => match decoded(Format::Npy, value)? {
            Value::Tensor(only) if only.shape().is_empty() => {
                only.to_scalar().map(Value::Scalar).ok_or_else(|| malformed("a scalar without a value"))?
            }
            _ => return Err(malformed("a scalar of NumPy is a number or a bool")),
        },
        (kind::BYTES_IO, value) => Value::Bytes(value.bytes()?),
        #[cfg(feature = "arrow")]
        (kind::POLARS_FRAME, value) => match decoded(Format::ArrowStream, value)? {
            Value::DataFrame(frame) => Value::DataFrame(frame.marked("polars")),
            other => other,
        },
        #[cfg(feature = "arrow")]
        (number, value) if let Some((_, library, form)) = super::PACKED.iter().find(|(of, ..)| *of == number) => {
            Value::DataFrame(callboard_codec::DataFrame::packed(library, form, value.bytes()?))
        }
        #[cfg(not(feature = "arrow"))]
        (number, _) if number == kind::POLARS_FRAME || super::PACKED.iter().any(|(of, ..)| *of == number) => {
            return Err(malformed("this server is built without data frames"));
        }
        (kind::BOOL | kind::INT | kind::FLOAT | kind::NONE, _) => return Err(WRONG_TYPE.into()),
        _ => return Ok(None),
    }))
}

fn text(value: FieldValue, limits: &DecodeLimits) -> Result<String, ApiError> {
    let text = value.text()?;
    if text.len() > limits.max_string_bytes {
        let (length, most) = (text.len(), limits.max_string_bytes);
        return Err(malformed(format!("string of {length} bytes exceeds max_string_bytes = {most}")));
    }
    Ok(text)
}

/// The values of a `PayloadList`.
fn items(list: FieldValue, limits: &DecodeLimits) -> Result<Vec<Value>, ApiError> {
    let mut items = Vec::new();
    for field in Fields::new(list.bytes()?) {
        if let (1, value) = field? {
            items.push(payload(value.bytes()?, limits)?);
        }
    }
    Ok(items)
}

/// Adds an entry of a map. Of two with the same key the last one counts.
fn insert(map: &mut Map, entry: Bytes, limits: &DecodeLimits) -> Result<(), ApiError> {
    let (mut key, mut found) = (String::new(), None);
    for field in Fields::new(entry) {
        match field? {
            (1, value) => key = text(value, limits)?,
            (2, value) => found = Some(payload(value.bytes()?, limits)?),
            _ => {}
        }
    }
    map.insert(key, found.ok_or_else(|| malformed("an entry of a map has no value"))?);
    Ok(())
}
