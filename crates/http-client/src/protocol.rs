//! The version of HTTP that a connection speaks.

/// The version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 with keep-alive: one request at a time.
    Http1,
    /// HTTP/2, with prior knowledge or, over https, by ALPN: as many at a time as the server allows.
    Http2,
}
