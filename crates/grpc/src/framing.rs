//! The five bytes before each message, and the codings of messages.
//!
//! A message is compressed if its flag says so, in the coding that `grpc-encoding` names for the whole request. An
//! answer is compressed in the coding of its request, if it is long enough: clients of gRPC accept gzip by default, and
//! compressing numbers takes longer than most networks.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_core::ErrorKind;
use callboard_http::axum::http::header::{HeaderName, HeaderValue};
use callboard_http::axum::http::{HeaderMap, StatusCode};
use callboard_http::protocol::{ApiError, CodecBudget, ContentCoding, compress_off_thread};
use prost::{DecodeError, Message};

use crate::status::GRPC_ACCEPT_ENCODING;

/// The bytes before a message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The coding of compressed messages.
pub(crate) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// What the prefix of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) is_compressed: bool,
    pub(crate) length: u32,
}

impl Prefix {
    /// # Errors
    ///
    /// A reserved bit is set.
    pub(crate) fn parse(bytes: [u8; PREFIX_BYTES]) -> Result<Self, ApiError> {
        let [flags, length @ ..] = bytes;
        let length = u32::from_be_bytes(length);
        match flags {
            0 => Ok(Self { is_compressed: false, length }),
            1 => Ok(Self { is_compressed: true, length }),
            flags => {
                Err(unimplemented(format!("the flags {flags:#04x} of a message are reserved: only 0 and 1 are known")))
            }
        }
    }

    fn to_bytes(self) -> [u8; PREFIX_BYTES] {
        let [a, b, c, d] = self.length.to_be_bytes();
        [self.is_compressed.into(), a, b, c, d]
    }
}

/// 12: a feature of gRPC that is not offered.
pub(crate) fn unimplemented(message: String) -> ApiError {
    ApiError::with_status(StatusCode::NOT_IMPLEMENTED, "unimplemented", message)
}

/// The coding of a request's compressed messages.
///
/// # Errors
///
/// It is not known here.
pub(crate) fn coding_of(headers: &HeaderMap) -> Result<Option<ContentCoding>, ApiError> {
    let Some(value) = headers.get(GRPC_ENCODING) else { return Ok(None) };
    match value.as_bytes() {
        b"identity" => Ok(None),
        b"gzip" => Ok(Some(ContentCoding::Gzip)),
        b"deflate" => Ok(Some(ContentCoding::Deflate)),
        other => {
            let shown: String = String::from_utf8_lossy(other).chars().take(32).collect();
            Err(unimplemented(format!("messages in `{shown}` are not read here; accepted: identity, deflate, gzip")))
        }
    }
}

/// The coding of a request that its answer may have as well: the client says what it reads, or nothing.
pub(crate) fn answer_coding(coding: Option<ContentCoding>, headers: &HeaderMap) -> Option<ContentCoding> {
    let coding = coding?;
    let mut accepted = headers.get_all(GRPC_ACCEPT_ENCODING).iter().peekable();
    let names = |list: &HeaderValue| {
        list.to_str().unwrap_or_default().split(',').any(|name| coding_name(coding) == name.trim())
    };
    (accepted.peek().is_none() || accepted.any(names)).then_some(coding)
}

/// The name of a coding in `grpc-encoding`.
pub(crate) fn coding_name(coding: ContentCoding) -> HeaderValue {
    match coding {
        ContentCoding::Gzip => HeaderValue::from_static("gzip"),
        ContentCoding::Deflate => HeaderValue::from_static("deflate"),
        ContentCoding::Zstd => HeaderValue::from_static("zstd"),
    }
}

/// A compressed message of a request that names no coding.
pub(crate) fn no_coding() -> ApiError {
    ApiError::new(ErrorKind::Internal, "a message is compressed, and `grpc-encoding` names no coding")
}

/// A small message is one piece with its prefix: hyper writes it faster than two.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;

/// A message with its prefix, at the expense of `budget` until it is sent. Large parts are shared.
///
/// # Errors
///
/// The message is longer than gRPC allows, or the node has no room for it.
pub(crate) async fn framed(
    parts: Vec<Bytes>,
    coding: Option<ContentCoding>,
    compress_from_bytes: usize,
    budget: &CodecBudget<'_>,
) -> Result<Vec<Bytes>, ApiError> {
    let length: usize = parts.iter().map(Bytes::len).sum();
    let coding = coding.filter(|_| length >= compress_from_bytes);
    let coding = coding.filter(|coding| budget.can_compress(coding.compressor_bytes(), length));
    let (parts, length) = match coding {
        None => (parts, length),
        Some(coding) => {
            let packed = compress_off_thread(budget, joined(parts, length), coding).await?;
            let length = packed.len();
            (vec![packed], length)
        }
    };
    budget.settle(length)?;
    let too_long = |_| ApiError::new(ErrorKind::Internal, "the answer is longer than a message of gRPC can be");
    let prefix = Prefix { is_compressed: coding.is_some(), length: u32::try_from(length).map_err(too_long)? };
    let mut first = BytesMut::with_capacity(PREFIX_BYTES + if length <= SMALL_BYTES { length } else { 0 });
    first.put_slice(&prefix.to_bytes());
    let mut pieces = Vec::with_capacity(1 + parts.len());
    if length <= SMALL_BYTES {
        parts.iter().for_each(|part| first.put_slice(part));
        pieces.push(budget.charged(first.freeze()));
    } else {
        pieces.push(budget.charged(first.freeze()));
        pieces.extend(parts.into_iter().map(|part| budget.charged(part)));
    }
    Ok(pieces)
}

/// The only message of a short body, which is not compressed.
pub(crate) fn only<M: Message + Default>(body: &Bytes) -> Result<M, ApiError> {
    let refused = || ApiError::new(ErrorKind::InvalidInput, "the body is not one uncompressed message");
    let (prefix, message) = body.split_first_chunk().ok_or_else(refused)?;
    let prefix = Prefix::parse(*prefix)?;
    if prefix.is_compressed || prefix.length as usize != message.len() {
        return Err(refused());
    }
    M::decode(message).map_err(|error| unreadable(&error))
}

/// 3: bytes that are not the message that they should be.
pub(crate) fn unreadable(error: &DecodeError) -> ApiError {
    ApiError::new(ErrorKind::InvalidInput, format!("the message cannot be read: {error}"))
}

/// A short message with its prefix.
pub(crate) fn framed_plain(message: &[u8]) -> Bytes {
    let prefix = Prefix { is_compressed: false, length: u32::try_from(message.len()).unwrap_or(u32::MAX) };
    [&prefix.to_bytes(), message].concat().into()
}

fn joined(mut parts: Vec<Bytes>, length: usize) -> Bytes {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let mut whole = BytesMut::with_capacity(length);
    parts.iter().for_each(|part| whole.put_slice(part));
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_reads_back_and_reserved_bits_are_unimplemented() {
        for is_compressed in [false, true] {
            let prefix = Prefix { is_compressed, length: 0xdead_beef };
            assert_eq!(Prefix::parse(prefix.to_bytes()).unwrap(), prefix);
        }
        for flags in 2..=255 {
            let refused = Prefix::parse([flags, 0, 0, 0, 0]).unwrap_err();
            assert_eq!(crate::status::code(&refused), 12, "{flags}");
        }
    }

    #[test]
    fn unknown_codings_are_unimplemented() {
        let coding =
            |name: &'static str| coding_of(&HeaderMap::from_iter([(GRPC_ENCODING, HeaderValue::from_static(name))]));
        assert_eq!(coding("gzip").unwrap(), Some(ContentCoding::Gzip));
        assert_eq!(coding("deflate").unwrap(), Some(ContentCoding::Deflate));
        assert_eq!(coding("identity").unwrap(), None);
        let accepting = |list| HeaderMap::from_iter([(GRPC_ACCEPT_ENCODING, HeaderValue::from_static(list))]);
        for (list, kept) in [("identity", false), ("deflate, identity", false), ("identity,gzip", true)] {
            assert_eq!(answer_coding(Some(ContentCoding::Gzip), &accepting(list)).is_some(), kept, "{list}");
        }
        assert!(answer_coding(Some(ContentCoding::Gzip), &HeaderMap::new()).is_some());
        for unknown in ["zstd", "snappy", "", "gzip,deflate"] {
            assert_eq!(crate::status::code(&coding(unknown).unwrap_err()), 12, "{unknown}");
        }
    }
}
