//! Finds the bytes of a picture in an item.

use bytes::Bytes;
use callboard_codec::{Map, Media, Value};

use super::decode::InvalidImage;

/// Keys of a map that an error repeats: they are the sender's text.
const MAX_SHOWN_KEYS: usize = 8;
const MAX_SHOWN_CHARS: usize = 32;

/// The bytes of a picture: the item itself, or the entry `field` of a map, as bytes or base64. Other entries are
/// ignored; forms have them.
pub(super) fn bytes_of(item: &Value, field: &str) -> Result<Bytes, InvalidImage> {
    let value = match item {
        Value::Map(map) => map.get(field).ok_or_else(|| InvalidImage::Missing { keys: shown_keys(map) })?,
        other => other,
    };
    match value {
        Value::Bytes(bytes) => Ok(bytes.clone()),
        // Text is base64 only under the field's name, where the schema says so.
        Value::Str(text) if item.as_map().is_some() => {
            Media::from_base64(text).map(Media::into_bytes).map_err(InvalidImage::NotBase64)
        }
        other => Err(InvalidImage::NotBytes { got: other.kind() }),
    }
}

fn shown_keys(map: &Map) -> String {
    let mut shown: Vec<String> = map.keys().take(MAX_SHOWN_KEYS).map(|key| format!("`{}`", shorten(key))).collect();
    if map.len() > MAX_SHOWN_KEYS {
        shown.push("…".to_owned());
    }
    if shown.is_empty() { "nothing".to_owned() } else { shown.join(", ") }
}

fn shorten(key: &str) -> String {
    key.chars().take(MAX_SHOWN_CHARS).collect()
}
