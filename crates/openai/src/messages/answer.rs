//! The answer of a chat as a message: whole, or as the events of its blocks.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_core::{Deadline, ErrorKind, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, SERVER_TIMING, events, total};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::error;
use crate::error::bad_answer;
use crate::generate::{Choice, Ending, Piece};
use crate::reply::{Reply, Usage};
use crate::request::ModelRequest;
use crate::respond::{self, written};

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Json>,
    stop_reason: Option<&'a str>,
    stop_sequence: Option<&'a str>,
    usage: UsageJson,
}

#[derive(Clone, Copy, Serialize)]
struct UsageJson {
    input_tokens: u64,
    output_tokens: u64,
}

impl From<Usage> for UsageJson {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.prompt_tokens.unwrap_or(0), output_tokens: usage.completion_tokens.unwrap_or(0) }
    }
}

/// The reason of an end in the words of this API.
fn stop_reason(end: &Ending) -> &str {
    match (&*end.reason, &end.stop) {
        (_, Some(_)) => "stop_sequence",
        ("stop", None) => "end_turn",
        ("length", None) => "max_tokens",
        ("tool_calls", None) => "tool_use",
        ("content_filter", None) => "refusal",
        (own, None) => own,
    }
}

/// What a reply says of a call of a tool: its number, and what is known of it.
struct ToolUse<'a> {
    index: i64,
    id: &'a str,
    name: &'a str,
    arguments: Arguments<'a>,
}

/// The arguments of a tool: JSON, also in pieces, or what it is the JSON of.
enum Arguments<'a> {
    Text(&'a str),
    Value(&'a Value),
}

impl Arguments<'_> {
    fn text(&self) -> Result<Cow<'_, str>, ApiError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Value(value) => String::from_utf8(written(value)?).map(Cow::Owned).map_err(|error| unwritten(&error)),
        }
    }

    /// The object that a client gets. None are an empty one.
    fn object(&self, route: &str) -> Result<Json, ApiError> {
        let text = self.text()?;
        if text.trim().is_empty() {
            return Ok(json!({}));
        }
        let read: Option<Json> = serde_json::from_str(&text).ok();
        read.filter(Json::is_object)
            .ok_or_else(|| bad_answer(route, "arguments of a tool that are no JSON object", "an object, or its JSON"))
    }
}

fn tool_uses(reply: &Reply) -> impl Iterator<Item = ToolUse<'_>> {
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

/// Answers with the whole message.
pub(super) async fn whole(request: ModelRequest<'_>, id: String, choice: Choice) -> Result<Response, ApiError> {
    let budget = request.budget();
    let (reply, end) = Box::pin(choice.collect(&budget)).await?;
    let (bytes, model, route) = (reply.bytes(), request.model.clone(), request.route.name().to_owned());
    let write = move || {
        let mut content = Vec::new();
        if !reply.content.is_empty() {
            content.push(json!({ "type": "text", "text": reply.content }));
        }
        for call in tool_uses(&reply) {
            let input = call.arguments.object(&route)?;
            content.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
        }
        written(&Message {
            id: &id,
            r#type: "message",
            role: "assistant",
            model: &model,
            content,
            stop_reason: Some(stop_reason(&end)),
            stop_sequence: end.stop.as_deref(),
            usage: reply.usage.into(),
        })
    };
    let mut response = respond::json(&request, bytes, write).await?;
    response.headers_mut().insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

/// Answers with the events of the message.
pub(super) async fn streamed(request: ModelRequest<'_>, id: String, choice: Choice) -> Result<Response, ApiError> {
    let writer = EventWriter {
        id,
        model: request.model.clone(),
        is_begun: false,
        block: None,
        blocks: 0,
        usage: Usage::default(),
    };
    let source = MessageEvents {
        choice: Some(choice),
        writer,
        client: request.context.client.clone(),
        deadline: request.deadline,
    };
    events(&request.context, request.route.name(), request.context.start, source).await
}

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    /// The call of a tool with this number.
    ToolUse(i64),
}

struct MessageEvents {
    /// `None` after its last piece.
    choice: Option<Choice>,
    writer: EventWriter,
    client: LocalClient,
    deadline: Deadline,
}

/// Writes the events of one message. A copy goes to where a piece is written, and comes back.
#[derive(Clone)]
struct EventWriter {
    id: String,
    model: String,
    is_begun: bool,
    /// The open block.
    block: Option<Block>,
    /// The blocks that have begun.
    blocks: usize,
    usage: Usage,
}

impl EventSource for MessageEvents {
    type Item = Piece;

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        let piece = self.choice.as_mut()?.next().await;
        if !matches!(&piece, Ok(Piece { end: None, .. })) {
            self.choice = None;
        }
        Some(piece)
    }

    /// The events of a piece, at the expense of an account of their own until they are sent. Large ones are written off
    /// the runtime.
    async fn event(&mut self, piece: Piece) -> Result<Bytes, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let (bytes, writer) = (piece.reply.bytes(), self.writer.clone());
        budget.charge_outcome(bytes)?;
        let write = move || {
            let mut writer = writer.clone();
            writer.written(&piece).map(|written| (written, writer))
        };
        let (written, writer) = budget.run_outcome(bytes, write).await??;
        self.writer = writer;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        [b"event: error\ndata: ", &*error::body(error), b"\n\n"].concat().into()
    }
}

impl EventWriter {
    fn written(&mut self, Piece { reply, end, .. }: &Piece) -> Result<Vec<u8>, ApiError> {
        let mut out = Vec::new();
        self.usage = reply.usage.or(self.usage);
        if !std::mem::replace(&mut self.is_begun, true) {
            let message = Message {
                id: &self.id,
                r#type: "message",
                role: "assistant",
                model: &self.model,
                content: Vec::new(),
                stop_reason: None,
                stop_sequence: None,
                usage: self.usage.into(),
            };
            event(&mut out, "message_start", json!({ "message": written_json(&message)? }))?;
        }
        if !reply.content.is_empty() {
            self.open(&mut out, Block::Text, || json!({ "type": "text", "text": "" }))?;
            self.delta(&mut out, json!({ "type": "text_delta", "text": reply.content }))?;
        }
        for call in tool_uses(reply) {
            let begun = || json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
            self.open(&mut out, Block::ToolUse(call.index), begun)?;
            let arguments = call.arguments.text()?;
            if !arguments.is_empty() {
                self.delta(&mut out, json!({ "type": "input_json_delta", "partial_json": arguments }))?;
            }
        }
        if let Some(end) = end {
            self.close(&mut out)?;
            let delta = json!({ "stop_reason": stop_reason(end), "stop_sequence": end.stop });
            let usage = written_json(&UsageJson::from(self.usage))?;
            event(&mut out, "message_delta", json!({ "delta": delta, "usage": usage }))?;
            event(&mut out, "message_stop", json!({}))?;
        }
        Ok(out)
    }

    /// Goes on with this block, or begins it after the open one.
    fn open(&mut self, out: &mut Vec<u8>, block: Block, begun: impl FnOnce() -> Json) -> Result<(), ApiError> {
        if self.block == Some(block) {
            return Ok(());
        }
        self.close(out)?;
        self.block = Some(block);
        self.blocks += 1;
        event(out, "content_block_start", json!({ "index": self.blocks - 1, "content_block": begun() }))
    }

    fn delta(&self, out: &mut Vec<u8>, delta: Json) -> Result<(), ApiError> {
        event(out, "content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }))
    }

    fn close(&mut self, out: &mut Vec<u8>) -> Result<(), ApiError> {
        match self.block.take() {
            Some(_) => event(out, "content_block_stop", json!({ "index": self.blocks - 1 })),
            None => Ok(()),
        }
    }
}

fn written_json(value: &impl Serialize) -> Result<Json, ApiError> {
    serde_json::to_value(value).map_err(|error| unwritten(&error))
}

fn unwritten(error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the answer cannot be written as JSON: {error}"))
}

/// Writes an event. Its data has its type, too.
fn event(out: &mut Vec<u8>, r#type: &str, mut data: Json) -> Result<(), ApiError> {
    data["type"] = r#type.into();
    // JSON has no line breaks outside of texts, where they are escaped.
    let data = written(&data)?;
    out.extend_from_slice(&[b"event: ", r#type.as_bytes(), b"\ndata: ", &*data, b"\n\n"].concat());
    Ok(())
}
