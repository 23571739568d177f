//! Moves JSON Schemas of types into one `components/schemas` section, with their definitions and references.
//!
//! Two types of the same name and the same schema share an entry; of the same name and different schemas, the later one gets
//! a number behind its name.

use serde_json::{Map, Value, json};

/// The schemas of one document, in the order of first use.
#[derive(Debug, Default)]
pub(super) struct Components {
    schemas: Map<String, Value>,
    /// What was asked to be inserted under each name, before references were rewritten: the ground for sharing.
    originals: Map<String, Value>,
}

impl Components {
    /// Puts `schema` under `name`, or under the next free name like it, and gives back a reference to it.
    pub(super) fn insert(&mut self, name: &str, mut schema: Value) -> Value {
        let definitions = match schema.as_object_mut().and_then(|object| object.remove("$defs")) {
            Some(Value::Object(definitions)) => definitions,
            _ => Map::new(),
        };
        let (root, root_is_new) = self.reserve(&component_name(name), &schema);
        // All names first: definitions refer to each other in any order.
        let named: Vec<_> = definitions
            .into_iter()
            .map(|(old, definition)| {
                let (new, is_new) = self.reserve(&component_name(&old), &definition);
                (old, new, is_new, definition)
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

/// Follows `$ref`s wherever a schema may hold them. A `$ref` that is the *name of a property* is a schema, not a string,
/// and is left alone by that.
fn rewrite_references(schema: &mut Value, root: &str, renames: &[(String, String)]) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                match value {
                    Value::String(target) if key == "$ref" => *target = renamed(target, root, renames),
                    // Data, not schemas: a string in here is never a reference.
                    _ if ["const", "enum", "default", "example", "examples"].contains(&key.as_str()) => {}
                    _ => rewrite_references(value, root, renames),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite_references(item, root, renames)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
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
    fn shares_equal_schemas_and_tells_different_ones_apart() {
        let mut components = Components::default();
        let text = json!({ "type": "string" });
        assert_eq!(components.insert("Name", text.clone()), components.insert("Name", text));
        let other = components.insert("Name", json!({ "type": "integer" }));
        assert_eq!(other, json!({ "$ref": "#/components/schemas/Name_2" }));
        assert_eq!(components.into_schemas().len(), 2);
    }

    #[test]
    fn leaves_data_that_looks_like_a_reference_alone() {
        let mut components = Components::default();
        let schema = json!({ "properties": { "$ref": { "type": "string", "default": { "$ref": "#" } } } });
        components.insert("Odd", schema.clone());
        assert_eq!(components.into_schemas()["Odd"], schema);
    }
}
