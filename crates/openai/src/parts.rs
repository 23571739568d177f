//! The uses of tools in an answer, and their order in a stream. Pure.
//!
//! Pieces of several calls may alternate, but the blocks of a message, and the items of a response, follow each other.
//! So one call is sent as it comes; the pieces of the others, and text between, wait until the end.

use std::borrow::Cow;

use callboard_codec::Value;
use callboard_http::protocol::ApiError;
use serde_json::{Value as Json, json};

use crate::error::bad_answer;
use crate::reply::Reply;
use crate::respond::{self, written};

/// What a reply says of a call of a tool: its number, and what is known of it.
pub(crate) struct ToolUse<'a> {
    index: i64,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) arguments: Arguments<'a>,
}

/// The arguments of a tool: JSON, also in pieces, or what it is the JSON of.
pub(crate) enum Arguments<'a> {
    Text(&'a str),
    Value(&'a Value),
}

impl Arguments<'_> {
    pub(crate) fn text(&self) -> Result<Cow<'_, str>, ApiError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Value(value) => {
                String::from_utf8(written(value)?).map(Cow::Owned).map_err(|error| respond::unwritten(&error))
            }
        }
    }

    /// The object that a client gets. None are an empty one.
    pub(crate) fn object(&self, route: &str) -> Result<Json, ApiError> {
        let text = self.text()?;
        if text.trim().is_empty() {
            return Ok(json!({}));
        }
        let read: Option<Json> = serde_json::from_str(&text).ok();
        read.filter(Json::is_object)
            .ok_or_else(|| bad_answer(route, "arguments of a tool that are no JSON object", "an object, or its JSON"))
    }
}

pub(crate) fn tool_uses(reply: &Reply) -> impl Iterator<Item = ToolUse<'_>> {
    let calls = match reply.more.get("tool_calls") {
        Some(Value::List(calls)) => calls.as_slice(),
        _ => &[],
    };
    fn text(value: Option<&Value>) -> &str {
        match value {
            Some(Value::Str(text)) => text,
            _ => "",
        }
    }
    calls.iter().map(|call| {
        let function = call.get("function");
        let of_function = |name| text(function.and_then(|function| function.get(name)));
        let index = call.get("index").and_then(Value::as_i64).unwrap_or_default();
        let arguments = match function.and_then(|function| function.get("arguments")) {
            Some(Value::Str(text)) => Arguments::Text(text),
            Some(Value::Null) | None => Arguments::Text(""),
            Some(value) => Arguments::Value(value),
        };
        ToolUse { index, id: text(call.get("id")), name: of_function("name"), arguments }
    })
}

/// A part of a message, in the order of its blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    /// A call begins.
    Call {
        id: String,
        name: String,
    },
    /// More of the arguments of the call that has begun last.
    Arguments(String),
}

impl Part {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Text(text) | Self::Arguments(text) => text.len(),
            Self::Call { id, name } => id.len() + name.len(),
        }
    }
}

/// A call that waits until another one is complete.
#[derive(Debug, Default)]
struct WaitingCall {
    index: i64,
    id: String,
    name: String,
    arguments: String,
}

/// Puts the pieces of an answer into the order of its blocks.
#[derive(Debug, Default)]
pub(crate) struct OneCallAtATime {
    ready: Vec<Part>,
    /// The call that is sent as it comes.
    sent: Option<i64>,
    /// Text after its beginning.
    text: String,
    waiting: Vec<WaitingCall>,
}

impl OneCallAtATime {
    /// Adds a piece.
    pub(crate) fn add(&mut self, reply: &Reply) -> Result<(), ApiError> {
        if !reply.content.is_empty() {
            match self.sent {
                None => self.ready.push(Part::Text(reply.content.clone())),
                Some(_) => self.text.push_str(&reply.content),
            }
        }
        for call in tool_uses(reply) {
            let arguments = call.arguments.text()?;
            if self.sent.is_none() {
                self.sent = Some(call.index);
                self.ready.push(Part::Call { id: call.id.to_owned(), name: call.name.to_owned() });
            }
            if self.sent == Some(call.index) {
                if !arguments.is_empty() {
                    self.ready.push(Part::Arguments(arguments.into_owned()));
                }
                continue;
            }
            let waiting = match self.waiting.iter().position(|waiting| waiting.index == call.index) {
                Some(at) => &mut self.waiting[at],
                None => self.waiting.push_mut(WaitingCall { index: call.index, ..WaitingCall::default() }),
            };
            // A route may repeat them with each piece.
            for (known, said) in [(&mut waiting.id, call.id), (&mut waiting.name, call.name)] {
                if known.is_empty() {
                    said.clone_into(known);
                }
            }
            waiting.arguments.push_str(&arguments);
        }
        Ok(())
    }

    /// What can be sent: at the end, all.
    pub(crate) fn take(&mut self, is_end: bool) -> Vec<Part> {
        let mut parts = std::mem::take(&mut self.ready);
        if is_end {
            if !self.text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut self.text)));
            }
            for WaitingCall { id, name, arguments, .. } in self.waiting.drain(..) {
                parts.push(Part::Call { id, name });
                if !arguments.is_empty() {
                    parts.push(Part::Arguments(arguments));
                }
            }
        }
        parts
    }

    /// The bytes of what waits.
    pub(crate) fn held_bytes(&self) -> usize {
        let of = |call: &WaitingCall| size_of::<WaitingCall>() + call.id.len() + call.name.len() + call.arguments.len();
        self.text.len() + self.waiting.iter().map(of).sum::<usize>()
    }

    /// Whether there was a call.
    pub(crate) fn has_begun(&self) -> bool {
        self.sent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_waits_has_its_id_and_name_once() {
        let piece = |index: i64, id: &str, arguments: &str| {
            let function = json!({ "name": "f", "arguments": arguments });
            let call = json!({ "index": index, "id": id, "function": function });
            Reply::read("/x", Value::from_serialize(&json!({ "tool_calls": [call] })).unwrap()).unwrap()
        };
        let mut calls = OneCallAtATime::default();
        for (index, id, arguments) in [(0, "a", "{"), (1, "b", "{"), (1, "b", "}"), (0, "a", "}")] {
            calls.add(&piece(index, id, arguments)).unwrap();
        }
        let call = |id: &str| Part::Call { id: id.to_owned(), name: "f".to_owned() };
        let arguments = |text: &str| Part::Arguments(text.to_owned());
        let expected = [call("a"), arguments("{"), arguments("}"), call("b"), arguments("{}")];
        assert_eq!(calls.take(true), expected);
    }
}
