//! Content codings: the coding of a body, and the choice for a response (RFC 9110 §8.4, §12.5.3).
//!
//! A body is decompressed as it arrives, within the limits of any body. A response is compressed if its client asks for
//! it and it is worth the work: a long text, or a response that the client prefers compressed.

mod decompressor;
mod message;

use axum::http::header::HeaderValue;

pub(crate) use self::decompressor::{Decompressor, MAX_WINDOW_BYTES};
pub use self::message::unpacked;

use crate::error::ApiError;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 8878, with windows of 8 MiB at most (RFC 9659). Unknown without the feature `zstd`.
    Zstd,
    /// RFC 1952.
    Gzip,
    /// RFC 1950. The raw stream of RFC 1951, which some clients send as `deflate`, is read, too.
    Deflate,
}

/// The best ratio for its time first.
const CODINGS: &[ContentCoding] = if cfg!(feature = "zstd") {
    &[ContentCoding::Zstd, ContentCoding::Gzip, ContentCoding::Deflate]
} else {
    &[ContentCoding::Gzip, ContentCoding::Deflate]
};

/// How well a response compresses, for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressibility {
    /// Well: text.
    Text,
    /// Well, but it is large: columns of a table.
    Table,
    /// Badly, or it comes in small pieces.
    Dense,
}

impl ContentCoding {
    /// The memory of a compressor of this coding.
    #[must_use]
    pub const fn compressor_bytes(self) -> usize {
        match self {
            Self::Gzip | Self::Deflate => 360 * 1024,
            Self::Zstd => 1024 * 1024,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// The coding in `content-encoding`, which ignores case. Several codings, and unknown ones, are refused.
    pub(crate) fn from_header(value: &HeaderValue) -> Result<Option<Self>, ApiError> {
        let name = value.to_str().map_err(|_| ApiError::unsupported_encoding())?.trim();
        if name.is_empty() || name.eq_ignore_ascii_case("identity") {
            return Ok(None);
        }
        let known = CODINGS.iter().copied().find(|coding| coding.is_called(name));
        known.map(Some).ok_or_else(ApiError::unsupported_encoding)
    }

    /// The coding of a response, if any. A dense response is compressed only if `accept-encoding` prefers the coding to
    /// `identity` (`zstd, identity;q=0.5`): clients send `gzip` by default, and compressing numbers at 100 MB/s takes
    /// longer than most networks. The same holds for tables, except with zstd, which is several times as fast.
    pub(crate) fn for_response(accept_encoding: &str, compressibility: Compressibility) -> Option<Self> {
        let mut qualities = [None::<u16>; CODINGS.len()];
        let (mut identity, mut wildcard) = (None, None);
        for item in accept_encoding.split(',').take(MAX_CODINGS) {
            let (name, quality) = item_of(item);
            match CODINGS.iter().position(|coding| coding.is_called(name)) {
                Some(index) => qualities[index] = Some(quality),
                None if name == "*" => wildcard = Some(quality),
                None if name.eq_ignore_ascii_case("identity") => identity = Some(quality),
                None => {}
            }
        }
        let rated = CODINGS.iter().zip(qualities).map(|(coding, quality)| (quality.or(wildcard).unwrap_or(0), coding));
        // `max_by_key` keeps the last of equals.
        let best = rated.rev().max_by_key(|(quality, _)| *quality);
        let (quality, &coding) = best?;
        let is_worth_it = compressibility == Compressibility::Text
            || (compressibility == Compressibility::Table && coding == Self::Zstd);
        let least = match (identity, is_worth_it) {
            (Some(identity), false) => identity + 1,
            (Some(identity), true) => identity.max(1),
            (None, false) => FULL + 1,
            (None, true) => 1,
        };
        (quality >= least).then_some(coding)
    }

    /// Whether gzip is allowed, the coding in which some assets are stored.
    pub(crate) fn takes_gzip(accept_encoding: &str) -> bool {
        let mut wildcard = false;
        for item in accept_encoding.split(',').take(MAX_CODINGS) {
            match item_of(item) {
                (name, quality) if Self::Gzip.is_called(name) => return quality > 0,
                ("*", quality) => wildcard = quality > 0,
                _ => {}
            }
        }
        wildcard
    }

    fn is_called(self, name: &str) -> bool {
        name.eq_ignore_ascii_case(self.name()) || self == Self::Gzip && name.eq_ignore_ascii_case("x-gzip")
    }
}

/// More than any client sends.
const MAX_CODINGS: usize = 32;
const FULL: u16 = 1000;

/// A name and its quality in thousandths. An unreadable quality is 0.
fn item_of(item: &str) -> (&str, u16) {
    let (name, parameter) = item.split_once(';').unwrap_or((item, ""));
    let quality = match parameter.split_once('=') {
        Some((q, value)) if q.trim().eq_ignore_ascii_case("q") => {
            value.trim().parse::<f32>().map_or(0, |quality| (quality.clamp(0.0, 1.0) * f32::from(FULL)) as u16)
        }
        _ => FULL,
    };
    (name.trim(), quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_compressed_with_the_preferred_coding() {
        let text = |accept: &str| ContentCoding::for_response(accept, Compressibility::Text).map(ContentCoding::name);
        assert_eq!(text("gzip, deflate, br, zstd"), Some("zstd"));
        assert_eq!(text("gzip, deflate"), Some("gzip"));
        assert_eq!(text("zstd;q=0.5, deflate;q=0.8"), Some("deflate"));
        assert_eq!(text("*"), Some("zstd"));
        assert_eq!(text("*;q=0.3, zstd;q=0"), Some("gzip"));
        assert_eq!(text("X-GZIP"), Some("gzip"));
        for none in ["", "br", "identity", "gzip;q=0", "*;q=0", "gzip;q=0.5, identity", "gzip;q=nonsense"] {
            assert_eq!(text(none), None, "{none}");
        }
    }

    #[test]
    fn a_dense_answer_is_compressed_only_if_the_client_prefers_that() {
        let dense = |accept: &str| ContentCoding::for_response(accept, Compressibility::Dense).map(ContentCoding::name);
        for none in ["gzip, deflate, zstd", "*", "gzip, identity"] {
            assert_eq!(dense(none), None, "{none}");
        }
        assert_eq!(dense("gzip, identity;q=0.5"), Some("gzip"));
        assert_eq!(dense("zstd;q=0.8, identity;q=0"), Some("zstd"));
    }

    /// RFC 9110 §12.5.3: the highest acceptable quality is preferred; `identity` may be sent unless it is excluded.
    #[test]
    fn a_table_is_compressed_by_zstd_on_request() {
        let table = |accept: &str| ContentCoding::for_response(accept, Compressibility::Table).map(ContentCoding::name);
        for zstd in ["zstd", "gzip, deflate, br, zstd", "*", "zstd, identity;q=0.5", "zstd;q=0.4, gzip;q=0.2"] {
            assert_eq!(table(zstd), Some("zstd"), "{zstd}");
        }
        for none in ["gzip, deflate", "gzip, zstd;q=0.5", "zstd;q=0", "identity, zstd;q=0.9", ""] {
            assert_eq!(table(none), None, "{none}");
        }
        assert_eq!(table("gzip, identity;q=0"), Some("gzip"));
    }

    #[test]
    fn gzip_is_allowed_by_name_or_by_wildcard() {
        for takes in ["gzip", "br, x-gzip;q=0.1", "*", "zstd, *;q=0.5"] {
            assert!(ContentCoding::takes_gzip(takes), "{takes}");
        }
        for not in ["", "identity", "gzip;q=0, *", "br", "*;q=0"] {
            assert!(!ContentCoding::takes_gzip(not), "{not}");
        }
    }

    #[test]
    fn a_body_has_one_known_coding() {
        let of_body =
            |name: &str| ContentCoding::from_header(&name.parse().unwrap()).map_err(|error| error.status().as_u16());
        assert_eq!(of_body("GZIP"), Ok(Some(ContentCoding::Gzip)));
        assert_eq!(of_body("Identity"), Ok(None));
        assert_eq!(of_body(""), Ok(None));
        for refused in ["br", "gzip, gzip", "compress"] {
            assert_eq!(of_body(refused), Err(415), "{refused}");
        }
    }
}
