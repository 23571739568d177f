//! A value as checked envelope bytes: what goes on as an envelope becomes no tree in between.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::envelope::{self, Envelope, EnvelopeDecoder, ReceivedEnvelope};
use crate::error::{DecodeError, EncodeError};
use crate::format::Format;
use crate::json::Decimals;
use crate::limits::DecodeLimits;
use crate::msgpack;
use crate::typed::Data;
use crate::value::Value;

/// The bytes of an envelope that a decoder accepts. A [`Payload`](crate::Payload) of it goes to other processes as it
/// is, and is decoded where it is read.
///
/// ```
/// use callboard_codec::{DecodeLimits, Encoded, Format, Payload, Value};
///
/// let sent = Value::from("Ada").encode(Format::Envelope).unwrap();
/// let payload = Payload::new(Encoded::read(&sent, &DecodeLimits::default())?);
/// assert_eq!(payload.to_envelope().unwrap().into_bytes(), sent); // the very bytes
/// assert_eq!(payload.into_inner::<String>()?, "Ada");
/// # Ok::<(), callboard_codec::DecodeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encoded {
    envelope: Envelope,
    /// Its parts, unless this process has written it.
    received: Option<ReceivedEnvelope>,
    /// The decoded value, after the first read.
    value: OnceLock<Arc<Value>>,
}

impl Encoded {
    /// Checks an envelope as a decoder would, without building anything. It keeps the bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Value::decode`].
    pub fn read(bytes: &Bytes, limits: &DecodeLimits) -> Result<Self, DecodeError> {
        let received = ReceivedEnvelope::from_buffer(bytes, limits)?;
        received.check(limits)?;
        Ok(Self::new(Envelope::from_bytes(bytes.clone()), Some(received)))
    }

    /// Reads a body that goes on as an envelope: an envelope or MessagePack is checked and kept, JSON becomes one in
    /// one pass. `None`: the body is better read as a value, because the format knows values only, or large parts of it
    /// become segments.
    pub(crate) fn of_body(
        format: Format,
        bytes: &Bytes,
        limits: &DecodeLimits,
        decimals: Option<&Decimals>,
    ) -> Result<Option<Self>, DecodeError> {
        let written = match format {
            Format::Envelope => return Self::read(bytes, limits).map(Some),
            Format::Json => envelope::from_json(bytes, limits, decimals)?,
            Format::Msgpack if msgpack::check_body(bytes, limits)? => envelope::from_msgpack(bytes)?,
            _ => return Ok(None),
        };
        Ok(Some(Self::written(written)))
    }

    /// An envelope that this process has written.
    pub(crate) fn written(envelope: Envelope) -> Self {
        Self::new(envelope, None)
    }

    fn new(envelope: Envelope, received: Option<ReceivedEnvelope>) -> Self {
        Self { envelope, received, value: OnceLock::new() }
    }

    /// The bytes, in pieces.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The value. It is decoded once, at the expense of the scope that reads it first.
    ///
    /// # Errors
    ///
    /// If the scope's account has no room for it.
    pub fn value(&self) -> Result<&Arc<Value>, DecodeError> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let value = Arc::new(self.decode::<Value>()?);
        Ok(self.value.get_or_init(|| value))
    }

    /// The value as a copy of its own.
    pub(crate) fn to_value(&self) -> Result<Value, DecodeError> {
        self.value.get().map_or_else(|| self.decode(), |value| Ok(Value::clone(value)))
    }

    /// Takes the value out.
    pub(crate) fn into_value(mut self) -> Result<Arc<Value>, DecodeError> {
        self.value.take().map_or_else(|| self.decode::<Value>().map(Arc::new), Ok)
    }

    /// Reads it as a `T`.
    pub(crate) fn decode<T: Data>(&self) -> Result<T, DecodeError> {
        // The bytes were checked, or this process has written them.
        self.opened()?.typed(&DecodeLimits::UNLIMITED)
    }

    /// Writes it as JSON, as its value would be written.
    pub(crate) fn to_json(&self) -> Result<Bytes, EncodeError> {
        match self.value.get() {
            Some(value) => value.encode(Format::Json),
            None => self.opened()?.json(),
        }
    }

    fn opened(&self) -> Result<ReceivedEnvelope, DecodeError> {
        if let Some(received) = &self.received {
            return Ok(received.clone());
        }
        let mut decoder = EnvelopeDecoder::new(&DecodeLimits::UNLIMITED);
        self.envelope.parts().iter().try_for_each(|part| decoder.push(part.clone()))?;
        decoder.opened()
    }
}

impl EnvelopeDecoder {
    /// Checks the envelope as reading would, and keeps its bytes.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_encoded(self) -> Result<Encoded, DecodeError> {
        let limits = self.limits().clone();
        let received = self.opened()?;
        received.check(&limits)?;
        Ok(Encoded::new(received.envelope(), Some(received)))
    }
}

/// As its value.
impl Serialize for Encoded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        let written = value.to_envelope().map_err(D::Error::custom)?;
        Ok(Self::written(written))
    }
}
