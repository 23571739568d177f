//! One input: the kind of request, and its body.
//!
//! The first byte gives the form (lower half) and how it is sent (upper half); the rest is the body. So an input is a
//! file, and the first forms are those of the codec's target `budget`, which shares the directory. The other properties
//! of a request are derived from all of its bytes.

use std::io::Write as _;

use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use futures_util::stream;

pub(crate) const FORMS: usize = 16;

pub(crate) const NAMES: [&str; FORMS] = [
    "json",
    "msgpack",
    "envelope",
    "npy",
    "npz",
    "arrow_stream",
    "arrow_file",
    "multipart",
    "text",
    "bytes",
    "call-json",
    "call-msgpack",
    "call-envelope",
    "calls",
    "v2-json",
    "v2-binary",
];

const MEDIA_TYPES: [&str; FORMS] = [
    "application/json",
    "application/msgpack",
    "application/vnd.callboard.envelope",
    "application/x-npy",
    "application/x-npz",
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.arrow.file",
    "multipart/form-data; boundary=b",
    "text/plain",
    "application/octet-stream",
    "application/json",
    "application/msgpack",
    "application/vnd.callboard.envelope",
    "application/vnd.callboard.envelope-stream",
    "application/json",
    "application/octet-stream",
];

/// Sent in pieces whose sizes are derived from the input.
pub(crate) const IN_PIECES: u8 = 0x10;

/// Sent to a route of a Rust type.
const TYPED: u8 = 0x20;

/// About the size of one read of a connection.
const PACKED_PIECE: usize = 16 * 1024;

/// The size of one read of a connection.
const READ_PIECE: usize = 128 * 1024;

/// The compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    None,
    Gzip,
    Deflate,
    Zstd,
}

/// A form, how it is sent, and a body.
pub(crate) struct Input(Bytes);

impl Input {
    /// The input in these bytes, with these flags instead of its own.
    pub(crate) fn with_flags(bytes: &[u8], flags: u8) -> Option<Self> {
        let (first, body) = bytes.split_first()?;
        Some(Self([&[first & 0x0f | flags & 0xf0], body].concat().into()))
    }

    /// The same input, with its body compressed as its flags say.
    pub(crate) fn packed(&self) -> Self {
        let body = match self.coding() {
            Coding::None => self.body().to_vec(),
            Coding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(self.body()).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(self.body()).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Zstd => zstd::encode_all(self.body(), 1).unwrap(),
        };
        Self([&self.0[..1], &body].concat().into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn form(&self) -> usize {
        usize::from(self.0[0] & 0x0f)
    }

    pub(crate) fn coding(&self) -> Coding {
        match self.0[0] >> 6 {
            // A stream of calls is not compressed.
            _ if NAMES[self.form()] == "calls" => Coding::None,
            0 => Coding::None,
            1 => Coding::Gzip,
            2 => Coding::Deflate,
            _ => Coding::Zstd,
        }
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.0[1..]
    }

    fn has(&self, flag: u8) -> bool {
        self.0[0] & flag != 0
    }

    /// A number derived from the bytes (FNV-1a).
    fn hash(&self) -> u64 {
        self.0
            .iter()
            .take(4096)
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
            >> 8
    }

    fn path(&self) -> &'static str {
        match (NAMES[self.form()], self.has(TYPED)) {
            ("npy", true) => "/tensor",
            ("arrow_stream" | "arrow_file", true) => "/frame",
            ("v2-json" | "v2-binary", false) => "/v2/models/arrays/infer",
            ("v2-json" | "v2-binary", true) => "/v2/models/rows/infer",
            ("call-json" | "call-msgpack" | "call-envelope" | "calls", false) => "/v1/call/value",
            ("call-json" | "call-msgpack" | "call-envelope" | "calls", true) => "/v1/call/typed",
            ("text", true) => "/text",
            (_, false) => "/value",
            (_, true) => "/typed",
        }
    }

    /// Bytes allocated for the body before the edge reads it.
    pub(crate) fn unread_bytes(&self) -> usize {
        if self.has(IN_PIECES) { 0 } else { self.body().len() }
    }

    /// Whether frames are cut out of the body on demand.
    pub(crate) fn is_stream(&self) -> bool {
        NAMES[self.form()] == "calls"
    }

    /// The request. Its body is allocated here.
    pub(crate) fn request(&self) -> Request<Body> {
        let hash = self.hash();
        let mut request = Request::post(self.path());
        let mut body = self.0.slice(1..);
        match (NAMES[self.form()], self.body().first_chunk::<4>()) {
            ("v2-binary", Some(header)) => {
                body = body.slice(4..);
                request = match u32::from_le_bytes(*header) {
                    u32::MAX => request.header("content-type", "application/json"),
                    0 => request.header("content-type", "application/octet-stream"),
                    length => request
                        .header("content-type", "application/octet-stream")
                        .header("inference-header-content-length", length),
                };
            }
            _ => request = request.header("content-type", MEDIA_TYPES[self.form()]),
        }
        // Formats of answers: that of the request, another one, or the edge's choice.
        request = match hash % 16 {
            form @ 0..7 if NAMES[self.form()] != "calls" => request.header("accept", MEDIA_TYPES[form as usize]),
            _ => request,
        };
        request = match self.coding() {
            Coding::None => request,
            Coding::Gzip => request.header("content-encoding", "gzip"),
            Coding::Deflate => request.header("content-encoding", "deflate"),
            Coding::Zstd => request.header("content-encoding", "zstd"),
        };
        request = match hash >> 8 & 0x0f {
            0 => request.header("accept-encoding", "gzip"),
            1 => request.header("accept-encoding", "deflate"),
            2 => request.header("accept-encoding", "zstd"),
            _ => request,
        };
        let body = if self.has(IN_PIECES) {
            // A compressed piece is charged for its decompressed bytes, not for its own.
            pieces(body, hash, if self.coding() == Coding::None { READ_PIECE } else { PACKED_PIECE })
        } else {
            Body::from(Bytes::copy_from_slice(&body))
        };
        request.body(body).unwrap()
    }
}

/// A body in pieces, each allocated when it is polled.
fn pieces(mut rest: Bytes, hash: u64, max_piece: usize) -> Body {
    let size = [1, 7, 100, 1000, 5000, 20_000, 70_000, usize::MAX][(hash >> 16) as usize % 8]
        .max(rest.len() / 64)
        .min(max_piece);
    Body::from_stream(stream::iter(std::iter::from_fn(move || {
        let piece = rest.split_to(size.min(rest.len()));
        (!piece.is_empty()).then(|| Ok::<_, std::convert::Infallible>(Bytes::copy_from_slice(&piece)))
    })))
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(bytes) = self;
        let shown = String::from_utf8_lossy(&bytes[1..bytes.len().min(200)]);
        write!(f, "{} bytes of {} to {}, {:?}", bytes.len() - 1, NAMES[self.form()], self.path(), self.coding())?;
        write!(f, ", in pieces: {}: {shown:?}", self.has(IN_PIECES))
    }
}
