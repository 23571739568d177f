//! The errors of a stream of frames.

use crate::error::{DecodeError, EncodeError};

/// An error in a stream of frames. Nothing after it is read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are not a frame. Remedy: check the sender's protocol.
    #[error("not a frame: the magic number is {found:02x?}")]
    NotAFrame {
        /// The bytes in its place.
        found: [u8; 3],
    },
    /// A version that this side does not speak. Remedy: use a version of the hello.
    #[error("frame version {found}: this side speaks {known}")]
    Version {
        /// The value in the frame.
        found: u8,
        /// The version of this side.
        known: u8,
    },
    /// A kind of frame that this side does not know.
    #[error("frame of the unknown kind {found}")]
    Kind {
        /// The value in the frame.
        found: u8,
    },
    /// A flag that this side does not know: a reader must understand every flag.
    #[error("frame with the unknown flags {found:#04x}")]
    Flags {
        /// The value in the frame.
        found: u8,
    },
    /// A header beyond the limit. Refused before it is received.
    #[error("header of {bytes} bytes exceeds max_header_bytes = {max}")]
    HeaderTooLarge {
        /// The announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A body beyond the limit. Refused before it is received.
    #[error("body of {bytes} bytes exceeds max_body_bytes = {max}")]
    BodyTooLarge {
        /// The announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// The header is not a map of its kind; the source names the field.
    #[error("{kind} header")]
    Header {
        /// The kind of frame.
        kind: &'static str,
        /// The cause.
        #[source]
        source: DecodeError,
    },
    /// A header that could not be written: a defect of this side.
    #[error("{kind} header")]
    Encode {
        /// The kind of frame.
        kind: &'static str,
        /// The cause.
        #[source]
        source: EncodeError,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended {missing} bytes before the end of a frame")]
    Truncated {
        /// The least number of missing bytes.
        missing: u64,
    },
    /// The reader was used after an error.
    #[error("the stream was refused before")]
    Refused,
}

impl WireError {
    /// The name for metric labels.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotAFrame { .. } => "not_a_frame",
            Self::Version { .. } => "version",
            Self::Kind { .. } => "kind",
            Self::Flags { .. } => "flags",
            Self::HeaderTooLarge { .. } => "header_too_large",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::Header { .. } => "header",
            Self::Encode { .. } => "encode",
            Self::Truncated { .. } => "truncated",
            Self::Refused => "refused",
        }
    }
}
