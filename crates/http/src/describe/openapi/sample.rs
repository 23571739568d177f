//! A value that fits a schema, for routes without an example. A best effort: it shows names and types, and is valid if
//! the schema has no further rules.

use serde_json::{Map, Value, json};

/// Deep enough for a readable example; ends recursive types.
const MAX_DEPTH: usize = 6;

/// The longest array in an example.
const MAX_ITEMS: u64 = 16;

/// A small value for `schema`, whose references point into its own `$defs`; `None` if no small value fits.
pub(crate) fn sample(schema: &Value) -> Option<Value> {
    let mut sampler = Sampler { root: schema, fits: true };
    let value = sampler.sample(schema, 0);
    sampler.fits.then_some(value)
}

struct Sampler<'a> {
    root: &'a Value,
    fits: bool,
}

impl<'a> Sampler<'a> {
    fn sample(&mut self, schema: &'a Value, depth: usize) -> Value {
        if depth > MAX_DEPTH {
            return Value::Null;
        }
        if let Some(value) = declared_value(schema) {
            return value;
        }
        if let Some(target) = schema["$ref"].as_str() {
            let found = self.root.pointer(target.trim_start_matches('#'));
            return found.map_or(Value::Null, |target| self.sample(target, depth + 1));
        }
        if let Some(choice) = first_choice(schema) {
            return self.sample(choice, depth + 1);
        }
        match type_of(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "string" => json!("text"),
            "integer" => schema.get("minimum").filter(|least| least.is_i64()).cloned().unwrap_or_else(|| json!(1)),
            "number" => json!(1.5),
            "boolean" => json!(true),
            _ => json!({}),
        }
    }

    /// Required properties; all properties if none is required.
    fn object(&mut self, schema: &'a Value, depth: usize) -> Value {
        let Some(properties) = schema["properties"].as_object() else { return json!({}) };
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let sampled = properties.iter().filter(|(name, _)| required.is_empty() || required.contains(&name.as_str()));
        Value::Object(
            sampled.map(|(name, property)| (name.clone(), self.sample(property, depth + 1))).collect::<Map<_, _>>(),
        )
    }

    fn array(&mut self, schema: &'a Value, depth: usize) -> Value {
        if let Some(items) = schema["prefixItems"].as_array() {
            return items.iter().map(|item| self.sample(item, depth + 1)).collect();
        }
        let least = schema["minItems"].as_u64().unwrap_or(1);
        self.fits &= least <= MAX_ITEMS;
        let count = least.clamp(1, MAX_ITEMS);
        (0..count).map(|_| self.sample(&schema["items"], depth + 1)).collect()
    }
}

/// The example of the schema itself.
fn declared_value(schema: &Value) -> Option<Value> {
    let first = |key: &str| schema[key].as_array().and_then(|values| values.first());
    let offered = [schema.get("const"), first("examples"), schema.get("default"), first("enum")];
    offered.into_iter().flatten().next().cloned()
}

/// The first alternative that is not null.
fn first_choice(schema: &Value) -> Option<&Value> {
    let choices = ["anyOf", "oneOf", "allOf"].into_iter().find_map(|key| schema[key].as_array())?;
    choices.iter().find(|choice| type_of(choice) != "null").or_else(|| choices.first())
}

/// The type, or the first of several that is not null. Properties without a type mean an object.
fn type_of(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(name) => name,
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or(""),
        _ if schema["properties"].is_object() => "object",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_names_and_types() {
        let schema = json!({
            "type": "object",
            "required": ["name", "times", "tags", "size", "kind", "inner"],
            "properties": {
                "name": { "type": "string" },
                "times": { "type": "integer", "minimum": 3 },
                "tags": { "type": "array", "items": { "type": "string" } },
                "size": { "type": ["number", "null"] },
                "kind": { "enum": ["small", "large"] },
                "inner": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/Inner" }] },
                "optional": { "type": "string" },
            },
            "$defs": { "Inner": { "properties": { "on": { "type": "boolean" } } } },
        });
        let expected = json!({
            "name": "text", "times": 3, "tags": ["text"], "size": 1.5, "kind": "small", "inner": { "on": true },
        });
        assert_eq!(sample(&schema), Some(expected));
    }

    #[test]
    fn ends_on_recursive_types() {
        let schema = json!({ "type": "array", "items": { "$ref": "#" } });
        assert!(sample(&schema).unwrap().is_array());
    }

    #[test]
    fn an_empty_schema_gets_an_empty_object() {
        assert_eq!(sample(&json!({})), Some(json!({})));
        assert_eq!(sample(&json!(true)), Some(json!({})));
    }

    #[test]
    fn a_sample_has_the_required_length_or_is_left_out() {
        let row = |length: u64| json!({ "type": "array", "items": { "type": "integer" }, "minItems": length });
        assert_eq!(sample(&row(10)), Some(json!(vec![1; 10])));
        assert_eq!(sample(&row(1000)), None);
    }
}
