//! Numbers that a JSON Schema declares as decimals: their digits are kept as text, since a float would lose some.

use std::collections::HashMap;

use serde_json::Value as Schema;

/// The decimals of a type, by their places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decimals {
    /// The value itself is one.
    pub(super) here: bool,
    fields: HashMap<String, Self>,
    other_fields: Option<Box<Self>>,
    first_items: Vec<Option<Self>>,
    other_items: Option<Box<Self>>,
}

impl Decimals {
    /// The decimals in a schema without references, which is as deep as its type is; `None` if there are none.
    pub(crate) fn of_schema(schema: &Schema) -> Option<Self> {
        let schema = schema.as_object()?;
        let inner = |key: &str| schema.get(key).and_then(Self::of_schema).map(Box::new);
        let list = |key: &str| schema.get(key).and_then(Schema::as_array).map_or(&[][..], Vec::as_slice);
        let mut found = Self {
            here: schema.get("format").is_some_and(|format| format == "decimal"),
            fields: HashMap::new(),
            other_fields: inner("additionalProperties"),
            first_items: list("prefixItems").iter().map(Self::of_schema).collect(),
            other_items: inner("items"),
        };
        for (name, field) in schema.get("properties").and_then(Schema::as_object).into_iter().flatten() {
            found.fields.extend(Self::of_schema(field).map(|inner| (name.clone(), inner)));
        }
        for all in ["anyOf", "oneOf", "allOf"].map(list) {
            // A number that may be a float as well is one.
            let is_number = all.iter().any(|each| each["type"] == "number");
            for inner in all.iter().filter_map(Self::of_schema) {
                found.merge(Self { here: inner.here && !is_number, ..inner });
            }
        }
        let last = found.first_items.iter().rposition(Option::is_some);
        found.first_items.truncate(last.map_or(0, |last| last + 1));
        (found != Self::default()).then_some(found)
    }

    fn merge(&mut self, other: Self) {
        self.here |= other.here;
        self.fields.extend(other.fields);
        self.other_fields = self.other_fields.take().or(other.other_fields);
        self.other_items = self.other_items.take().or(other.other_items);
        if self.first_items.is_empty() {
            self.first_items = other.first_items;
        }
    }

    pub(super) fn item(&self, index: usize) -> Option<&Self> {
        self.first_items.get(index).map_or(self.other_items.as_deref(), Option::as_ref)
    }

    pub(super) fn field(&self, key: &str) -> Option<&Self> {
        self.fields.get(key).or(self.other_fields.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::decode::{decode, decode_digits};
    use super::*;
    use crate::limits::DecodeLimits;

    fn read(schema: &Schema, text: &str) -> String {
        let decimals = Decimals::of_schema(schema).expect("the schema has a decimal");
        let value = decode_digits(text.as_bytes(), &DecodeLimits::default(), &decimals);
        let text = |value| String::from_utf8(crate::json::encode(&value).unwrap().to_vec()).unwrap();
        value.map_or_else(|error| error.to_string(), text)
    }

    fn decimal() -> Schema {
        json!({ "type": "string", "format": "decimal" })
    }

    #[test]
    fn a_decimal_keeps_the_digits_that_a_float_would_lose() {
        for digits in ["1.10", "12345678901234567890.12", "0.29999999999999998", "-1e-400", "12345678901234567890123"] {
            assert_eq!(read(&decimal(), digits), format!("\"{digits}\""));
        }
        assert_eq!(read(&decimal(), "7"), "7");
        assert_eq!(read(&decimal(), "\"1.10\""), "\"1.10\"");
        assert!(read(&decimal(), "1.").contains("a number that ends in its point"));
    }

    #[test]
    fn only_the_places_of_decimals_keep_their_digits() {
        let schema = json!({ "properties": {
            "a": { "anyOf": [decimal(), { "type": "null" }] },
            "b": { "type": "number" },
            "c": { "items": { "additionalProperties": decimal() } },
            "d": { "prefixItems": [{ "type": "number" }, decimal()] },
            "e": { "anyOf": [decimal(), { "type": "number" }] },
        } });
        let text = r#"{"a":1.10,"b":1.10,"c":[{"x":1.10}],"d":[1.10,1.10,1.10],"e":1.10,"f":1.10}"#;
        let expected = r#"{"a":"1.10","b":1.1,"c":[{"x":"1.10"}],"d":[1.1,"1.10",1.1],"e":1.1,"f":1.1}"#;
        assert_eq!(read(&schema, text), expected);
        // Elsewhere nothing changes.
        let limits = DecodeLimits::default();
        assert_eq!(crate::json::encode(&decode(b"[1.10]", &limits).unwrap()).unwrap(), "[1.1]");
        for schema in [json!({}), json!(true), json!({ "type": "number" }), json!({ "items": { "format": "date" } })] {
            assert_eq!(Decimals::of_schema(&schema), None);
        }
    }

    #[test]
    fn the_digits_of_a_decimal_are_a_text_to_the_limits() {
        let decimals = Decimals::of_schema(&decimal()).unwrap();
        let limits = DecodeLimits { max_string_bytes: 8, ..DecodeLimits::default() };
        let error = decode_digits(b"1.234567890", &limits, &decimals).unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.name), Some("max_string_bytes"));
    }
}
