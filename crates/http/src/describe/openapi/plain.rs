//! Simplifies the schema of a type for generators of clients, without a change of its meaning.
//!
//! * `true` becomes `{}`, an equivalent object, which many generators need.
//! * A long array of a fixed length becomes one of any length with the length in its description: generators would make
//!   a type of that many members. The edge still checks the length by the type's own schema.
//! * Descriptions end before the code and headings of rustdoc, which are for authors of the type.

use serde_json::{Value, json};

use super::schema::{Keyword, kind_of};

/// The longest tuple that is useful as a type.
const MAX_EXACT_ITEMS: u64 = 16;

/// The same schema in this form.
#[must_use]
pub fn plain_schema(schema: &Value) -> Value {
    let mut simplified = schema.clone();
    plain(&mut simplified);
    simplified
}

pub(super) fn plain(schema: &mut Value) {
    match schema {
        Value::Bool(true) => *schema = json!({}),
        Value::Object(object) => {
            let exact = object.get("maxItems").and_then(Value::as_u64);
            let exact = exact.filter(|most| object.get("minItems").and_then(Value::as_u64) == Some(*most));
            if let Some(length) = exact.filter(|length| *length > MAX_EXACT_ITEMS) {
                object.remove("minItems");
                object.remove("maxItems");
                let words = object.get("description").and_then(Value::as_str).map(|words| format!("{words} "));
                let words = format!("{}Exactly {length} items.", words.unwrap_or_default());
                object.insert("description".to_owned(), words.into());
            }
            if let Some(Value::String(words)) = object.get_mut("description") {
                words.truncate(for_callers(words).len());
            }
            for (key, value) in object.iter_mut() {
                match (value, kind_of(key)) {
                    (_, Keyword::Reference | Keyword::Data) => {}
                    (Value::Object(named), Keyword::Names) => named.values_mut().for_each(plain),
                    (Value::Array(schemas), Keyword::Other) => schemas.iter_mut().for_each(plain),
                    (value @ Value::Object(_), Keyword::Other) => plain(value),
                    (value @ Value::Bool(true), Keyword::Other) if key == "items" => *value = json!({}),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The text before the first code block or heading.
fn for_callers(words: &str) -> &str {
    let starts = |marks: &str| if words.starts_with(marks) { Some(0) } else { words.find(&format!("\n{marks}")) };
    let end = ["```", "# ", "## "].into_iter().filter_map(starts).min().unwrap_or(words.len());
    words[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simplified_schema_has_the_same_meaning() {
        let mut schema = json!({
            "description": "A row.\n\nOf pixels.\n\n```\n# hidden\n```\nMore.",
            "type": "object",
            "properties": {
                "items": true,
                "row": { "type": "array", "items": { "type": "array", "items": true, "minItems": 3, "maxItems": 3 },
                         "minItems": 224, "maxItems": 224, "description": "Rows." },
                "some": { "type": "array", "minItems": 20, "maxItems": 30, "items": {} },
            },
            "default": { "items": true },
            "additionalProperties": true,
        });
        plain(&mut schema);
        let expected = json!({
            "description": "A row.\n\nOf pixels.",
            "type": "object",
            "properties": {
                "items": {},
                "row": { "type": "array", "items": { "type": "array", "items": {}, "minItems": 3, "maxItems": 3 },
                         "description": "Rows. Exactly 224 items." },
                "some": { "type": "array", "minItems": 20, "maxItems": 30, "items": {} },
            },
            "default": { "items": true },
            "additionalProperties": true,
        });
        assert_eq!(schema, expected);
        let mut heading = json!({ "description": "# Errors\nNone." });
        plain(&mut heading);
        assert_eq!(heading["description"], "");
    }
}
