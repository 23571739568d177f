//! What a route that writes text has answered: a text, or an object with more. Pure.

use std::collections::BTreeSet;

use callboard_codec::{Map, Value};
use callboard_http::protocol::ApiError;

use crate::error::bad_answer;

/// One answer, or one piece of a streamed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    /// The text.
    pub(crate) content: String,
    /// Why the text ends, if the route said so.
    pub(crate) finish_reason: Option<String>,
    /// The tokens, if the route counted them.
    pub(crate) usage: Usage,
    pub(crate) logprobs: Option<Value>,
    /// The other fields of the message, such as `tool_calls`.
    pub(crate) more: Map,
}

/// Counted tokens; `None` if nobody counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) completion_tokens: Option<u64>,
}

/// The fields that hold the text.
const TEXT: [&str; 2] = ["content", "text"];

const TOOL_CALLS: &str = "tool_calls";

impl Reply {
    pub(crate) fn of_text(content: String) -> Self {
        Self { content, ..Self::default() }
    }

    pub(crate) fn read(route: &str, answer: Value) -> Result<Self, ApiError> {
        let expected = "a text or an object with a text `content`";
        let mut map = match answer {
            Value::Null => return Ok(Self::default()),
            Value::Str(content) => return Ok(Self::of_text(content)),
            Value::Map(map) => map,
            other => return Err(bad_answer(route, other.kind(), expected)),
        };
        let mut reply = Self::default();
        for name in TEXT {
            match map.remove(name) {
                Some(Value::Str(content)) => reply.content = content,
                None | Some(Value::Null) => {}
                Some(other) => return Err(bad_answer(route, &format!("`{name}`: {}", other.kind()), expected)),
            }
        }
        if let Some(Value::Str(reason)) = map.remove("finish_reason") {
            reply.finish_reason = Some(reason);
        }
        if let Some(usage) = map.remove("usage") {
            let count = |name| usage.get(name).and_then(Value::as_u64);
            reply.usage =
                Usage { prompt_tokens: count("prompt_tokens"), completion_tokens: count("completion_tokens") };
        }
        reply.logprobs = map.remove("logprobs").filter(|logprobs| !matches!(logprobs, Value::Null));
        map.remove("role");
        reply.more = map.into_iter().filter(|(_, value)| !matches!(value, Value::Null)).collect();
        Ok(reply)
    }

    /// Adds a further piece of the same answer.
    pub(crate) fn join(&mut self, piece: Self) {
        let Self { content, finish_reason, usage, logprobs, more } = piece;
        self.content.push_str(&content);
        self.finish_reason = finish_reason.or_else(|| self.finish_reason.take());
        self.usage = usage.or(self.usage);
        join_logprobs(&mut self.logprobs, logprobs);
        for (name, value) in more {
            match (self.more.get_mut(&name), value) {
                (Some(Value::List(calls)), Value::List(pieces)) if name == TOOL_CALLS => join_calls(calls, pieces),
                (Some(Value::Str(text)), Value::Str(piece)) => text.push_str(&piece),
                (_, value) => _ = self.more.insert(name, value),
            }
        }
    }

    /// Gives each piece of a tool call its `index`, by which clients join them: a piece with an `id`, or with the name
    /// of a function, begins the next call; one without continues the last. A `whole` answer has no pieces: each is a
    /// call, whatever its own `index`. `begun` has the indexes of the answer until now. A call that begins without an
    /// `id` gets one that begins with `prefix`: a client answers by it.
    pub(crate) fn number_tool_calls(&mut self, begun: &mut BTreeSet<i64>, is_whole: bool, prefix: &str) {
        let Some(Value::List(calls)) = self.more.get_mut(TOOL_CALLS) else { return };
        for call in calls {
            let Value::Map(call) = call else { continue };
            // Typed replies have all their fields.
            remove_unset(call, "id");
            let mut has_name = false;
            if let Some(Value::Map(function)) = call.get_mut("function") {
                remove_unset(function, "name");
                has_name = function.contains_key("name");
            }
            let has_id = matches!(call.get("id"), Some(Value::Str(_)));
            let own = call.get("index").and_then(Value::as_i64).filter(|_| !is_whole);
            let is_new = is_whole || has_name || has_id;
            let next = begun.last().map_or(0, |last| if is_new { last.saturating_add(1) } else { *last });
            let index = own.unwrap_or(next);
            if begun.insert(index) && !has_id {
                call.insert("id", format!("{prefix}{index}"));
            }
            call.insert("index", index);
        }
    }

    /// The memory of its text and of all else.
    pub(crate) fn bytes(&self) -> usize {
        let more = self.more.values().chain(&self.logprobs).map(Value::resident_bytes);
        more.fold(self.content.len(), usize::saturating_add)
    }

    pub(crate) fn has_tool_calls(&self) -> bool {
        matches!(self.more.get(TOOL_CALLS), Some(Value::List(calls)) if !calls.is_empty())
    }

    /// Whether nothing is to be sent beside its text.
    pub(crate) fn is_only_text(&self) -> bool {
        self.more.is_empty() && self.logprobs.is_none()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.is_only_text()
    }
}

impl Usage {
    /// The newer count of each.
    pub(crate) fn or(self, older: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(older.prompt_tokens),
            completion_tokens: self.completion_tokens.or(older.completion_tokens),
        }
    }

    /// The tokens of several answers to one prompt.
    pub(crate) fn with(self, other: Self) -> Self {
        let sum = |first: Option<u64>, second: Option<u64>| match (first, second) {
            (Some(first), Some(second)) => Some(first.saturating_add(second)),
            (first, second) => first.or(second),
        };
        Self {
            prompt_tokens: sum(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: sum(self.completion_tokens, other.completion_tokens),
        }
    }

    pub(crate) fn is_known(self) -> bool {
        self != Self::default()
    }
}

/// Joins what is known of the tokens of pieces: each list goes on.
fn join_logprobs(whole: &mut Option<Value>, piece: Option<Value>) {
    match (whole, piece) {
        (Some(Value::Map(whole)), Some(Value::Map(piece))) => {
            for (name, more) in piece {
                match (whole.get_mut(&name), more) {
                    (Some(Value::List(tokens)), Value::List(more)) => tokens.extend(more),
                    (Some(_), Value::Null) => {}
                    (_, more) => _ = whole.insert(name, more),
                }
            }
        }
        (whole, Some(piece)) => *whole = Some(piece),
        (_, None) => {}
    }
}

/// Joins pieces of tool calls with those of the same index: the text of arguments is continued.
fn join_calls(calls: &mut Vec<Value>, pieces: Vec<Value>) {
    for piece in pieces {
        let index = piece.get("index").cloned();
        let known = calls.iter_mut().find(|call| call.get("index") == index.as_ref());
        match (known, piece) {
            (Some(Value::Map(call)), Value::Map(piece)) => join_maps(call, piece, 0),
            (_, piece) => calls.push(piece),
        }
    }
}

/// Removes what is null, and this text if it is empty.
fn remove_unset(map: &mut Map, text: &str) {
    let is_unset = |(name, value): (&str, &Value)| match value {
        Value::Null => true,
        Value::Str(value) => name == text && value.is_empty(),
        _ => false,
    };
    let unset: Vec<String> = map.iter().filter(|field| is_unset(*field)).map(|(name, _)| name.to_owned()).collect();
    unset.iter().for_each(|name| _ = map.remove(name));
}

/// `function.arguments` is two maps deep; deeper pieces replace each other.
fn join_maps(whole: &mut Map, piece: Map, depth: u8) {
    for (name, value) in piece {
        match (whole.get_mut(&name), value) {
            (Some(Value::Str(text)), Value::Str(more)) if name == "arguments" => text.push_str(&more),
            (Some(Value::Map(whole)), Value::Map(more)) if depth < 2 => join_maps(whole, more, depth + 1),
            (_, value) => _ = whole.insert(name, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(answer: Json) -> Reply {
        Reply::read("/x", Value::from_serialize(&answer).unwrap()).unwrap()
    }

    #[test]
    fn a_text_is_an_answer_and_so_is_an_object() {
        assert_eq!(read(json!("hi")).content, "hi");
        assert_eq!(read(json!(null)), Reply::default());
        let usage = Usage { prompt_tokens: Some(3), completion_tokens: None };
        let reply =
            read(json!({ "text": "hi", "finish_reason": "length", "usage": { "prompt_tokens": 3 }, "a": null }));
        let expected =
            Reply { content: "hi".to_owned(), finish_reason: Some("length".to_owned()), usage, ..Reply::default() };
        assert_eq!(reply, expected);
        for answer in [json!(3), json!(["hi"]), json!({ "content": 3 })] {
            let error = Reply::read("/x", Value::from_serialize(&answer).unwrap()).unwrap_err();
            assert!(error.message().starts_with("route `/x` answered "), "{}", error.message());
        }
    }

    #[test]
    fn pieces_of_tool_calls_join_to_the_whole_calls() {
        let pieces = [
            json!({ "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": "{\"x\"" } }] }),
            json!({ "content": "t", "tool_calls": [{ "function": { "arguments": ":1}" } }] }),
            json!({ "tool_calls": [{ "id": "b", "function": { "arguments": "{" } }] }),
            json!({ "tool_calls": [{ "function": { "arguments": "}" } }, { "id": "c" }] }),
            json!({ "tool_calls": [
                { "id": "", "index": 0, "type": null, "function": { "name": "", "arguments": " " } },
            ] }),
        ];
        let (mut whole, mut begun) = (Reply::default(), BTreeSet::new());
        for piece in pieces {
            let mut piece = read(piece);
            piece.number_tool_calls(&mut begun, false, "x_");
            whole.join(piece);
        }
        let calls = serde_json::to_value(&whole.more).unwrap();
        let first = json!({ "id": "a", "function": { "name": "f", "arguments": "{\"x\":1} " }, "index": 0 });
        let second = json!({ "id": "b", "function": { "arguments": "{}" }, "index": 1 });
        assert_eq!(calls["tool_calls"], json!([first, second, { "id": "c", "index": 2 }]));
        assert!(whole.has_tool_calls());
        assert_eq!(whole.content, "t");
    }

    #[test]
    fn calls_without_ids_stay_apart() {
        let f = json!({ "id": "", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let nameless = json!({ "function": { "name": "", "arguments": "{}" } });
        for (calls, is_whole) in [([&f, &f], false), ([&f, &nameless], true)] {
            let (mut reply, mut begun) = (read(json!({ "tool_calls": calls })), BTreeSet::new());
            reply.number_tool_calls(&mut begun, is_whole, "x_");
            let calls = serde_json::to_value(&reply.more).unwrap();
            assert_eq!((&calls["tool_calls"][0]["index"], &calls["tool_calls"][1]["index"]), (&json!(0), &json!(1)));
            assert_eq!((&calls["tool_calls"][0]["id"], &calls["tool_calls"][1]["id"]), (&json!("x_0"), &json!("x_1")));
        }
    }

    /// Each piece has its own `index`, as of a model that writes two calls in turn, in any order.
    #[test]
    fn a_call_gets_its_id_once() {
        let piece = |index| json!({ "tool_calls": [{ "index": index, "function": { "arguments": "a" } }] });
        let (mut whole, mut begun) = (Reply::default(), BTreeSet::new());
        for index in [1, 0, 1, 0] {
            let mut piece = read(piece(index));
            piece.number_tool_calls(&mut begun, false, "x_");
            whole.join(piece);
        }
        let call =
            |index: i64| json!({ "index": index, "function": { "arguments": "aa" }, "id": format!("x_{index}") });
        assert_eq!(serde_json::to_value(&whole.more).unwrap()["tool_calls"], json!([call(1), call(0)]));
    }

    /// Each is a call of its own, whatever its `index` and its `id` are.
    #[test]
    fn calls_of_a_whole_answer_have_their_places_as_indexes_and_ids_of_their_own() {
        let calls = [json!({ "index": 0, "id": "a" }), json!({ "index": 0 }), json!({ "index": 0, "id": 7 })];
        let (mut reply, mut begun) = (read(json!({ "tool_calls": calls })), BTreeSet::new());
        reply.number_tool_calls(&mut begun, true, "x_");
        let call = |index: i64, id: &str| json!({ "index": index, "id": id });
        let expected = json!([call(0, "a"), call(1, "x_1"), call(2, "x_2")]);
        assert_eq!(serde_json::to_value(&reply.more).unwrap()["tool_calls"], expected);
    }

    #[test]
    fn what_is_known_of_tokens_is_joined() {
        let mut whole = Reply::default();
        for piece in [
            json!({ "logprobs": { "content": [{ "token": "a" }], "refusal": null } }),
            json!({ "content": "b" }),
            json!({ "logprobs": { "content": [{ "token": "b" }], "refusal": [{ "token": "c" }] } }),
            json!({ "logprobs": { "content": null } }),
        ] {
            whole.join(read(piece));
        }
        let expected = json!({ "content": [{ "token": "a" }, { "token": "b" }], "refusal": [{ "token": "c" }] });
        assert_eq!(serde_json::to_value(whole.logprobs).unwrap(), expected);
    }

    #[test]
    fn counts_of_choices_are_added_and_those_of_pieces_are_not() {
        let mut whole = read(json!({ "usage": { "prompt_tokens": 5, "completion_tokens": 1 } }));
        whole.join(read(json!({ "usage": { "completion_tokens": 2 } })));
        assert_eq!(whole.usage, Usage { prompt_tokens: Some(5), completion_tokens: Some(2) });
        let both = whole.usage.with(Usage { prompt_tokens: None, completion_tokens: Some(4) });
        assert_eq!(both, Usage { prompt_tokens: Some(5), completion_tokens: Some(6) });
    }
}
