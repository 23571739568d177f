//! Moves the JSON Schemas of types into one `components/schemas` section, with their definitions and references.
//!
//! Types of the same name and schema share an entry; another schema of the same name gets a number after its name.
//! Schemas are equal only if everything that they refer to is equal.

use serde_json::{Map, Value, json};

use super::plain::plain;

/// The schemas of one document, in the order of first use.
#[derive(Debug, Default)]
pub(super) struct Components {
    schemas: Map<String, Value>,
    /// The inserted schemas by name, before references were rewritten: they decide sharing.
    originals: Map<String, Value>,
}

impl Components {
    /// Adds `schema` under `name`, or under a free name like it, and returns a reference to it.
    pub(super) fn insert(&mut self, name: &str, mut schema: Value) -> Value {
        plain(&mut schema);
        let (root, root_is_new) = self.reserve(&component_name(name), &schema);
        let definitions = match schema.as_object_mut().and_then(|object| object.remove("$defs")) {
            Some(Value::Object(definitions)) => definitions,
            _ => Map::new(),
        };
        // All names first, because definitions refer to each other in any order. Each is compared with everything it
        // may refer to: one schema may get two names, but never two schemas one name.
        let named: Vec<_> = definitions
            .iter()
            .map(|(old, definition)| {
                let with_all = closure(definition, &schema, &definitions);
                let (new, is_new) = self.reserve(&component_name(old), &with_all);
                (old.clone(), new, is_new, definition.clone())
            })
            .collect();
        let renames: Vec<(String, String)> =
            named.iter().map(|(old, new, ..)| (format!("#/$defs/{old}"), reference(new))).collect();
        let rewrite = |mut schema: Value| {
            rewrite_references(&mut schema, &reference(&root), &renames);
            schema
        };
        for (_, new, is_new, definition) in named {
            if is_new {
                self.schemas.insert(new, rewrite(definition));
            }
        }
        if root_is_new {
            self.schemas.insert(root.clone(), rewrite(schema));
        }
        json!({ "$ref": reference(&root) })
    }

    pub(super) fn into_schemas(self) -> Map<String, Value> {
        self.schemas
    }

    /// The name for this schema, and whether it is a new one.
    fn reserve(&mut self, name: &str, schema: &Value) -> (String, bool) {
        let candidates = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}_{number}")));
        for candidate in candidates {
            match self.originals.get(&candidate) {
                Some(same) if same == schema => return (candidate, false),
                Some(_) => {}
                None => {
                    self.originals.insert(candidate.clone(), schema.clone());
                    return (candidate, true);
                }
            }
        }
        unreachable!("there is always a higher number")
    }
}

fn reference(name: &str) -> String {
    format!("#/components/schemas/{name}")
}

/// The characters that OpenAPI allows in a component's name (§4.8.7.1); others become `_`.
fn component_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().map(allowed).collect();
    if name.is_empty() { "Schema".to_owned() } else { name }
}

/// A definition with itself and all definitions that it reaches.
fn closure(definition: &Value, root: &Value, definitions: &Map<String, Value>) -> Value {
    let mut reached: Map<String, Value> = Map::new();
    let mut open = vec![definition];
    while let Some(schema) = open.pop() {
        each_reference(schema, &mut |target| {
            let target_schema = match target.strip_prefix("#/$defs/") {
                Some(name) => definitions.get(name),
                None => (target == "#").then_some(root),
            };
            if let Some(target_schema) = target_schema.filter(|_| !reached.contains_key(target)) {
                reached.insert(target.to_owned(), target_schema.clone());
                open.push(target_schema);
            }
        });
    }
    if reached.is_empty() { definition.clone() } else { json!({ "schema": definition, "reached": reached }) }
}

/// Follows `$ref`s wherever a schema may hold them.
fn rewrite_references(schema: &mut Value, root: &str, renames: &[(String, String)]) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                match (value, kind_of(key)) {
                    (Value::String(target), Keyword::Reference) => *target = renamed(target, root, renames),
                    (_, Keyword::Data) => {}
                    // Below these, keys are user-defined names, which may equal keywords.
                    (Value::Object(named), Keyword::Names) => {
                        named.values_mut().for_each(|schema| rewrite_references(schema, root, renames));
                    }
                    (value, _) => rewrite_references(value, root, renames),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite_references(item, root, renames)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Calls `found` with every reference of a schema, by the same rules.
fn each_reference<'a>(schema: &'a Value, found: &mut impl FnMut(&'a str)) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                match (value, kind_of(key)) {
                    (Value::String(target), Keyword::Reference) => found(target),
                    (_, Keyword::Data) => {}
                    (Value::Object(named), Keyword::Names) => {
                        named.values().for_each(|schema| each_reference(schema, found));
                    }
                    (value, _) => each_reference(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The content of a schema's keyword.
pub(super) enum Keyword {
    /// The place of another schema.
    Reference,
    /// Values, in which nothing is a reference.
    Data,
    /// Schemas under user-defined names.
    Names,
    /// Schemas, or irrelevant content.
    Other,
}

pub(super) fn kind_of(keyword: &str) -> Keyword {
    match keyword {
        "$ref" => Keyword::Reference,
        "const" | "enum" | "default" | "example" | "examples" => Keyword::Data,
        "properties" | "patternProperties" | "dependentSchemas" | "$defs" => Keyword::Names,
        _ => Keyword::Other,
    }
}

fn renamed(target: &str, root: &str, renames: &[(String, String)]) -> String {
    if target == "#" {
        return root.to_owned();
    }
    let rename = renames.iter().find(|(old, _)| old == target);
    rename.map_or_else(|| target.to_owned(), |(_, new)| new.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_definitions_and_follows_references() {
        let mut components = Components::default();
        let schema = json!({
            "type": "object",
            "properties": { "left": { "$ref": "#/$defs/Leaf<T>" }, "again": { "$ref": "#" } },
            "$defs": { "Leaf<T>": { "type": "array", "items": { "$ref": "#/$defs/Leaf<T>" } } },
        });
        assert_eq!(components.insert("Tree", schema), json!({ "$ref": "#/components/schemas/Tree" }));
        let schemas = Value::Object(components.into_schemas());
        assert_eq!(schemas["Tree"]["properties"]["left"]["$ref"], "#/components/schemas/Leaf_T_");
        assert_eq!(schemas["Tree"]["properties"]["again"]["$ref"], "#/components/schemas/Tree");
        assert_eq!(schemas["Leaf_T_"]["items"]["$ref"], "#/components/schemas/Leaf_T_");
        assert!(schemas["Tree"].get("$defs").is_none());
    }

    #[test]
    fn equal_schemas_are_shared_and_different_schemas_are_not() {
        let mut components = Components::default();
        let text = json!({ "type": "string" });
        assert_eq!(components.insert("Name", text.clone()), components.insert("Name", text));
        let other = components.insert("Name", json!({ "type": "integer" }));
        assert_eq!(other, json!({ "$ref": "#/components/schemas/Name_2" }));
        assert_eq!(components.into_schemas().len(), 2);
    }

    #[test]
    fn types_that_differ_only_in_their_parts_are_separate() {
        let mut components = Components::default();
        let item = |inner: &str| {
            json!({
                "type": "object",
                "properties": { "inner": { "$ref": "#/$defs/Inner" } },
                "$defs": { "Inner": { "type": inner } },
            })
        };
        assert_eq!(components.insert("Item", item("string")), json!({ "$ref": "#/components/schemas/Item" }));
        assert_eq!(components.insert("Item", item("integer")), json!({ "$ref": "#/components/schemas/Item_2" }));
        assert_eq!(components.insert("Item", item("string")), json!({ "$ref": "#/components/schemas/Item" }));
        let schemas = Value::Object(components.into_schemas());
        assert_eq!(schemas["Item"]["properties"]["inner"]["$ref"], "#/components/schemas/Inner");
        assert_eq!(schemas["Item_2"]["properties"]["inner"]["$ref"], "#/components/schemas/Inner_2");
        assert_eq!(schemas["Inner_2"]["type"], "integer");
    }

    #[test]
    fn properties_may_be_called_like_keywords() {
        let mut components = Components::default();
        let schema = json!({
            "properties": { "default": { "$ref": "#/$defs/Inner" }, "enum": { "$ref": "#/$defs/Inner" } },
            "$defs": { "Inner": { "type": "string" } },
        });
        components.insert("Odd", schema);
        let schemas = Value::Object(components.into_schemas());
        for name in ["default", "enum"] {
            assert_eq!(schemas["Odd"]["properties"][name]["$ref"], "#/components/schemas/Inner", "{name}");
        }
    }

    #[test]
    fn data_that_looks_like_a_reference_is_unchanged() {
        let mut components = Components::default();
        let schema = json!({ "properties": { "$ref": { "type": "string", "default": { "$ref": "#" } } } });
        components.insert("Odd", schema.clone());
        assert_eq!(components.into_schemas()["Odd"], schema);
    }
}
