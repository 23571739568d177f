//! The input of a route from the fields of a request, by the schema of the route. Pure.
//!
//! A route takes what its schema names: all messages, the messages and a temperature, or every field there is. A route
//! whose schema is not an object with the main field takes the value of the main field alone.

use callboard_codec::{Map, Value};
use callboard_core::Task;
use serde_json::Value as Json;

/// The field that gets what no other field of the schema takes.
pub(crate) const EXTRA: &str = "extra";

/// Fields that are the same to clients: an old name, and a new one.
const ALIASES: [[&str; 2]; 1] = [["max_tokens", "max_completion_tokens"]];

/// Fields that the protocol itself uses. A route gets them only if its schema names them.
const PROTOCOL_FIELDS: [&str; 8] =
    ["model", "stream", "stream_options", "stream_format", "n", "encoding_format", "return_documents", "top_n"];

/// The names of the main field: of the API first, then others that routes may use.
pub(crate) fn main_fields(task: Task) -> &'static [&'static str] {
    match task {
        Task::Chat => &["messages"],
        Task::Complete => &["prompt"],
        Task::Rerank => &["query"],
        Task::Embed | Task::Moderate | Task::Speak => &["input", "text"],
        Task::Transcribe => &["file", "audio"],
        Task::Image => &["prompt"],
    }
}

/// The form in which a route takes its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputForm<'s> {
    /// An object with these fields, of which the first is the main one. `open` routes take others, too.
    Fields { main: &'static str, named: Vec<&'s str>, open: bool },
    /// All fields of the request but those of the protocol: an object, or any value, is taken.
    Everything,
    /// The value of the main field.
    Main,
}

impl<'s> InputForm<'s> {
    pub(crate) fn of(task: Task, schema: &'s Json) -> Self {
        let schema = root(schema);
        let properties = schema.get("properties").and_then(Json::as_object);
        let main = main_fields(task).iter().find(|main| properties.is_some_and(|known| known.contains_key(**main)));
        if let (Some(properties), Some(main)) = (properties, main) {
            let named = properties.keys().map(String::as_str).collect();
            let open = schema.get("additionalProperties").is_some_and(|more| *more != Json::Bool(false));
            return Self::Fields { main, named, open };
        }
        let is_object = schema.get("type").and_then(Json::as_str) == Some("object") && properties.is_none();
        let is_any = schema.as_object().is_some_and(|schema| {
            !["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties"]
                .into_iter()
                .any(|word| schema.contains_key(word))
        });
        // A text is taken by any schema, so only conversations are passed with all their options.
        if is_object || (is_any && matches!(task, Task::Chat | Task::Rerank)) { Self::Everything } else { Self::Main }
    }

    /// Whether the route gets this field of a request.
    pub(crate) fn takes(&self, field: &str) -> bool {
        match self {
            Self::Fields { named, open, .. } => {
                let is_own = PROTOCOL_FIELDS.contains(&field);
                self.name_of(field).is_some() || !is_own && (*open || named.contains(&EXTRA))
            }
            Self::Everything => !PROTOCOL_FIELDS.contains(&field),
            Self::Main => false,
        }
    }

    /// The name that the route has for a field: its own, or the other one of two that are the same.
    fn name_of<'n>(&self, field: &'n str) -> Option<&'n str> {
        let Self::Fields { named, .. } = self else { return None };
        let same = ALIASES.iter().find(|same| same.contains(&field));
        let other = same.map(|[old, new]| if field == *old { *new } else { *old });
        [Some(field), other].into_iter().flatten().find(|name| named.contains(name))
    }

    /// The input with this value of the main field, and what the route takes of the other fields.
    pub(crate) fn input(&self, task: Task, value: Value, fields: &Map) -> Value {
        let is_main = |name: &str| main_fields(task).contains(&name);
        let given = fields.iter().filter(|(name, value)| !is_main(name) && !matches!(value, Value::Null));
        let given = given.filter(|(name, _)| self.takes(name));
        let mut input = Map::new();
        match self {
            Self::Main => return value,
            Self::Everything => {
                input.extend(given.map(|(name, value)| (name.to_owned(), value.clone())));
                input.insert(main_fields(task)[0], value);
            }
            Self::Fields { main, open, .. } => {
                input.insert(*main, value);
                let mut extra = Map::new();
                for (name, value) in given {
                    match self.name_of(name) {
                        Some(known) => _ = input.insert(known, value.clone()),
                        None if *open => _ = input.insert(name, value.clone()),
                        None => _ = extra.insert(name, value.clone()),
                    }
                }
                if !extra.is_empty() {
                    input.insert(EXTRA, extra);
                }
            }
        }
        Value::Map(input)
    }
}

/// The schema that a schema of only a reference means.
fn root(schema: &Json) -> &Json {
    let named = schema.get("$ref").and_then(Json::as_str).and_then(|to| schema.pointer(to.strip_prefix('#')?));
    named.unwrap_or(schema)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(json: Json) -> Value {
        Value::from_serialize(&json).unwrap()
    }

    fn fields(json: Json) -> Map {
        match value(json) {
            Value::Map(map) => map,
            _ => unreachable!(),
        }
    }

    fn chat(schema: Json) -> Json {
        let asked = fields(json!({
            "model": "m", "messages": [1], "stream": true, "temperature": 0.5, "max_completion_tokens": 7, "stop": null,
            "mood": "good",
        }));
        let input = InputForm::of(Task::Chat, &schema).input(Task::Chat, value(json!([1])), &asked);
        serde_json::to_value(input).unwrap()
    }

    #[test]
    fn a_route_gets_what_its_schema_names() {
        let properties = json!({ "messages": {}, "max_tokens": {}, "temperature": {} });
        let closed = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        assert_eq!(chat(closed), json!({ "messages": [1], "temperature": 0.5, "max_tokens": 7 }));
        let open = json!({ "properties": { "messages": {} }, "additionalProperties": true });
        let all = json!({ "messages": [1], "temperature": 0.5, "max_completion_tokens": 7, "mood": "good" });
        assert_eq!(chat(open), all);
        let extra =
            json!({ "properties": { "messages": {}, "extra": {}, "model": {} }, "additionalProperties": false });
        let rest = json!({ "temperature": 0.5, "max_completion_tokens": 7, "mood": "good" });
        assert_eq!(chat(extra), json!({ "messages": [1], "model": "m", "extra": rest }));
        let speech = json!({ "properties": { "input": {}, "extra": {} }, "additionalProperties": false });
        let form = InputForm::of(Task::Speak, &speech);
        assert_eq!(["speed", "stream_format"].map(|name| form.takes(name)), [true, false]);
    }

    #[test]
    fn a_route_without_the_main_field_gets_its_value() {
        assert_eq!(chat(json!({ "type": "array" })), json!([1]));
        let list = json!({ "$ref": "#/$defs/Messages", "$defs": { "Messages": { "type": "array" } } });
        assert_eq!(chat(list), json!([1]));
        let everything = chat(json!({}));
        let all = json!({ "temperature": 0.5, "max_completion_tokens": 7, "mood": "good", "messages": [1] });
        assert_eq!(everything, all);
    }

    #[test]
    fn an_item_is_called_as_the_route_calls_it() {
        let asked = fields(json!({ "model": "m", "input": ["a", "b"], "text": "other", "dimensions": 3 }));
        for (schema, expected) in [
            (json!({ "type": "string" }), json!("a")),
            (json!({}), json!("a")),
            (json!({ "properties": { "text": {}, "dimensions": {} } }), json!({ "text": "a", "dimensions": 3 })),
            (json!({ "properties": { "input": {} }, "additionalProperties": false }), json!({ "input": "a" })),
        ] {
            let form = InputForm::of(Task::Embed, &schema);
            let input = form.input(Task::Embed, value(json!("a")), &asked);
            assert_eq!(serde_json::to_value(input).unwrap(), expected, "{schema}");
        }
    }
}
