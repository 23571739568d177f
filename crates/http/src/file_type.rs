//! Media types by the extension of a file's name.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_decides() {
        let types = ["a/seven.PNG", "x.tar.npy", "noname", ".json"].map(|name| media_type_of(Path::new(name)));
        assert_eq!(types, ["image/png", "application/x-npy", BYTES, BYTES]);
    }
}
