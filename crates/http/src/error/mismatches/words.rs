//! The texts of mismatches: names of types and values, and paths.

use callboard_codec::Value;
use serde_json::Value as Schema;

/// The most constants of an enumeration that are listed.
const MAX_CONSTANTS: usize = 16;

/// The most characters of a key that are shown.
const MAX_KEY_CHARS: usize = 64;

/// The name of a type of JSON Schema.
pub(super) fn type_name(name: &str) -> &str {
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

/// The name of a value.
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

/// The message for a value that is not in an enumeration.
pub(super) fn none_of<'a>(constants: impl IntoIterator<Item = &'a Schema>) -> String {
    let constants: Vec<String> = constants.into_iter().take(MAX_CONSTANTS).map(Schema::to_string).collect();
    format!("must be {}", constants.join(" or "))
}

/// Like the paths of `DecodeError`: `.name`, or `["any key"]`, with the beginning of a long key.
pub(super) fn step(path: &str, key: &str) -> String {
    let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
    let more = if shown.len() < key.len() { "…" } else { "" };
    if is_plain { format!("{path}.{shown}{more}") } else { format!("{path}[{:?}]", format!("{shown}{more}")) }
}
