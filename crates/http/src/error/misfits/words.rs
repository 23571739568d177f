//! How misfits are told: what types and values are called, and where in a value they are.

use callboard_codec::Value;
use serde_json::Value as Schema;

/// Words of an enumeration that are told.
const MAX_WORDS: usize = 16;

/// Characters of a key that are told.
const MAX_KEY_CHARS: usize = 64;

/// What a type of JSON Schema is called.
pub(super) fn in_words(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a text",
        "array" => "a list",
        "object" => "a map",
        other => other,
    }
}

/// What a value is called.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Int(_) | Value::UInt(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Str(_) => "a text",
        Value::List(_) | Value::Tuple(_) => "a list",
        Value::Map(_) => "a map",
        _ => "something else",
    }
}

/// Of the words of an enumeration, it is none.
pub(super) fn none_of<'a>(words: impl IntoIterator<Item = &'a Schema>) -> String {
    let words: Vec<String> = words.into_iter().take(MAX_WORDS).map(Schema::to_string).collect();
    format!("must be {}", words.join(" or "))
}

/// As the paths of `DecodeError`: `.name`, or `["what ever"]`, and no more of a key than says which it is.
pub(super) fn step(path: &str, key: &str) -> String {
    let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
    let more = if shown.len() < key.len() { "…" } else { "" };
    if is_plain { format!("{path}.{shown}{more}") } else { format!("{path}[{:?}]", format!("{shown}{more}")) }
}
