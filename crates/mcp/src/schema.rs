//! The schemas of a route as those of a tool. Pure.
//!
//! The root of an input is an object: an input that is none is one argument, by the name of the parameter that takes it,
//! or `input`. References stay within the schema.

use callboard_codec::DataType;
use callboard_http::plain_schema;
use serde_json::{Value as Json, json};

/// The argument of an input without a name.
const INPUT: &str = "input";

/// The argument that an input is, if the input itself is no object.
pub(crate) fn argument(input: &DataType) -> Option<&str> {
    if is_object(input.schema()) {
        return None;
    }
    let parameters = input.parameters().filter(|parameters| parameters.is_value);
    Some(parameters.and_then(|parameters| parameters.names.first()).map_or(INPUT, |name| name))
}

/// The schema of the arguments of a tool.
pub(crate) fn of_input(input: &DataType) -> Json {
    let mut schema = plain_schema(input.schema());
    let Some(name) = argument(input) else { return with_object_root(schema) };
    let accepts_none = accepts_null(&schema, &schema) || schema.get("default").is_some();
    let definitions = schema.as_object_mut().and_then(|schema| schema.remove("$defs"));
    schema.as_object_mut().map(|schema| schema.remove("$schema"));
    let pointer = name.replace('~', "~0").replace('/', "~1");
    move_root(&mut schema, &format!("#/properties/{pointer}"));
    let mut wrapped = json!({ "type": "object", "properties": { name: schema } });
    if !accepts_none {
        wrapped["required"] = json!([name]);
    }
    if let Some(mut definitions) = definitions {
        move_root(&mut definitions, &format!("#/properties/{pointer}"));
        wrapped["$defs"] = definitions;
    }
    wrapped
}

/// The schema of the outputs of a tool, if its results can have one: a file is no structured content, and clients
/// demand content of a tool that says a schema, so null must not be one of its values. Before 2026-07-28 it was always
/// an object.
pub(crate) fn of_output(output: &DataType, any_root: bool) -> Option<Json> {
    let schema = output.schema();
    if is_file(output) || accepts_null(schema, schema) || !(any_root || is_object(schema)) {
        return None;
    }
    let schema = plain_schema(schema);
    Some(if is_object(&schema) { with_object_root(schema) } else { schema })
}

/// Whether a text of this type stands for bytes.
pub(crate) fn is_file(data_type: &DataType) -> bool {
    data_type.schema()["contentEncoding"] == "base64"
}

/// Whether the value is an object by its schema, directly or by a reference.
pub(crate) fn is_object(schema: &Json) -> bool {
    resolved(schema, schema)["type"] == "object"
}

/// The schema without a reference at its root, because hosts look for the type there.
fn with_object_root(mut schema: Json) -> Json {
    if schema["type"] == "object" {
        return schema;
    }
    let mut root = resolved(&schema, &schema).clone();
    if let (Some(root), Some(definitions)) = (root.as_object_mut(), schema.get_mut("$defs")) {
        root.insert("$defs".to_owned(), definitions.take());
    }
    root
}

/// The schema that the references of this one lead to.
fn resolved<'s>(mut schema: &'s Json, root: &'s Json) -> &'s Json {
    // A reference to itself ends somewhere.
    for _ in 0..8 {
        let Some(pointer) = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#')) else { break };
        let Some(target) = root.pointer(pointer) else { break };
        schema = target;
    }
    schema
}

fn accepts_null(schema: &Json, root: &Json) -> bool {
    accepts_null_within(schema, root, 8)
}

fn accepts_null_within(schema: &Json, root: &Json, depth: usize) -> bool {
    let Some(next) = depth.checked_sub(1) else { return false };
    let schema = resolved(schema, root);
    let choices = ["anyOf", "oneOf"].into_iter().find_map(|word| schema.get(word)?.as_array());
    match (schema, &schema["type"], choices) {
        (Json::Bool(accepts), ..) => *accepts,
        (_, Json::String(kind), _) => kind == "null",
        (_, Json::Array(kinds), _) => kinds.iter().any(|kind| kind == "null"),
        (_, _, Some(choices)) => choices.iter().any(|choice| accepts_null_within(choice, root, next)),
        (schema, ..) => ["$ref", "allOf", "enum", "const"].into_iter().all(|word| schema.get(word).is_none()),
    }
}

/// Lets references to the root lead to its new place.
fn move_root(schema: &mut Json, place: &str) {
    match schema {
        Json::Object(object) => {
            for (key, value) in object.iter_mut() {
                match value {
                    Json::String(target) if key == "$ref" && target == "#" => place.clone_into(target),
                    Json::String(_) => {}
                    value if ["const", "enum", "default", "example", "examples"].contains(&key.as_str()) => _ = value,
                    value => move_root(value, place),
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| move_root(item, place)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// An object without members, for a tool without arguments.
pub(crate) fn no_arguments() -> &'static [u8] {
    b"{}"
}

#[cfg(test)]
mod tests {
    use callboard_codec::{Media, Parameters};

    use super::*;

    fn of(schema: Json) -> DataType {
        DataType::value().with_schema(schema)
    }

    #[test]
    fn an_object_is_the_arguments_and_everything_else_is_one_of_them() {
        let object = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
        assert_eq!(of_input(&of(object.clone())), object);
        let text = of(json!({ "type": "string" }));
        let wrapped =
            json!({ "type": "object", "properties": { "input": { "type": "string" } }, "required": ["input"] });
        assert_eq!((of_input(&text), argument(&text)), (wrapped, Some("input")));
        let named = text.with_parameters(Parameters { names: vec!["city".to_owned()], is_value: true });
        assert_eq!((of_input(&named)["required"].clone(), argument(&named)), (json!(["city"]), Some("city")));
        let any = json!({ "type": "object", "properties": { "input": { "title": "Value" } } });
        assert_eq!(of_input(&DataType::value()), any);
    }

    #[test]
    fn references_stay_within_the_schema() {
        let tree = json!({ "type": "array", "items": { "$ref": "#" }, "$defs": { "X": { "$ref": "#" } }, "default": { "$ref": "#" } });
        let wrapped = of_input(&of(tree));
        assert_eq!(wrapped["properties"]["input"]["items"]["$ref"], "#/properties/input");
        assert_eq!(wrapped["properties"]["input"]["default"]["$ref"], "#");
        assert_eq!(wrapped["$defs"]["X"]["$ref"], "#/properties/input");
        let by_reference = json!({ "$ref": "#/$defs/X", "$defs": { "X": { "type": "object", "properties": {} } } });
        let input = of(by_reference);
        assert_eq!(argument(&input), None);
        assert_eq!(of_input(&input)["type"], "object");
        assert_eq!(of_input(&input)["$defs"]["X"]["type"], "object");
        let endless = of(json!({ "$ref": "#/$defs/X", "$defs": { "X": { "$ref": "#/$defs/X" } } }));
        assert_eq!(argument(&endless), Some("input"));
    }

    #[test]
    fn an_output_has_a_schema_where_its_content_always_fits() {
        let object = of(json!({ "type": "object" }));
        assert_eq!(of_output(&object, false), Some(json!({ "type": "object" })));
        let number = of(json!({ "type": "number" }));
        assert_eq!((of_output(&number, true).is_some(), of_output(&number, false)), (true, None));
        let optional =
            json!({ "anyOf": [{ "$ref": "#/$defs/X" }, { "type": "null" }], "$defs": { "X": { "type": "object" } } });
        for none in [optional, json!(true), json!({}), json!({ "type": ["string", "null"] }), json!({ "type": "null" })]
        {
            assert_eq!(of_output(&of(none.clone()), true), None, "{none}");
        }
        assert_eq!(of_output(&DataType::for_type::<Media>(), true), None);
    }
}
