//! What is left of a body that was refused: a client that is still sending it is told whether the connection goes on.

use axum::body::HttpBody;
use axum::http::Version;

/// A rest of a body that surely came with its head.
const SKIPPED_BYTES: u64 = 4 * 1024;

/// What is left of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    /// At least this many bytes, if it is not known to have ended.
    bytes: Option<u64>,
}

impl Unread {
    pub(super) fn of<B: HttpBody>(body: &B) -> Self {
        let hint = body.size_hint();
        Self { bytes: (!body.is_end_stream()).then(|| hint.exact().unwrap_or(u64::MAX)) }
    }

    /// A short rest is in the buffer already and is skipped. For a long one the connection ends, which the client should be
    /// told (RFC 9112 §9.6); HTTP/2 ends the stream only.
    pub(super) fn ends_the_connection(self, version: Version) -> bool {
        version <= Version::HTTP_11 && self.bytes.is_some_and(|bytes| bytes > SKIPPED_BYTES)
    }
}
