//! The request of a client for one input of a route: the other direction of `input`. Pure.

use callboard_core::Task;
use serde_json::{Map, Value as Json, json};

use crate::input::{EXTRA, InputForm, main_fields};

/// The fields by which a client asks a route of this task for `input`, in the names of the API: `messages` of a chat,
/// `documents` of a ranking. `schema` is that of the route's input.
///
/// ```
/// use callboard_core::Task;
/// use callboard_openai::request_fields;
/// use serde_json::{Value, json};
///
/// let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
/// let fields = request_fields(Task::Embed, &schema, &json!({ "text": "hello" }));
/// assert_eq!(Value::from(fields), json!({ "input": "hello" }));
/// ```
#[must_use]
pub fn request_fields(task: Task, schema: &Json, input: &Json) -> Map<String, Json> {
    let api_main = main_fields(task)[0];
    let main = match InputForm::of(task, schema) {
        InputForm::Fields { main, .. } => Some(main),
        InputForm::Everything => Some(api_main),
        InputForm::Main => None,
    };
    let (Some(main), Json::Object(given)) = (main, input) else {
        return Map::from_iter([(api_main.to_owned(), input.clone())]);
    };
    let mut fields = Map::new();
    for (name, value) in given {
        match (name.as_str(), value) {
            (name, value) if name == main => _ = fields.insert(api_main.to_owned(), value.clone()),
            (EXTRA, Json::Object(extra)) => fields.extend(extra.clone()),
            ("document", value) if task == Task::Rerank => _ = fields.insert("documents".to_owned(), json!([value])),
            (name, value) => _ = fields.insert(name.to_owned(), value.clone()),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(task: Task, schema: Json, input: Json) -> Json {
        Json::Object(request_fields(task, &schema, &input))
    }

    #[test]
    fn an_input_is_asked_for_in_the_names_of_the_api() {
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let chat = json!({ "type": "object", "properties": { "messages": {}, "max_tokens": {}, "extra": {} } });
        let input = json!({ "messages": messages, "max_tokens": 3, "extra": { "mood": "good" } });
        let expected = json!({ "messages": messages, "max_tokens": 3, "mood": "good" });
        assert_eq!(fields(Task::Chat, chat, input), expected);
        let whole = json!({ "messages": messages, "temperature": 0.5 });
        assert_eq!(fields(Task::Chat, json!({}), whole.clone()), whole);
        let pair = json!({ "type": "object", "properties": { "query": {}, "document": {} } });
        let ranking = fields(Task::Rerank, pair, json!({ "query": "a", "document": "b" }));
        assert_eq!(ranking, json!({ "query": "a", "documents": ["b"] }));
    }

    #[test]
    fn an_input_without_fields_is_the_main_field() {
        assert_eq!(fields(Task::Embed, json!({ "type": "string" }), json!("a")), json!({ "input": "a" }));
        let messages = json!([{ "role": "user", "content": "hi" }]);
        assert_eq!(fields(Task::Chat, json!({ "type": "array" }), messages.clone()), json!({ "messages": messages }));
        let object = json!({ "type": "object", "properties": { "a": {} } });
        assert_eq!(fields(Task::Speak, object, json!({ "a": 1 })), json!({ "input": { "a": 1 } }));
    }
}
