//! A request of the Messages API as the fields of a chat. Pure.
//!
//! The instructions of `system` become the first message, results of tools become messages of the role `tool`, and the
//! model's use of tools becomes `tool_calls`. Text blocks alone become one text, joined by line breaks, because that is
//! what most functions read. Thoughts of earlier answers are left out.

use callboard_codec::{Map, Value};
use callboard_http::protocol::ApiError;

use crate::error::invalid;
use crate::fields::{map, sent, word};

pub(super) fn to_chat(mut fields: Map) -> Result<Map, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = sent(&mut fields, "system") {
        messages.push(message("system", text_of("system", system)?));
    }
    match sent(&mut fields, "messages") {
        Some(Value::List(turns)) if !turns.is_empty() => {
            turns.into_iter().try_for_each(|turn| add_turn(&mut messages, turn))?;
        }
        Some(Value::List(_)) => return Err(invalid("`messages` must have one message or more")),
        Some(other) => return Err(invalid(format!("`messages` must be a list, not {}", other.kind()))),
        None => return Err(invalid("`messages` is required")),
    }
    if fields.get("max_tokens").and_then(Value::as_u64).is_none_or(|most| most == 0) {
        return Err(invalid("`max_tokens` is required: a whole number from 1"));
    }
    fields.insert("messages", messages);
    if let Some(stops) = sent(&mut fields, "stop_sequences") {
        fields.insert("stop", stops);
    }
    if let Some(tools) = sent(&mut fields, "tools") {
        let Value::List(tools) = tools else {
            return Err(invalid(format!("`tools` must be a list, not {}", tools.kind())));
        };
        fields.insert("tools", tools.into_iter().map(tool).collect::<Result<Vec<_>, _>>()?);
    }
    if let Some(choice) = sent(&mut fields, "tool_choice") {
        if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
            fields.insert("parallel_tool_calls", false);
        }
        fields.insert("tool_choice", tool_choice(&choice)?);
    }
    if let Some(user) = fields.get("metadata").and_then(|metadata| metadata.get("user_id")).cloned() {
        fields.insert("user", user);
    }
    // One answer, whatever the name of the other API says.
    fields.remove("n");
    Ok(fields)
}

fn message(role: &str, text: String) -> Value {
    map([("role", word(role)), ("content", Value::Str(text))])
}

/// The blocks of a content: a text is one block.
fn blocks(what: &str, content: Value) -> Result<Vec<Map>, ApiError> {
    let block = |block| match block {
        Value::Map(block) => Ok(block),
        other => Err(invalid(format!("a block of `{what}` must be an object, not {}", other.kind()))),
    };
    match content {
        Value::Str(_) => {
            let mut only = Map::new();
            only.insert("type", word("text"));
            only.insert("text", content);
            Ok(vec![only])
        }
        Value::List(list) => list.into_iter().map(block).collect(),
        other => Err(invalid(format!("`{what}` must be a text or a list of blocks, not {}", other.kind()))),
    }
}

fn kind_of(block: &Map) -> &str {
    match block.get("type") {
        Some(Value::Str(kind)) => kind,
        _ => "",
    }
}

/// The required text in this field of a block.
fn text_field(block: &mut Map, name: &str) -> Result<String, ApiError> {
    match block.remove(name) {
        Some(Value::Str(text)) => Ok(text),
        _ => Err(invalid(format!("a block `{}` needs a text `{name}`", kind_of(block)))),
    }
}

fn not_offered(what: &str, block: &Map) -> ApiError {
    let kind: String = kind_of(block).chars().take(64).collect();
    invalid(format!("blocks of type `{kind}` are not offered in {what}"))
}

/// The text of a content that may have text blocks only.
fn text_of(what: &str, content: Value) -> Result<String, ApiError> {
    let text = |mut block: Map| match kind_of(&block) {
        "text" => text_field(&mut block, "text"),
        _ => Err(not_offered(what, &block)),
    };
    Ok(blocks(what, content)?.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn add_turn(messages: &mut Vec<Value>, turn: Value) -> Result<(), ApiError> {
    let Value::Map(mut turn) = turn else {
        return Err(invalid(format!("a message must be an object, not {}", turn.kind())));
    };
    let Some(content) = sent(&mut turn, "content") else {
        return Err(invalid("a message needs `content`"));
    };
    match turn.get("role") {
        Some(Value::Str(role)) if role == "user" => add_user(messages, content),
        Some(Value::Str(role)) if role == "assistant" => add_assistant(messages, content),
        _ => Err(invalid("`role` of a message must be `user` or `assistant`; instructions go into `system`")),
    }
}

/// Results of tools come first, as the chat has them.
fn add_user(messages: &mut Vec<Value>, content: Value) -> Result<(), ApiError> {
    let (mut parts, mut has_pictures) = (Vec::new(), false);
    for mut block in blocks("content", content)? {
        match kind_of(&block) {
            "text" => parts.push(map([("type", word("text")), ("text", Value::Str(text_field(&mut block, "text")?))])),
            "image" => {
                has_pictures = true;
                let url = map([("url", Value::Str(picture(&mut block)?))]);
                parts.push(map([("type", word("image_url")), ("image_url", url)]));
            }
            "tool_result" => {
                let id = text_field(&mut block, "tool_use_id")?;
                let result = sent(&mut block, "content").map(|content| text_of("results of tools", content));
                let mut result = result.transpose()?.unwrap_or_default();
                // The chat has no other place for it.
                if block.get("is_error") == Some(&Value::Bool(true)) {
                    result.insert_str(0, "Error: ");
                }
                let (role, id) = (("role", word("tool")), ("tool_call_id", Value::Str(id)));
                messages.push(map([role, id, ("content", Value::Str(result))]));
            }
            _ => return Err(not_offered("messages of users", &block)),
        }
    }
    if has_pictures {
        messages.push(map([("role", word("user")), ("content", Value::List(parts))]));
    } else if !parts.is_empty() {
        let texts = parts.iter().filter_map(|part| match part.get("text") {
            Some(Value::Str(text)) => Some(text.as_str()),
            _ => None,
        });
        messages.push(message("user", texts.collect::<Vec<_>>().join("\n")));
    }
    Ok(())
}

/// The address of a picture; its bytes are an address, too.
fn picture(block: &mut Map) -> Result<String, ApiError> {
    let Some(Value::Map(mut source)) = block.remove("source") else {
        return Err(invalid("a block `image` needs an object `source`"));
    };
    match kind_of(&source) {
        "url" => text_field(&mut source, "url"),
        "base64" => {
            let media_type = text_field(&mut source, "media_type")?;
            Ok(format!("data:{media_type};base64,{}", text_field(&mut source, "data")?))
        }
        _ => Err(not_offered("pictures", &source)),
    }
}

fn add_assistant(messages: &mut Vec<Value>, content: Value) -> Result<(), ApiError> {
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    for mut block in blocks("content", content)? {
        match kind_of(&block) {
            "text" => texts.push(text_field(&mut block, "text")?),
            "tool_use" => {
                let (id, name) = (text_field(&mut block, "id")?, text_field(&mut block, "name")?);
                let arguments = block.remove("input").unwrap_or(Value::Map(Map::new()));
                let arguments = serde_json::to_string(&arguments)
                    .map_err(|error| invalid(format!("`input` of a tool cannot be written as JSON: {error}")))?;
                let function = map([("name", Value::Str(name)), ("arguments", Value::Str(arguments))]);
                calls.push(map([("id", Value::Str(id)), ("type", word("function")), ("function", function)]));
            }
            "thinking" | "redacted_thinking" => {}
            _ => return Err(not_offered("messages of the assistant", &block)),
        }
    }
    let mut said = Map::new();
    said.insert("role", word("assistant"));
    said.insert("content", texts.join("\n"));
    if !calls.is_empty() {
        said.insert("tool_calls", calls);
    }
    messages.push(Value::Map(said));
    Ok(())
}

fn tool(tool: Value) -> Result<Value, ApiError> {
    let Value::Map(mut tool) = tool else {
        return Err(invalid(format!("a tool must be an object, not {}", tool.kind())));
    };
    let Some(name @ Value::Str(_)) = tool.remove("name") else {
        return Err(invalid("a tool needs a text `name`"));
    };
    let description = tool.remove("description").unwrap_or_else(|| word(""));
    let Some(parameters) = sent(&mut tool, "input_schema") else {
        return Err(invalid("a tool needs `input_schema`: tools that the server itself runs are not offered"));
    };
    let function = map([("name", name), ("description", description), ("parameters", parameters)]);
    Ok(map([("type", word("function")), ("function", function)]))
}

fn tool_choice(choice: &Value) -> Result<Value, ApiError> {
    let kind = match choice.get("type") {
        Some(Value::Str(kind)) => kind.as_str(),
        _ => "",
    };
    match (kind, choice.get("name")) {
        ("auto" | "none", _) => Ok(word(kind)),
        ("any", _) => Ok(word("required")),
        ("tool", Some(name @ Value::Str(_))) => {
            Ok(map([("type", word("function")), ("function", map([("name", name.clone())]))]))
        }
        _ => Err(invalid("`tool_choice` must be of type `auto`, `any`, `none`, or `tool` with a `name`")),
    }
}
