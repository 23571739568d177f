//! The answer of a chat as a response: whole, or as the events of its items.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::{Deadline, ErrorKind, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, HeldBytes, SERVER_TIMING, events, total};
use serde_json::{Value as Json, json};

use super::items::{Item, Output, ResponseHead, Status, Step, id_of, text_part};
use crate::error;
use crate::generate::{Choice, ChoicePieces, Piece};
use crate::models::now;
use crate::parts::{OneCallAtATime, tool_uses};
use crate::reply::Usage;
use crate::request::ModelRequest;
use crate::respond;

fn head(request: &ModelRequest<'_>, id: &str) -> ResponseHead {
    ResponseHead { id: id.to_owned(), model: request.model.clone(), created: now() }
}

/// Answers with the whole response.
pub(super) async fn whole(request: ModelRequest<'_>, id: &str, choice: Choice) -> Result<Response, ApiError> {
    let (budget, head) = (request.budget(), head(&request, id));
    let (reply, end) = Box::pin(choice.collect(&budget)).await?;
    let bytes = reply.bytes();
    let write = move || {
        let mut items = Vec::new();
        if !reply.content.is_empty() {
            items.push(Item::Text(reply.content.clone()));
        }
        for call in tool_uses(&reply) {
            let arguments = call.arguments.text()?.into_owned();
            items.push(Item::Call { id: call.id.to_owned(), name: call.name.to_owned(), arguments });
        }
        respond::written_of(bytes, &head.json(Status::of_end(&end.reason), &items, reply.usage, None))
    };
    // The items, their values, and the JSON of those.
    let mut response = respond::json(&request, bytes.saturating_mul(3), write).await?;
    response.headers_mut().insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

/// Answers with the events of the response.
pub(super) async fn streamed(request: ModelRequest<'_>, id: &str, choice: Choice) -> Result<Response, ApiError> {
    let source = ResponseEvents {
        pieces: choice.pieces(),
        calls: OneCallAtATime::default(),
        output: Output::default(),
        held_bytes: request.context.client.edge().held_bytes(),
        writer: ResponseWriter { head: Arc::new(head(&request, id)), sequence: 0, begun: 0 },
        usage: Usage::default(),
        client: request.context.client.clone(),
        deadline: request.deadline,
    };
    events(&request.context, request.route.name(), request.context.start, source).await
}

struct ResponseEvents {
    pieces: ChoicePieces,
    calls: OneCallAtATime,
    /// The last event has all of it.
    output: Output,
    /// Pays for the output, and for what waits.
    held_bytes: HeldBytes,
    writer: ResponseWriter,
    usage: Usage,
    client: LocalClient,
    deadline: Deadline,
}

impl EventSource for ResponseEvents {
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
        let held_before = self.calls.held_bytes() + self.output.bytes();
        budget.charge_outcome(reply.bytes())?;
        self.usage = reply.usage.or(self.usage);
        self.calls.add(&reply)?;
        let mut steps = Vec::new();
        for part in self.calls.take(end.is_some()) {
            self.output.add(part, &mut steps);
        }
        let last = end.map(|end| {
            self.output.close(&mut steps);
            (end.reason, self.output.items.clone())
        });
        let more = (self.calls.held_bytes() + self.output.bytes()).saturating_sub(held_before) as u64;
        if !self.held_bytes.try_grow(more) {
            return Err(ApiError::new(ErrorKind::Overloaded, "there is no room for the text until now"));
        }
        let (writer, usage) = (self.writer.clone(), self.usage);
        let all = if last.is_some() { self.output.bytes() } else { 0 };
        let length = steps.iter().map(Step::len).sum::<usize>() + all;
        let written_bytes = steps.iter().map(Step::written_len).sum::<usize>() + all;
        // The steps and the items, the data of an event, and the events.
        budget.charge_outcome(length.saturating_mul(2).saturating_add(written_bytes))?;
        let write = move || {
            let (mut writer, mut out) = (writer.clone(), respond::room_for(written_bytes));
            writer.write_begin(&mut out)?;
            for step in &steps {
                writer.write_step(&mut out, step)?;
            }
            if let Some((reason, items)) = &last {
                writer.write_end(&mut out, Status::of_end(reason), items, usage, None)?;
            }
            Ok::<_, ApiError>((out, writer))
        };
        let (written, writer) = budget.run_outcome(length, write).await??;
        self.writer = writer;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        let mut out = Vec::new();
        let about = serde_json::from_slice::<Json>(&error::body(error)).map(|mut body| body["error"].take());
        let about = about.unwrap_or_default();
        // A text can always be written. Nothing but a heartbeat may have been sent.
        let _ = self.writer.write_begin(&mut out);
        let _ = self.writer.write_end(&mut out, Status::Failed, &self.output.items, self.usage, Some(about));
        out.into()
    }
}

/// Writes the events of one response. A copy goes to where a piece is written, and comes back.
#[derive(Clone, Debug)]
struct ResponseWriter {
    head: Arc<ResponseHead>,
    /// The number of the next event.
    sequence: u64,
    /// The items that have begun.
    begun: usize,
}

impl ResponseWriter {
    fn write_begin(&mut self, out: &mut Vec<u8>) -> Result<(), ApiError> {
        if self.sequence > 0 {
            return Ok(());
        }
        for name in ["response.created", "response.in_progress"] {
            let response = self.head.json(Status::InProgress, &[], Usage::default(), None);
            self.event(out, name, json!({ "response": response }))?;
        }
        Ok(())
    }

    fn write_step(&mut self, out: &mut Vec<u8>, step: &Step) -> Result<(), ApiError> {
        match step {
            Step::Begin(item) => {
                self.begun += 1;
                let index = self.begun - 1;
                let json = item.json(&self.head.id, index, "in_progress");
                self.event(out, "response.output_item.added", json!({ "output_index": index, "item": json }))?;
                if matches!(item, Item::Text(_)) {
                    self.of_item(out, true, "response.content_part.added", json!({ "part": text_part("") }))?;
                }
                Ok(())
            }
            Step::More { is_text, more } => {
                let of_what = if *is_text { "output_text" } else { "function_call_arguments" };
                self.of_item(out, *is_text, &format!("response.{of_what}.delta"), json!({ "delta": more }))
            }
            Step::Done(item) => {
                match item {
                    Item::Text(text) => {
                        self.of_item(out, true, "response.output_text.done", json!({ "text": text }))?;
                        self.of_item(out, true, "response.content_part.done", json!({ "part": text_part(text) }))?;
                    }
                    Item::Call { name, arguments, .. } => {
                        let done = json!({ "arguments": arguments, "name": name });
                        self.of_item(out, false, "response.function_call_arguments.done", done)?;
                    }
                }
                let index = self.begun.saturating_sub(1);
                let json = item.json(&self.head.id, index, "completed");
                self.event(out, "response.output_item.done", json!({ "output_index": index, "item": json }))
            }
        }
    }

    fn write_end(
        &mut self,
        out: &mut Vec<u8>,
        status: Status<'_>,
        items: &[Item],
        usage: Usage,
        error: Option<Json>,
    ) -> Result<(), ApiError> {
        let response = self.head.json(status, items, usage, error);
        self.event(out, &format!("response.{}", status.as_str()), json!({ "response": response }))
    }

    /// An event of the open item, or of the only part of its content.
    fn of_item(&mut self, out: &mut Vec<u8>, is_text: bool, name: &str, mut data: Json) -> Result<(), ApiError> {
        let index = self.begun.saturating_sub(1);
        data["item_id"] = id_of(is_text, &self.head.id, index).into();
        data["output_index"] = index.into();
        if is_text {
            data["content_index"] = 0.into();
            if name.starts_with("response.output_text") {
                data["logprobs"] = json!([]);
            }
        }
        self.event(out, name, data)
    }

    /// Writes an event. Its data has its type, too.
    fn event(&mut self, out: &mut Vec<u8>, name: &str, mut data: Json) -> Result<(), ApiError> {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        respond::push_event(out, Some(name), &data)
    }
}
