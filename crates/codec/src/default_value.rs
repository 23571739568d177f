//! The value of a call that gives none, by its type.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use crate::data_type::DataType;
use crate::value::Value;

impl DataType {
    /// What a call without an input means by its type: the default of its schema, else the object without fields, as of
    /// a function without parameters. `None` where an input is needed.
    #[must_use]
    pub fn default_json(&self) -> Option<Cow<'_, Json>> {
        let schema = self.schema();
        let is_required = |required: &Json| required.as_array().is_none_or(|names| !names.is_empty());
        let needs_no_field = schema["type"] == "object"
            && schema["properties"].is_object()
            && !schema.get("required").is_some_and(is_required)
            && schema.get("minProperties").is_none();
        schema.get("default").map(Cow::Borrowed).or_else(|| needs_no_field.then(|| Cow::Owned(json!({}))))
    }

    /// The same as a value.
    #[must_use]
    pub fn default_value(&self) -> Option<Value> {
        Value::from_serialize(&*self.default_json()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_or_fields_that_may_all_be_missing_are_the_input_of_a_call_without_one() {
        let default_of = |schema: &Json| {
            let input = DataType::value().with_schema(schema.clone());
            input.default_json().map(Cow::into_owned)
        };
        let property = json!({ "a": { "type": "string" } });
        for (schema, expected) in [
            (json!({ "type": "object", "properties": {}, "required": [] }), json!({})),
            (json!({ "type": "object", "properties": property }), json!({})),
            (json!({ "type": "object", "properties": property, "default": { "a": "b" } }), json!({ "a": "b" })),
            (json!({ "type": "string", "default": "iso" }), json!("iso")),
            (json!({ "type": ["string", "null"], "default": null }), json!(null)),
        ] {
            assert_eq!(default_of(&schema), Some(expected), "{schema}");
        }
        for schema in [
            json!({ "type": "object", "properties": property, "required": ["a"] }),
            json!({ "type": "object", "properties": property, "minProperties": 1 }),
            json!({ "type": "object" }),
            json!({ "type": "string" }),
            json!({}),
            json!(true),
        ] {
            assert_eq!(default_of(&schema), None, "{schema}");
        }
    }
}
