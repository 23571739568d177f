//! A request of the Responses API as the fields of a chat. Pure.
//!
//! `instructions` become the first message, items of `input` become messages, calls of functions become `tool_calls` of
//! the message before them, and their outputs become messages of the role `tool`. Parts of text alone become one text.
//! Thoughts of earlier answers are left out. What would need a kept response is refused: nothing is kept.

use callboard_codec::{Map, Value};
use callboard_http::protocol::ApiError;

use crate::error::invalid;
use crate::fields::{map, sent, word};

pub(super) fn to_chat(mut fields: Map) -> Result<Map, ApiError> {
    for (name, remedy) in [
        ("previous_response_id", "send the earlier items in `input`"),
        ("conversation", "send the earlier items in `input`"),
        ("prompt", "send `instructions` and `input`"),
    ] {
        if sent(&mut fields, name).is_some() {
            return Err(invalid(format!("`{name}` is not offered, because nothing is kept: {remedy}")));
        }
    }
    if fields.get("background") == Some(&Value::Bool(true)) {
        return Err(invalid("`background` is not offered: ask with `stream` for an answer that takes long"));
    }
    let mut messages = Vec::new();
    match sent(&mut fields, "instructions") {
        None => {}
        Some(text @ Value::Str(_)) => messages.push(message("system", text)),
        Some(other) => return Err(invalid(format!("`instructions` must be a text, not {}", other.kind()))),
    }
    match sent(&mut fields, "input") {
        Some(text @ Value::Str(_)) => messages.push(message("user", text)),
        Some(Value::List(items)) if !items.is_empty() => {
            items.into_iter().try_for_each(|item| add_item(&mut messages, item))?;
        }
        Some(Value::List(_)) => return Err(invalid("`input` must have one item or more")),
        Some(other) => return Err(invalid(format!("`input` must be a text or a list of items, not {}", other.kind()))),
        None => return Err(invalid("`input` is required")),
    }
    fields.insert("messages", messages);
    rename(&mut fields, "max_output_tokens", "max_completion_tokens");
    if let Some(tools) = sent(&mut fields, "tools") {
        let Value::List(tools) = tools else {
            return Err(invalid(format!("`tools` must be a list, not {}", tools.kind())));
        };
        fields.insert("tools", tools.into_iter().map(tool).collect::<Result<Vec<_>, _>>()?);
    }
    if let Some(choice) = sent(&mut fields, "tool_choice") {
        fields.insert("tool_choice", tool_choice(choice)?);
    }
    if let Some(Value::Map(mut text)) = sent(&mut fields, "text")
        && let Some(Value::Map(format)) = text.remove("format")
    {
        fields.insert("response_format", response_format(format));
    }
    if let Some(Value::Map(mut reasoning)) = sent(&mut fields, "reasoning")
        && let Some(effort) = sent(&mut reasoning, "effort")
    {
        fields.insert("reasoning_effort", effort);
    }
    // Of this API alone, or of others of the same name.
    for name in ["n", "store", "background", "include"] {
        fields.remove(name);
    }
    Ok(fields)
}

fn rename(fields: &mut Map, from: &str, to: &str) {
    if let Some(value) = sent(fields, from) {
        fields.insert(to, value);
    }
}

fn message(role: &str, content: Value) -> Value {
    map([("role", word(role)), ("content", content)])
}

fn text_of<'m>(map: &'m Map, name: &str) -> &'m str {
    match map.get(name) {
        Some(Value::Str(text)) => text,
        _ => "",
    }
}

/// A client's word, shortened.
fn shown(word: &str) -> String {
    word.chars().take(64).collect()
}

fn add_item(messages: &mut Vec<Value>, item: Value) -> Result<(), ApiError> {
    let Value::Map(mut item) = item else {
        return Err(invalid(format!("an item of `input` must be an object, not {}", item.kind())));
    };
    match text_of(&item, "type") {
        "" | "message" => {
            let role = text_of(&item, "role").to_owned();
            if !["user", "assistant", "system", "developer"].contains(&role.as_str()) {
                return Err(invalid("`role` of a message must be `user`, `assistant`, `system` or `developer`"));
            }
            let content = sent(&mut item, "content").ok_or_else(|| invalid("a message needs `content`"))?;
            messages.push(message(&role, content_of(content)?));
        }
        "function_call" => {
            let [id, name, arguments] = ["call_id", "name", "arguments"].map(|name| item.remove(name));
            let (Some(id @ Value::Str(_)), Some(name @ Value::Str(_))) = (id, name) else {
                return Err(invalid("an item `function_call` needs the texts `call_id` and `name`"));
            };
            let arguments = match arguments {
                None | Some(Value::Null) => word("{}"),
                Some(text @ Value::Str(_)) => text,
                Some(other) => {
                    return Err(invalid(format!("`arguments` must be a text with JSON, not {}", other.kind())));
                }
            };
            let function = map([("name", name), ("arguments", arguments)]);
            add_call(messages, map([("id", id), ("type", word("function")), ("function", function)]));
        }
        "function_call_output" => {
            let Some(id @ Value::Str(_)) = item.remove("call_id") else {
                return Err(invalid("an item `function_call_output` needs a text `call_id`"));
            };
            let output = sent(&mut item, "output")
                .ok_or_else(|| invalid("an item `function_call_output` needs `output`: a text or a list of parts"))?;
            messages.push(map([("role", word("tool")), ("tool_call_id", id), ("content", content_of(output)?)]));
        }
        "reasoning" => {}
        "item_reference" => {
            return Err(invalid(
                "items of type `item_reference` are not offered, because nothing is kept: send the item",
            ));
        }
        other => return Err(invalid(format!("items of type `{}` are not offered", shown(other)))),
    }
    Ok(())
}

/// Adds a call to the message of the assistant that it follows, or to a new one.
fn add_call(messages: &mut Vec<Value>, call: Value) {
    let said = match messages.last_mut() {
        Some(Value::Map(last)) if text_of(last, "role") == "assistant" => last,
        _ => {
            let said = message("assistant", word(""));
            match messages.push_mut(said) {
                Value::Map(said) => said,
                // It was made a map above.
                _ => return,
            }
        }
    };
    match said.get_mut("tool_calls") {
        Some(Value::List(calls)) => calls.push(call),
        _ => _ = said.insert("tool_calls", vec![call]),
    }
}

/// The content of a message: one text, if it has texts alone.
fn content_of(content: Value) -> Result<Value, ApiError> {
    let parts = match content {
        text @ Value::Str(_) => return Ok(text),
        Value::List(parts) => parts,
        other => return Err(invalid(format!("content must be a text or a list of parts, not {}", other.kind()))),
    };
    let (mut read, mut is_text) = (Vec::new(), true);
    for part in parts {
        let Value::Map(mut part) = part else {
            return Err(invalid(format!("a part of a content must be an object, not {}", part.kind())));
        };
        let text = |part: &mut Map, name: &str| match part.remove(name) {
            Some(text @ Value::Str(_)) => Ok(text),
            _ => Err(invalid(format!("a part needs a text `{name}`"))),
        };
        read.push(match text_of(&part, "type") {
            "input_text" | "output_text" | "text" => map([("type", word("text")), ("text", text(&mut part, "text")?)]),
            "refusal" => map([("type", word("text")), ("text", text(&mut part, "refusal")?)]),
            "input_image" => {
                is_text = false;
                let mut image = Map::new();
                image.insert("url", text(&mut part, "image_url")?);
                if let Some(detail) = sent(&mut part, "detail") {
                    image.insert("detail", detail);
                }
                map([("type", word("image_url")), ("image_url", Value::Map(image))])
            }
            "input_audio" => {
                is_text = false;
                Value::Map(part)
            }
            other => return Err(invalid(format!("parts of type `{}` are not offered", shown(other)))),
        });
    }
    if !is_text {
        return Ok(Value::List(read));
    }
    let texts = read.iter().filter_map(|part| match part.get("text") {
        Some(Value::Str(text)) => Some(text.as_str()),
        _ => None,
    });
    Ok(Value::Str(texts.collect::<Vec<_>>().join("\n")))
}

fn tool(tool: Value) -> Result<Value, ApiError> {
    let Value::Map(mut tool) = tool else {
        return Err(invalid(format!("a tool must be an object, not {}", tool.kind())));
    };
    if text_of(&tool, "type") != "function" || text_of(&tool, "name").is_empty() {
        return Err(invalid(
            "a tool needs the type `function` and a `name`: tools that the server runs are not offered",
        ));
    }
    tool.remove("type");
    let known = ["name", "description", "parameters", "strict"];
    let function = tool.into_iter().filter(|(name, value)| known.contains(&&**name) && !matches!(value, Value::Null));
    Ok(map([("type", word("function")), ("function", Value::Map(function.collect()))]))
}

fn tool_choice(choice: Value) -> Result<Value, ApiError> {
    let refused = || invalid("`tool_choice` must be `auto`, `none`, `required`, or of type `function` with a `name`");
    match choice {
        Value::Str(word) if ["auto", "none", "required"].contains(&word.as_str()) => Ok(Value::Str(word)),
        Value::Map(mut choice) if text_of(&choice, "type") == "function" => match choice.remove("name") {
            Some(name @ Value::Str(_)) => Ok(map([("type", word("function")), ("function", map([("name", name)]))])),
            _ => Err(refused()),
        },
        _ => Err(refused()),
    }
}

/// The form of the text, as chat has it: a schema lies one level deeper there.
fn response_format(mut format: Map) -> Value {
    if text_of(&format, "type") != "json_schema" {
        return Value::Map(format);
    }
    format.remove("type");
    map([("type", word("json_schema")), ("json_schema", Value::Map(format))])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    use super::*;

    fn chat(request: Json) -> Result<Json, String> {
        let Value::Map(fields) = Value::from_serialize(&request).unwrap() else { panic!("an object") };
        let chat = to_chat(fields).map_err(|error| error.message().to_owned())?;
        Ok(serde_json::to_value(chat).unwrap())
    }

    #[test]
    fn items_become_messages() {
        let input = json!([
            { "role": "user",
              "content": [{ "type": "input_text", "text": "a" }, { "type": "input_text", "text": "b" }] },
            { "type": "reasoning", "id": "rs", "summary": [] },
            { "type": "message", "role": "assistant", "id": "msg", "status": "completed",
              "content": [{ "type": "output_text", "text": "c", "annotations": [] }] },
            { "type": "function_call", "call_id": "x", "name": "f", "arguments": "{\"a\":1}" },
            { "type": "function_call", "call_id": "y", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "x", "output": "1" },
            { "role": "user", "content": [{ "type": "input_text", "text": "see" },
                { "type": "input_image", "image_url": "data:,", "detail": "low" }] },
        ]);
        let read = chat(json!({ "model": "m", "instructions": "be kind", "input": input, "store": true })).unwrap();
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let calls = json!([call("x", "f", "{\"a\":1}"), call("y", "g", "{}")]);
        let expected = json!([
            { "role": "system", "content": "be kind" },
            { "role": "user", "content": "a\nb" },
            { "role": "assistant", "content": "c", "tool_calls": calls },
            { "role": "tool", "tool_call_id": "x", "content": "1" },
            { "role": "user", "content": [{ "type": "text", "text": "see" },
                { "type": "image_url", "image_url": { "url": "data:,", "detail": "low" } }] },
        ]);
        assert_eq!(read, json!({ "model": "m", "messages": expected }));
    }

    #[test]
    fn options_have_the_names_of_chat() {
        let read = chat(json!({
            "model": "m", "input": "hi", "max_output_tokens": 7, "temperature": 0.5, "mood": "good",
            "tools": [{ "type": "function", "name": "f", "parameters": {}, "strict": true, "description": null }],
            "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": { "type": "json_schema", "name": "n", "schema": {} } },
            "reasoning": { "effort": "low", "summary": "auto" },
        }));
        let expected = json!({
            "model": "m", "messages": [{ "role": "user", "content": "hi" }], "max_completion_tokens": 7,
            "temperature": 0.5, "mood": "good",
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": {}, "strict": true } }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": {} } },
            "reasoning_effort": "low",
        });
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn what_is_not_offered_is_refused_with_a_remedy() {
        for (more, part) in [
            (json!({ "previous_response_id": "resp_1" }), "send the earlier items"),
            (
                json!({ "input": [{ "type": "function_call", "call_id": "x", "name": "f", "arguments": {} }] }),
                "`arguments` must be a text with JSON, not map",
            ),
            (json!({ "background": true }), "`stream`"),
            (json!({ "input": [] }), "one item"),
            (json!({ "input": null }), "required"),
            (json!({ "input": [{ "type": "item_reference", "id": "a" }] }), "send the item"),
            (json!({ "input": [{ "type": "computer_call" }] }), "`computer_call` are not offered"),
            (json!({ "input": [{ "role": "robot", "content": "" }] }), "`role`"),
            (json!({ "tools": [{ "type": "web_search" }] }), "not offered"),
            (json!({ "tool_choice": "any" }), "`tool_choice`"),
        ] {
            let mut request = json!({ "model": "m", "input": "hi" });
            for (name, value) in more.as_object().unwrap() {
                request[name] = value.clone();
            }
            assert!(chat(request).unwrap_err().contains(part), "{more}");
        }
        assert!(chat(json!({ "model": "m", "input": "hi", "previous_response_id": null })).is_ok());
    }

    fn part() -> impl Strategy<Value = Json> {
        let word = prop_oneof![
            Just("input_text"),
            Just("output_text"),
            Just("refusal"),
            Just("input_image"),
            Just("input_audio"),
            Just("x")
        ];
        (word, any::<bool>()).prop_map(|(kind, is_whole)| {
            let whole = json!({ "type": kind, "text": "t", "refusal": "r", "image_url": "u" });
            if is_whole { whole } else { json!({ "type": kind }) }
        })
    }

    fn item() -> impl Strategy<Value = Json> {
        let kind = prop_oneof![
            Just(json!(null)),
            Just(json!("message")),
            Just(json!("function_call")),
            Just(json!("function_call_output")),
            Just(json!("reasoning")),
            Just(json!("other"))
        ];
        let role = prop_oneof![Just("user"), Just("assistant"), Just("system"), Just("robot")];
        let content =
            prop_oneof![Just(json!("c")), Just(json!(7)), prop::collection::vec(part(), 0..3).prop_map(Json::from)];
        (kind, role, content).prop_map(|(kind, role, content)| {
            json!({ "type": kind, "role": role, "content": content, "call_id": "i", "name": "n", "output": content })
        })
    }

    proptest! {
        #[test]
        fn any_items_are_messages_with_a_role_and_a_content_or_refused(items in prop::collection::vec(item(), 0..6)) {
            if let Ok(chat) = chat(json!({ "model": "m", "input": items })) {
                for message in chat["messages"].as_array().unwrap() {
                    prop_assert!(["user", "assistant", "system", "tool"].contains(&message["role"].as_str().unwrap()));
                    prop_assert!(message["content"].is_string() || message["content"].is_array(), "{}", message);
                }
            }
        }
    }
}
