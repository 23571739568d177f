//! Names the formats in which a payload may cross a border of the process.
//!
//! A [`Format`] is chosen before any byte is read (by media type at an edge, by agreement between nodes); nothing in
//! this crate guesses a format from the bytes.

use std::fmt;

use bytes::Bytes;

#[cfg(feature = "arrow")]
use crate::data_frame;
use crate::error::{DecodeError, EncodeError};
use crate::limits::Budget;
#[cfg(feature = "arrow")]
use crate::out;
use crate::value::Value;
use crate::{DecodeLimits, envelope, json, msgpack, npy};

/// How bytes at a border of the process are to be read or written.
///
/// ```
/// use callboard_codec::Format;
///
/// assert_eq!(Format::from_media_type("application/json; charset=utf-8"), Some(Format::Json));
/// assert_eq!(Format::from_media_type("image/png"), None);
/// assert_eq!(Format::Msgpack.media_type(), "application/msgpack");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// JSON (RFC 8259): readable, and lossy where JSON has no word for a type. The rules are on [`crate::json`].
    Json,
    /// MessagePack: every [`Value`] comes back as it was. The extension types are on [`crate::msgpack`].
    Msgpack,
    /// The envelope: as exact as MessagePack, and its large leaves are never copied. Drawn on [`crate::envelope`].
    Envelope,
    /// One array in NumPy's `.npy`. What is read and what is refused is on [`crate::npy`].
    Npy,
    /// Several arrays in NumPy's `.npz`, as a map.
    Npz,
    /// Arrow IPC as a stream: a data frame.
    #[cfg(feature = "arrow")]
    ArrowStream,
    /// Arrow IPC as a file (Feather 2): a data frame.
    #[cfg(feature = "arrow")]
    ArrowFile,
}

/// Format, name, media types: the first is written, all are read.
const TABLE: &[(Format, &str, &[&str])] = &[
    (Format::Json, "json", &["application/json", "text/json"]),
    (Format::Msgpack, "msgpack", &["application/msgpack", "application/x-msgpack", "application/vnd.msgpack"]),
    (Format::Envelope, "envelope", &["application/vnd.callboard.envelope"]),
    (Format::Npy, "npy", &["application/x-npy", "application/vnd.numpy.npy"]),
    (Format::Npz, "npz", &["application/x-npz", "application/vnd.numpy.npz"]),
    #[cfg(feature = "arrow")]
    (Format::ArrowStream, "arrow-stream", &["application/vnd.apache.arrow.stream"]),
    #[cfg(feature = "arrow")]
    (Format::ArrowFile, "arrow-file", &["application/vnd.apache.arrow.file"]),
];

impl Format {
    /// Every format, in declaration order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The short name used in logs and errors: `json`, `msgpack`, `envelope`, `npy`, `npz`, `arrow-stream`,
    /// `arrow-file`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The media type written into `Content-Type`.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        TABLE[self as usize].2[0]
    }

    /// The format that a `Content-Type` names, if it is one of ours. Parameters (`; charset=utf-8`) are ignored, case
    /// too.
    #[must_use]
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let known = TABLE.iter().find(|row| row.2.contains(&essence.as_str())).map(|row| row.0);
        let json = || essence.starts_with("application/") && essence.ends_with("+json");
        known.or_else(|| json().then_some(Self::Json))
    }
}

/// Reads one value.
pub(crate) fn decode(format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Value, DecodeError> {
    limits.check_bytes(bytes.len())?;
    match format {
        Format::Json => json::decode(bytes, limits),
        Format::Msgpack => msgpack::decode(bytes, limits),
        Format::Envelope => envelope::decode(bytes, limits),
        Format::Npy => npy::decode(bytes, &mut Budget::new(limits)),
        Format::Npz => npy::decode_npz(bytes, &mut Budget::new(limits)),
        #[cfg(feature = "arrow")]
        Format::ArrowStream => data_frame::from_stream(bytes, &mut Budget::new(limits)).map(Value::DataFrame),
        #[cfg(feature = "arrow")]
        Format::ArrowFile => data_frame::from_file(bytes, &mut Budget::new(limits)).map(Value::DataFrame),
    }
}

/// Writes one value into one piece.
pub(crate) fn encode(format: Format, value: &Value) -> Result<Bytes, EncodeError> {
    match format {
        Format::Json => json::encode(value),
        Format::Msgpack => msgpack::encode(value),
        Format::Envelope => Ok(envelope::encode(value)?.try_into_bytes()?),
        Format::Npy => npy::encode(value),
        Format::Npz => npy::encode_npz(value),
        #[cfg(feature = "arrow")]
        Format::ArrowStream => Ok(out::concat(&data_frame::of(value)?.to_stream_parts()?)?.into_bytes()?),
        #[cfg(feature = "arrow")]
        Format::ArrowFile => data_frame::of(value)?.to_file(),
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
