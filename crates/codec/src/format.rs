//! Names the formats in which a payload may cross a border of the process.
//!
//! A [`Format`] is chosen before any byte is read (by media type at an edge, by agreement between nodes); nothing in this
//! crate guesses a format from the bytes.

use std::fmt;

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
    /// MessagePack: every [`Value`](crate::Value) comes back as it was. The extension types are on [`crate::msgpack`].
    Msgpack,
}

impl Format {
    /// The short name used in logs and errors: `json`, `msgpack`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Msgpack => "msgpack",
        }
    }

    /// The media type written into `Content-Type`.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Msgpack => "application/msgpack",
        }
    }

    /// The format that a `Content-Type` names, if it is one of ours. Parameters (`; charset=utf-8`) are ignored, case too.
    #[must_use]
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" | "text/json" => Some(Self::Json),
            "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack" => Some(Self::Msgpack),
            other if other.starts_with("application/") && other.ends_with("+json") => Some(Self::Json),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
