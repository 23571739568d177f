//! The unread rest of a refused body: a client that still sends it learns whether the connection continues.

use axum::body::HttpBody;
use axum::http::Version;

/// A rest of this length surely arrived with its head.
const SKIPPED_BYTES: u64 = 4 * 1024;

/// The unread rest of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadBody {
    /// At least this many bytes; `None` if the body has ended.
    bytes: Option<u64>,
}

impl UnreadBody {
    pub(super) fn new<B: HttpBody>(body: &B) -> Self {
        let hint = body.size_hint();
        Self { bytes: (!body.is_end_stream()).then(|| hint.exact().unwrap_or(u64::MAX)) }
    }

    /// A short rest is in the buffer already and is skipped. A long one ends the connection, which the client should be
    /// told (RFC 9112 §9.6); HTTP/2 ends the stream only.
    pub(super) fn ends_connection(self, version: Version) -> bool {
        version <= Version::HTTP_11 && self.bytes.is_some_and(|bytes| bytes > SKIPPED_BYTES)
    }
}
