//! The unread rest of a refused body: whether the edge tells its client that the connection ends (RFC 9112 §9.6).
//!
//! Our listener reads a short rest, and tells by itself if a rest is long. It does not know the client that waits for
//! `100 Continue` before it sends its body: that one may send it now, or its next request. Another listener, in which the
//! edge is mounted, reads nothing.

use axum::body::HttpBody;
use axum::http::header::EXPECT;
use axum::http::{HeaderMap, Version};

/// What a refusal says about its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadBody {
    ends_connection: bool,
}

impl UnreadBody {
    pub(super) fn new<B: HttpBody>(headers: &HeaderMap, body: &B, is_own_listener: bool) -> Self {
        Self { ends_connection: !body.is_end_stream() && (!is_own_listener || headers.contains_key(EXPECT)) }
    }

    /// HTTP/2 ends the stream only.
    pub(super) fn ends_connection(self, version: Version) -> bool {
        version <= Version::HTTP_11 && self.ends_connection
    }
}
