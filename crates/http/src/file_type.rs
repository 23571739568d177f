//! Media types by the extension of a file's name, and by its first bytes.

use std::path::Path;

use callboard_codec::MediaType;

/// Extensions and their media types. Other files are bytes.
const TYPES: [(&str, &str); 16] = [
    ("json", "application/json"),
    ("msgpack", "application/msgpack"),
    ("npy", "application/x-npy"),
    ("npz", "application/x-npz"),
    ("arrow", "application/vnd.apache.arrow.file"),
    ("feather", "application/vnd.apache.arrow.file"),
    ("arrows", "application/vnd.apache.arrow.stream"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("bmp", "image/bmp"),
    ("webp", "image/webp"),
    ("txt", "text/plain"),
    ("csv", "text/csv"),
    ("wav", "audio/wav"),
];

/// The type of unknown bytes.
const BYTES: &str = "application/octet-stream";

/// The media type of a file by its extension; `application/octet-stream` for an unknown one.
#[must_use]
pub fn media_type_of(path: &Path) -> &'static str {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let known = TYPES.iter().find(|(name, _)| extension.as_deref() == Some(*name));
    known.map_or(BYTES, |(_, media_type)| media_type)
}

/// Media types, and where their files have which bytes. A reply has one of these types only if its bytes say so.
const SIGNATURES: [(&str, usize, &[u8]); 15] = [
    ("image/png", 0, b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", 0, b"\xff\xd8\xff"),
    ("image/gif", 0, b"GIF8"),
    ("image/webp", 8, b"WEBP"),
    ("image/avif", 4, b"ftypavif"),
    ("image/tiff", 0, b"II*\0"),
    ("image/tiff", 0, b"MM\0*"),
    ("image/bmp", 0, b"BM"),
    ("audio/wav", 8, b"WAVE"),
    ("audio/ogg", 0, b"OggS"),
    ("audio/flac", 0, b"fLaC"),
    ("audio/mpeg", 0, b"ID3"),
    ("audio/mpeg", 0, b"\xff\xfb"),
    ("application/pdf", 0, b"%PDF-"),
    ("application/zip", 0, b"PK\x03\x04"),
];

/// Whether the first bytes of a file are those of this media type.
pub(crate) fn begins_as(bytes: &[u8], media_type: &str) -> bool {
    let is_at = |place: usize, mark: &[u8]| bytes.get(place..).is_some_and(|rest| rest.starts_with(mark));
    SIGNATURES.iter().any(|(name, place, mark)| *name == media_type && is_at(*place, mark))
}

/// The media type that the first bytes of a file have, if it is a known one.
#[must_use]
pub fn file_type_of(bytes: &[u8]) -> Option<&'static str> {
    SIGNATURES.iter().map(|(name, ..)| *name).find(|name| begins_as(bytes, name))
}

/// The known media types in a range such as `image/*`.
pub(crate) fn known_types(range: &str) -> Vec<&'static str> {
    let known = SIGNATURES.iter().map(|(name, ..)| *name);
    let mut known: Vec<_> = known.filter(|name| MediaType::range_includes(range, name)).collect();
    known.dedup();
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        assert!(begins_as(b"RIFF\0\0\0\0WAVEfmt ", "audio/wav") && begins_as(b"MM\0*", "image/tiff"));
        for (bytes, media_type) in [(&b"RIFF"[..], "audio/wav"), (b"GIF89a", "image/png"), (b"<svg", "image/svg+xml")] {
            assert!(!begins_as(bytes, media_type), "{media_type}");
        }
        assert_eq!(known_types("audio/*"), ["audio/wav", "audio/ogg", "audio/flac", "audio/mpeg"]);
        assert_eq!(known_types("image/tiff"), ["image/tiff"]);
        assert!(known_types("video/*").is_empty());
    }

    #[test]
    fn the_extension_decides() {
        let types = ["a/seven.PNG", "x.tar.npy", "noname", ".json"].map(|name| media_type_of(Path::new(name)));
        assert_eq!(types, ["image/png", "application/x-npy", BYTES, BYTES]);
    }
}
