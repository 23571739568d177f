//! What the schema of a form's field allows. Pure.

use serde_json::Value as Schema;

/// The most references that are followed from one schema; longer chains and cycles end there.
const MAX_REFERENCES: usize = 16;

/// The types that a schema allows, and the schema of its items.
pub(super) struct AllowedTypes<'a> {
    /// A file, which JSON has as base64, is none of them.
    pub(super) types: Vec<&'a str>,
    pub(super) has_file: bool,
    /// Whether one of the types is a text that may be empty.
    has_empty_text: bool,
    pub(super) items: Option<&'a Schema>,
}

impl<'a> AllowedTypes<'a> {
    pub(super) fn new(schema: &'a Schema, root: &'a Schema) -> Self {
        let mut allowed = Self { types: Vec::new(), has_file: false, has_empty_text: false, items: None };
        allowed.collect(schema, root, 0);
        allowed
    }

    fn collect(&mut self, schema: &'a Schema, root: &'a Schema, depth: usize) {
        if depth > MAX_REFERENCES {
            return;
        }
        let schema = target(schema, root);
        for choice in ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten() {
            self.collect(choice, root, depth + 1);
        }
        if schema.get("contentEncoding").is_some() {
            self.has_file = true;
            return;
        }
        let before = self.types.len();
        match schema.get("type") {
            Some(Schema::String(name)) => self.types.push(name),
            Some(Schema::Array(names)) => self.types.extend(names.iter().filter_map(Schema::as_str)),
            _ => {
                let listed = schema.get("enum").and_then(Schema::as_array);
                let constants = schema.get("const").into_iter().chain(listed.into_iter().flatten());
                for constant in constants {
                    self.types.push(type_of(constant));
                }
            }
        }
        self.has_empty_text |= self.types[before..].contains(&"string") && may_be_empty(schema);
        self.items = self.items.or_else(|| schema.get("items"));
    }

    /// Whether an empty text fits, alone or in a list.
    pub(super) fn takes_empty_text(&self, root: &Schema) -> bool {
        let in_list = || {
            let items = self.items.map(|items| AllowedTypes::new(items, root));
            items.is_none_or(|items| items.says_nothing() || items.has_file || items.has_empty_text)
        };
        self.says_nothing() || self.has_file || self.has_empty_text || self.has("array") && in_list()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.types.contains(&name)
    }

    pub(super) fn says_nothing(&self) -> bool {
        self.types.is_empty()
    }
}

/// The object that a form is, and its properties: the schema itself, or the only one of its choices that has any.
pub(super) fn object_of(root: &Schema) -> Option<(&Schema, &serde_json::Map<String, Schema>)> {
    let whole = target(root, root);
    let choices = ["anyOf", "oneOf"].into_iter().filter_map(|key| whole.get(key)?.as_array()).flatten();
    let all = std::iter::once(whole).chain(choices.map(|choice| target(choice, root)));
    let mut objects = all.filter_map(|object| Some((object, object.get("properties")?.as_object()?)));
    let found = objects.next()?;
    (std::ptr::eq(found.0, whole) || objects.next().is_none()).then_some(found)
}

/// The target of a schema's reference, or the schema itself.
pub(super) fn target<'a>(schema: &'a Schema, root: &'a Schema) -> &'a Schema {
    let mut found = schema;
    for _ in 0..MAX_REFERENCES {
        let reference = found.get("$ref").and_then(Schema::as_str);
        match reference.and_then(|reference| root.pointer(reference.trim_start_matches('#'))) {
            Some(next) => found = next,
            None => break,
        }
    }
    found
}

/// Whether a text of this schema may be empty.
fn may_be_empty(schema: &Schema) -> bool {
    let listed = schema.get("enum").and_then(Schema::as_array);
    listed.is_none_or(|texts| texts.iter().any(|text| text == ""))
        && schema.get("const").is_none_or(|text| text == "")
        && schema.get("format").is_none()
        && schema.get("minLength").and_then(Schema::as_u64).unwrap_or(0) == 0
}

fn type_of(constant: &Schema) -> &'static str {
    match constant {
        Schema::Null => "null",
        Schema::Bool(_) => "boolean",
        Schema::Number(_) => "number",
        Schema::String(_) => "string",
        Schema::Array(_) => "array",
        Schema::Object(_) => "object",
    }
}
