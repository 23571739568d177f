//! A file inside a user's type: base64 to people, bytes to programs.
//!
//! A picture, a sound or a document is a file in a form, bytes in MessagePack and envelopes, and base64 in JSON and in
//! a text field of a form. Bytes are shared with the body of the request.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::account::{TemporaryCharge, charge};
use crate::serde_impls::exact;
use crate::value::Value;

/// The bytes of a file.
///
/// ```
/// use callboard_codec::{DataType, DecodeLimits, Format, Media};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, JsonSchema)]
/// struct Upload { title: String, picture: Media }
///
/// let (upload, limits) = (DataType::for_type::<Upload>(), DecodeLimits::default());
/// let payload = upload.decode(Format::Json, &r#"{"title": "one", "picture": "AP8="}"#.into(), &limits)?;
/// assert_eq!(payload.downcast_ref::<Upload>().unwrap().picture[..], [0x00, 0xff]);
/// # Ok::<(), callboard_codec::DecodeError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Media(Bytes);

impl Media {
    /// A file of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// Decodes base64 (RFC 4648, padded), which may have line breaks as in mail, or a `data:` URL of it (RFC 2397)
    /// without percent-escapes, as browsers make from a file.
    ///
    /// # Errors
    ///
    /// If the text is neither.
    pub fn from_base64(text: &str) -> Result<Self, NotBase64> {
        let data = match text.split_once(',') {
            Some((head, data)) if is_data_url(head) => data,
            _ => text,
        };
        let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n' | b' ' | b'\t');
        let decoded = if data.as_bytes().iter().any(is_break) {
            let mut whole = Vec::with_capacity(data.len());
            whole.extend(data.bytes().filter(|byte| !is_break(byte)));
            BASE64.decode(whole)
        } else {
            BASE64.decode(data)
        };
        decoded.map(Self::new).map_err(NotBase64)
    }

    /// The bytes, to be shared.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// Whether this is the head of a base64 `data:` URL, in any case.
fn is_data_url(head: &str) -> bool {
    let (scheme, coding) = (b"data:", b";base64");
    let head = head.as_bytes();
    head.first_chunk().is_some_and(|first: &[u8; 5]| first.eq_ignore_ascii_case(scheme))
        && head.last_chunk().is_some_and(|last: &[u8; 7]| last.eq_ignore_ascii_case(coding))
}

/// Prints the length only: a file may be large.
impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Media({} bytes)", self.0.len())
    }
}

/// The text is not base64.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not base64: {}", .0.to_string().trim_end_matches('.'))]
pub struct NotBase64(base64::DecodeError);

impl Deref for Media {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Bytes> for Media {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for Media {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<Media> for Value {
    fn from(media: Media) -> Self {
        Self::Bytes(media.0)
    }
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact::serialize_bytes(serializer, &self.0)
    }
}

impl<'de> Deserialize<'de> for Media {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match <Value as Deserialize>::deserialize(deserializer)? {
            Value::Bytes(bytes) => Ok(Self(bytes)),
            Value::Str(text) => {
                charge(base64::decoded_len_estimate(text.len())).map_err(de::Error::custom)?;
                let mut without_breaks = TemporaryCharge::new();
                without_breaks.grow(text.len()).map_err(de::Error::custom)?;
                Self::from_base64(&text).map_err(de::Error::custom)
            }
            other => {
                Err(de::Error::custom(format_args!("invalid type: {}, expected bytes or base64 as text", other.kind())))
            }
        }
    }
}

impl JsonSchema for Media {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Media".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "contentEncoding": "base64",
            "description": "a file: bytes, or base64 as text",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, Format};

    #[test]
    fn a_text_is_base64_in_lines_or_a_url_of_it() {
        let read = |text: &str| Media::from_base64(text).map(|media| media.to_vec());
        for text in ["AAEC/w==", "AAEC\r\n/w==\n", "data:image/png;base64,AAEC/w==", "DATA:;Base64,AAEC/w=="] {
            assert_eq!(read(text).unwrap(), [0, 1, 2, 255], "{text:?}");
        }
        assert!(read("").unwrap().is_empty());
        for text in ["AAEC/w", "AAEC_w==", "no base64!", "data:image/png,AAEC/w==", "data:;base64,?", "x,AAEC/w=="] {
            assert!(read(text).unwrap_err().to_string().starts_with("not base64: "), "{text:?}");
        }
    }

    #[test]
    fn a_file_round_trips_in_each_format_and_shares_the_bytes_of_an_envelope() {
        let limits = DecodeLimits::default();
        let media = Media::new(vec![7; 100_000]);
        let value = Value::from_serialize(&media).unwrap();
        assert_eq!(value, Value::Bytes(media.bytes().clone()));
        assert_eq!(format!("{media:?}"), "Media(100000 bytes)");
        for format in [Format::Json, Format::Msgpack, Format::Envelope] {
            let bytes = value.encode(format).unwrap();
            let read = crate::DataType::for_type::<Media>().decode(format, &bytes, &limits).unwrap();
            let read = read.downcast_ref::<Media>().unwrap();
            assert_eq!(read, &media, "{format}");
            let range = bytes.as_ptr_range();
            assert_eq!(range.contains(&read.as_ptr()), format == Format::Envelope, "{format}");
        }
    }

    #[test]
    fn an_invalid_file_is_reported_with_its_place() {
        #[derive(Debug, Deserialize, JsonSchema, Serialize)]
        struct Upload {
            files: Vec<Media>,
        }
        let read = |json: &'static str| {
            let decoded =
                crate::DataType::for_type::<Upload>().decode(Format::Json, &json.into(), &DecodeLimits::default());
            decoded.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(read(r#"{"files": ["AP8=", ""]}"#), Ok(()));
        for (json, words) in [
            (r#"{"files": ["AP8=", "?AP8"]}"#, "not base64: Invalid symbol 63, offset 0 at $"),
            (r#"{"files": ["AP8=", 7]}"#, "int, expected bytes or base64 as text"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(words) && message.contains("$.files[1]"), "{message}");
        }
    }
}
