//! The answer of a chat as a message: whole, or as the events of its blocks.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::{Deadline, ErrorKind, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, HeldBytes, SERVER_TIMING, events, total};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::error;
use crate::generate::{Choice, ChoicePieces, Ending, Piece};
use crate::parts::{OneCallAtATime, Part, tool_uses};
use crate::reply::Usage;
use crate::request::ModelRequest;
use crate::respond;

#[derive(Serialize)]
struct MessageJson<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Json>,
    stop_reason: Option<&'a str>,
    stop_sequence: Option<&'a str>,
    usage: TokensJson,
}

#[derive(Clone, Copy, Serialize)]
struct TokensJson {
    input_tokens: u64,
    output_tokens: u64,
}

impl From<Usage> for TokensJson {
    fn from(usage: Usage) -> Self {
        Self { input_tokens: usage.prompt_tokens.unwrap_or(0), output_tokens: usage.completion_tokens.unwrap_or(0) }
    }
}

/// The reason of an end in the words of this API. After uses of tools it is these, whatever the route calls it.
fn stop_reason(end: &Ending, uses_tools: bool) -> &str {
    match (&*end.reason, &end.stop) {
        (_, Some(_)) => "stop_sequence",
        ("stop", None) if uses_tools => "tool_use",
        ("stop", None) => "end_turn",
        ("length", None) => "max_tokens",
        ("tool_calls", None) => "tool_use",
        ("content_filter", None) => "refusal",
        (own, None) => own,
    }
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
        let message = MessageJson {
            id: &id,
            r#type: "message",
            role: "assistant",
            model: &model,
            content,
            stop_reason: Some(stop_reason(&end, reply.has_tool_calls())),
            stop_sequence: end.stop.as_deref(),
            usage: reply.usage.into(),
        };
        respond::written_of(bytes, &message)
    };
    // The blocks, and their JSON.
    let mut response = respond::json(&request, bytes.saturating_mul(2), write).await?;
    response.headers_mut().insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

/// Answers with the events of the message.
pub(super) async fn streamed(request: ModelRequest<'_>, id: String, choice: Choice) -> Result<Response, ApiError> {
    let source = MessageEvents {
        pieces: choice.pieces(),
        calls: OneCallAtATime::default(),
        held_bytes: request.context.client.edge().held_bytes(),
        writer: EventWriter { id: id.into(), model: request.model.as_str().into(), ..EventWriter::default() },
        usage: Usage::default(),
        client: request.context.client.clone(),
        deadline: request.deadline,
    };
    events(&request.context, request.route.name(), request.context.start, source).await
}

struct MessageEvents {
    pieces: ChoicePieces,
    calls: OneCallAtATime,
    /// Pays for what waits.
    held_bytes: HeldBytes,
    writer: EventWriter,
    usage: Usage,
    client: LocalClient,
    deadline: Deadline,
}

impl EventSource for MessageEvents {
    type Item = Piece;

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        self.pieces.next().await
    }

    fn bytes(piece: &Piece) -> usize {
        piece.reply.bytes()
    }

    /// The events of a piece, at the expense of an account of their own until they are sent. Large ones are written off
    /// the runtime.
    async fn event(&mut self, Piece { reply, end, .. }: Piece) -> Result<Bytes, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let (bytes, held_before) = (reply.bytes(), self.calls.held_bytes());
        budget.charge_outcome(bytes)?;
        self.usage = reply.usage.or(self.usage);
        self.calls.add(&reply)?;
        let parts = self.calls.take(end.is_some());
        let more = self.calls.held_bytes().saturating_sub(held_before) as u64;
        if !self.held_bytes.try_grow(more) {
            return Err(ApiError::new(ErrorKind::Overloaded, "there is no room for uses of tools that wait"));
        }
        let usage = TokensJson::from(self.usage);
        let end = end.map(|end| (stop_reason(&end, self.calls.has_begun()).to_owned(), end.stop));
        let (writer, length) = (self.writer.clone(), parts.iter().map(Part::len).sum::<usize>());
        // The parts, the data of an event, and the events.
        budget.charge_outcome(length.saturating_mul(3))?;
        let write = move || {
            let (mut writer, mut out) = (writer.clone(), respond::room_for(length));
            writer.write(&mut out, &parts, usage, end.as_ref()).map(|()| (out, writer))
        };
        let (written, writer) = budget.run_outcome(length, write).await??;
        self.writer = writer;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        let mut out = Vec::new();
        // A text can always be written.
        let _ = respond::push_event(&mut out, Some("error"), &error::body(error));
        out.into()
    }
}

/// Writes the events of one message. A copy goes to where a piece is written, and comes back.
#[derive(Clone, Default)]
struct EventWriter {
    id: Arc<str>,
    model: Arc<str>,
    is_begun: bool,
    /// Whether a block is open, and whether it is one of text.
    open: Option<bool>,
    /// The blocks that have begun.
    blocks: usize,
}

impl EventWriter {
    fn write(
        &mut self,
        out: &mut Vec<u8>,
        parts: &[Part],
        usage: TokensJson,
        end: Option<&(String, Option<String>)>,
    ) -> Result<(), ApiError> {
        if !std::mem::replace(&mut self.is_begun, true) {
            let message = MessageJson {
                id: &self.id,
                r#type: "message",
                role: "assistant",
                model: &self.model,
                content: Vec::new(),
                stop_reason: None,
                stop_sequence: None,
                usage,
            };
            event(out, "message_start", json!({ "message": written_json(&message)? }))?;
        }
        for part in parts {
            match part {
                Part::Text(text) => {
                    if self.open != Some(true) {
                        self.begin(out, true, json!({ "type": "text", "text": "" }))?;
                    }
                    self.delta(out, json!({ "type": "text_delta", "text": text }))?;
                }
                Part::Call { id, name } => {
                    self.begin(out, false, json!({ "type": "tool_use", "id": id, "name": name, "input": {} }))?;
                }
                Part::Arguments(text) => {
                    self.delta(out, json!({ "type": "input_json_delta", "partial_json": text }))?;
                }
            }
        }
        if let Some((reason, stop)) = end {
            self.close(out)?;
            let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
            event(out, "message_delta", json!({ "delta": delta, "usage": written_json(&usage)? }))?;
            event(out, "message_stop", json!({}))?;
        }
        Ok(())
    }

    /// Begins a block after the open one.
    fn begin(&mut self, out: &mut Vec<u8>, is_text: bool, block: Json) -> Result<(), ApiError> {
        self.close(out)?;
        self.open = Some(is_text);
        self.blocks += 1;
        event(out, "content_block_start", json!({ "index": self.blocks - 1, "content_block": block }))
    }

    fn delta(&self, out: &mut Vec<u8>, delta: Json) -> Result<(), ApiError> {
        event(out, "content_block_delta", json!({ "index": self.blocks.saturating_sub(1), "delta": delta }))
    }

    fn close(&mut self, out: &mut Vec<u8>) -> Result<(), ApiError> {
        match self.open.take() {
            Some(_) => event(out, "content_block_stop", json!({ "index": self.blocks - 1 })),
            None => Ok(()),
        }
    }
}

fn written_json(value: &impl Serialize) -> Result<Json, ApiError> {
    serde_json::to_value(value).map_err(|error| respond::unwritten(&error))
}

/// Writes an event. Its data has its type, too.
fn event(out: &mut Vec<u8>, r#type: &str, mut data: Json) -> Result<(), ApiError> {
    data["type"] = r#type.into();
    respond::push_event(out, Some(r#type), &data)
}
