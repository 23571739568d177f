//! The formats in which a payload enters and leaves the process.
//!
//! A [`Format`] is chosen before any byte is read (by media type at an edge, by agreement between nodes); nothing in
//! this crate guesses a format from the bytes.

use std::fmt;

use bytes::Bytes;

use crate::envelope;
use crate::error::{DecodeError, EncodeError};
use crate::limits::{Budget, DecodeLimits};
use crate::media_type::MediaType;
#[cfg(feature = "arrow")]
use crate::out;
use crate::value::Value;
#[cfg(feature = "arrow")]
use crate::value::data_frame;
use crate::{json, msgpack, npy};

/// The encoding of bytes that enter or leave the process.
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
    /// JSON (RFC 8259): readable, and lossy for types that JSON does not have. The rules are on [`crate::json`].
    Json,
    /// MessagePack: every [`Value`] comes back as it was. The extension types are on [`crate::msgpack`].
    Msgpack,
    /// The envelope: as exact as MessagePack, and its large leaves are never copied. Drawn on [`crate::envelope`].
    Envelope,
    /// One array in NumPy's `.npy`. The rules are on [`crate::npy`].
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

    /// Whether it holds tables only.
    #[must_use]
    pub const fn is_table(self) -> bool {
        match self {
            #[cfg(feature = "arrow")]
            Self::ArrowStream | Self::ArrowFile => true,
            _ => false,
        }
    }

    /// The format of a `Content-Type`, if it is supported. Parameters (`; charset=utf-8`) are ignored, case
    /// too.
    #[must_use]
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        let essence = MediaType::without_parameters(media_type).to_ascii_lowercase();
        let known = TABLE.iter().find(|row| row.2.contains(&essence.as_str())).map(|row| row.0);
        let json = || essence.starts_with("application/") && essence.ends_with("+json");
        known.or_else(|| json().then_some(Self::Json))
    }
}

impl MediaType {
    /// The offered format that an `Accept` header prefers; the earlier offer among equals. The most specific range
    /// decides over a format. Malformed parts of the header are skipped; an empty header accepts everything.
    #[must_use]
    pub fn choose(accept: &str, offers: &[Format]) -> Option<Format> {
        let media_types: Vec<&str> = offers.iter().map(|format| format.media_type()).collect();
        Self::choose_index(accept, &media_types).map(|index| offers[index])
    }
}

impl Value {
    /// Reads one value, and nothing after it.
    ///
    /// # Errors
    ///
    /// [`Malformed`](crate::DecodeErrorKind::Malformed) input, a limit that was reached, or an
    /// [`Unsupported`](crate::DecodeErrorKind::Unsupported) extension; each with path and byte.
    pub fn decode(format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Self, DecodeError> {
        limits.check_bytes(bytes.len())?;
        match format {
            Format::Json => json::decode(bytes, limits),
            Format::Msgpack => msgpack::decode(bytes, limits),
            Format::Envelope => envelope::decode(bytes, limits),
            Format::Npy => npy::decode(bytes, &mut Budget::new(limits)),
            Format::Npz => npy::decode_npz(bytes, &mut Budget::new(limits)),
            #[cfg(feature = "arrow")]
            Format::ArrowStream => data_frame::from_stream(bytes, &mut Budget::new(limits)).map(Self::DataFrame),
            #[cfg(feature = "arrow")]
            Format::ArrowFile => data_frame::from_file(bytes, &mut Budget::new(limits)).map(Self::DataFrame),
        }
    }

    /// Writes the value.
    ///
    /// # Errors
    ///
    /// When the format has no form for a part of it (JSON: NaN and infinities; `.npy`: anything but a tensor), or it is
    /// nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    pub fn encode(&self, format: Format) -> Result<Bytes, EncodeError> {
        match format {
            Format::Json => json::encode(self),
            Format::Msgpack => msgpack::encode(self),
            Format::Envelope => Ok(envelope::encode(self)?.try_into_bytes()?),
            Format::Npy => npy::encode(self),
            Format::Npz => npy::encode_npz(self),
            #[cfg(feature = "arrow")]
            Format::ArrowStream => Ok(out::concat(&data_frame::frame_from(self)?.to_stream_parts()?)?.into_bytes()?),
            #[cfg(feature = "arrow")]
            Format::ArrowFile => data_frame::frame_from(self)?.to_file(),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
