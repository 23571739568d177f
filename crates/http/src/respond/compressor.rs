//! Compresses responses: a whole one at once, a stream piece by piece.
//!
//! The fastest level of each coding: a response is compressed and read only once, so time matters more than the last
//! percent.

use std::io::{self, Write};

use bytes::Bytes;
use callboard_core::ErrorKind;
use callboard_core::edge::CodecBudget;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::error::ApiError;
use crate::request::coding::ContentCoding;

#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 1;

/// Compresses one stream. Takes [`ContentCoding::compressor_bytes`] while it lives.
pub(crate) struct Compressor(Encoder);

enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    pub(crate) fn new(coding: ContentCoding) -> io::Result<Self> {
        Ok(Self(match coding {
            ContentCoding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
            ContentCoding::Deflate => Encoder::Deflate(ZlibEncoder::new(Vec::new(), Compression::fast())),
            #[cfg(not(feature = "zstd"))]
            ContentCoding::Zstd => return Err(io::ErrorKind::Unsupported.into()),
            #[cfg(feature = "zstd")]
            ContentCoding::Zstd => Encoder::Zstd(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?),
        }))
    }

    /// Compresses a piece and flushes it, so that the reader can decompress all of it at once.
    pub(crate) fn piece(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.writer().write_all(piece)?;
        self.writer().flush()?;
        Ok(std::mem::take(self.output()).into())
    }

    /// The end of the stream.
    pub(crate) fn finish(self) -> io::Result<Bytes> {
        let rest = match self.0 {
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Deflate(encoder) => encoder.finish(),
            #[cfg(feature = "zstd")]
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        rest.map(Bytes::from)
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.0 {
            Encoder::Gzip(encoder) => encoder,
            Encoder::Deflate(encoder) => encoder,
            #[cfg(feature = "zstd")]
            Encoder::Zstd(encoder) => encoder,
        }
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match &mut self.0 {
            Encoder::Gzip(encoder) => encoder.get_mut(),
            Encoder::Deflate(encoder) => encoder.get_mut(),
            #[cfg(feature = "zstd")]
            Encoder::Zstd(encoder) => encoder.get_mut(),
        }
    }
}

/// Compresses a response, on another thread if it is large.
///
/// # Errors
///
/// The deadline passed, or the node has no room.
pub async fn compress_off_thread(
    budget: &CodecBudget<'_>,
    bytes: Bytes,
    coding: ContentCoding,
) -> Result<Bytes, ApiError> {
    let length = bytes.len();
    let output = budget.run_outcome(length, move || compress(coding, &bytes)).await?;
    output.map_err(|error| ApiError::new(ErrorKind::Internal, format!("the response cannot be compressed: {error}")))
}

/// Compresses a whole response.
pub(crate) fn compress(coding: ContentCoding, bytes: &[u8]) -> io::Result<Bytes> {
    let mut compressor = Compressor::new(coding)?;
    compressor.writer().write_all(bytes)?;
    compressor.finish()
}
