//! How our own types pass through serde without loss, although serde's data model does not have them.
//!
//! A tensor, a typed scalar, a tuple and a byte string each have a *plain* form for people (nested lists, a number, a
//! list, base64) and an *exact* one for programs. Which of the two is written depends on the serializer:
//!
//! * a format for people (JSON) is `is_human_readable` and gets the plain form;
//! * a binary format (rmp-serde) gets the exact form, as the pair of code and bytes that rmp-serde writes as an
//!   extension;
//! * the serializer to [`Value`](crate::Value) is human-readable, so that a user's types take the same form as in JSON,
//!   but knows the name [`EXACT`] and gets the value under it unchanged (see [`handover`]).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::ser::{Error as _, SerializeTuple};
use serde::{Serialize, Serializer};

use crate::account::TemporaryCharge;
use crate::error::EncodeError;
use crate::out::ChargedBuffer;
use crate::serde_impls::handover;
use crate::value::Value;

/// Wraps everything that has an exact form. Formats that do not know the name pass a newtype through.
pub(crate) const EXACT: &str = "$callboard::exact";

/// The name under which rmp-serde reads and writes a MessagePack extension.
pub(crate) const EXTENSION: &str = "_ExtStruct";

/// All forms of a type with an extension code. Each is made only when it is needed.
pub(crate) struct Forms<'a, P, F, V> {
    /// For people.
    pub(crate) plain: &'a P,
    /// The extension's code.
    pub(crate) code: i8,
    /// The extension's bytes.
    pub(crate) payload: F,
    /// The value itself, to be shared.
    pub(crate) shared: V,
    /// About how many bytes the payload has.
    pub(crate) bytes: usize,
}

/// Writes whichever form suits the serializer.
pub(crate) fn serialize<S, P, F, V>(serializer: S, forms: Forms<'_, P, F, V>) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    P: Serialize,
    F: Fn() -> Result<ChargedBuffer, EncodeError>,
    V: Fn() -> Value,
{
    serializer.serialize_newtype_struct(EXACT, &forms)
}

impl<P: Serialize, F: Fn() -> Result<ChargedBuffer, EncodeError>, V: Fn() -> Value> Serialize for Forms<'_, P, F, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if handover::offer(&self.shared) {
            return serializer.serialize_unit();
        }
        if serializer.is_human_readable() {
            return self.plain.serialize(serializer);
        }
        if handover::refuses(self.bytes) {
            return Err(S::Error::custom(LARGE));
        }
        let payload = (self.payload)().map_err(S::Error::custom)?;
        serializer.serialize_newtype_struct(EXTENSION, &Extension { code: self.code, payload })
    }
}

/// Never leaves this crate: the envelope starts again with segments.
const LARGE: &str = "a leaf that belongs into a segment";

/// A code and its bytes: the shape that rmp-serde wants under [`EXTENSION`].
struct Extension {
    code: i8,
    payload: ChargedBuffer,
}

impl Serialize for Extension {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&self.code)?;
        pair.serialize_element(&RawBytes(self.payload.as_slice()))?;
        pair.end()
    }
}

/// A byte string in whichever form suits the serializer: base64 or bytes.
pub(crate) fn serialize_bytes<S: Serializer>(serializer: S, bytes: &Bytes) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(EXACT, &BytesForms(bytes))
}

struct BytesForms<'a>(&'a Bytes);

impl Serialize for BytesForms<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if handover::offer(|| Value::Bytes(self.0.clone())) {
            return serializer.serialize_unit();
        }
        if serializer.is_human_readable() {
            let mut text = TemporaryCharge::new();
            text.grow(base64::encoded_len(self.0.len(), true).unwrap_or(usize::MAX)).map_err(S::Error::custom)?;
            return serializer.serialize_str(&BASE64.encode(self.0));
        }
        if handover::refuses(self.0.len()) {
            return Err(S::Error::custom(LARGE));
        }
        serializer.serialize_bytes(self.0)
    }
}

struct RawBytes<'a>(&'a [u8]);

impl Serialize for RawBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}
