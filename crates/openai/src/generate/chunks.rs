//! Choices as server-sent events: chunks as they come, then the end of each choice, the usage and `[DONE]`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Map, Value};
use callboard_core::{Deadline, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, event_bytes, events};
use futures_util::stream::{SelectAll, select_all};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;

use super::{AnswerHead, Choice, Ending, Piece};
use crate::error;
use crate::reply::Usage;
use crate::request::ModelRequest;
use crate::respond::{self, UsageJson};

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice<'a>>,
    /// Null in all chunks but the last, for clients that ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageJson>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChunkChoice<'a> {
    Chat { index: usize, delta: Delta<'a>, logprobs: Option<&'a Value>, finish_reason: Option<&'a str> },
    Text { index: usize, text: &'a str, logprobs: Option<&'a Value>, finish_reason: Option<&'a str> },
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(flatten)]
    more: &'a Map,
}

type Pieces = Pin<Box<dyn Stream<Item = Result<Piece, ApiError>> + Send>>;

/// The chunks of the choices.
struct Chunks {
    pieces: SelectAll<Pieces>,
    head: AnswerHead,
    /// Whether the role of each choice was sent.
    has_role: Vec<bool>,
    usage: Vec<Usage>,
    wants_usage: bool,
    client: LocalClient,
    deadline: Deadline,
}

pub(super) async fn respond(
    request: ModelRequest<'_>,
    head: AnswerHead,
    choices: Vec<Choice>,
    wants_usage: bool,
) -> Result<Response, ApiError> {
    let count = choices.len();
    let chunks = Chunks {
        pieces: select_all(choices.into_iter().map(pieces_of)),
        head,
        has_role: vec![false; count],
        usage: vec![Usage::default(); count],
        wants_usage,
        client: request.context.client.clone(),
        deadline: request.deadline,
    };
    let response = events(&request.context, request.route.name(), request.context.start, chunks).await;
    response.map_err(|error| request.error_of(count, error))
}

fn pieces_of(choice: Choice) -> Pieces {
    Box::pin(stream::unfold(choice.pieces(), async |mut pieces| Some((pieces.next().await?, pieces))))
}

impl EventSource for Chunks {
    type Item = Piece;

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        self.pieces.next().await
    }

    /// The chunks of a piece, at the expense of an account of their own until they are sent. Large ones are written off
    /// the runtime.
    async fn event(&mut self, piece: Piece) -> Result<Bytes, ApiError> {
        let usage = &mut self.usage[piece.index];
        *usage = piece.reply.usage.or(*usage);
        let is_first = !std::mem::replace(&mut self.has_role[piece.index], true);
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let bytes = piece.reply.bytes();
        // The piece, and its event.
        budget.charge_outcome(bytes.saturating_mul(2))?;
        let (head, wants_usage) = (self.head.clone(), self.wants_usage);
        let write = move || chunks_of(&head, &piece, is_first, wants_usage);
        let written = budget.run_outcome(bytes, write).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn end(&mut self) -> Option<Bytes> {
        let usage = self.usage.iter().fold(Usage::default(), |sum, usage| sum.with(*usage));
        let mut last = Vec::new();
        if self.wants_usage && usage.is_known() {
            // Numbers can always be written.
            let _ = push_chunk(&mut last, &self.head, Vec::new(), Some(Some(usage.into())));
        }
        last.extend_from_slice(b"data: [DONE]\n\n");
        Some(last.into())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&error::body(error)).into()
    }
}

/// The chunk of a piece, if there is anything in it, and the one of its end: clients take `finish_reason` from a chunk
/// without text.
fn chunks_of(head: &AnswerHead, piece: &Piece, is_first: bool, wants_usage: bool) -> Result<Vec<u8>, ApiError> {
    let Piece { index, reply, end } = piece;
    let (index, logprobs, text) = (*index, reply.logprobs.as_ref(), &*reply.content);
    let (mut choices, none) = (Vec::new(), Map::new());
    if !reply.is_empty() || (is_first && head.is_chat) {
        choices.push(if head.is_chat {
            let content = Some(text).filter(|text| !text.is_empty() || is_first);
            let delta = Delta { role: is_first.then_some("assistant"), content, more: &reply.more };
            ChunkChoice::Chat { index, delta, logprobs, finish_reason: None }
        } else {
            ChunkChoice::Text { index, text, logprobs, finish_reason: None }
        });
    }
    if let Some(Ending { reason: end, .. }) = end {
        choices.push(if head.is_chat {
            let delta = Delta { role: None, content: None, more: &none };
            ChunkChoice::Chat { index, delta, logprobs: None, finish_reason: Some(end) }
        } else {
            ChunkChoice::Text { index, text: "", logprobs: None, finish_reason: Some(end) }
        });
    }
    let mut out = respond::room_for(reply.bytes());
    for choice in choices {
        push_chunk(&mut out, head, vec![choice], wants_usage.then_some(None))?;
    }
    Ok(out)
}

fn push_chunk(
    out: &mut Vec<u8>,
    head: &AnswerHead,
    choices: Vec<ChunkChoice<'_>>,
    usage: Option<Option<UsageJson>>,
) -> Result<(), ApiError> {
    let AnswerHead { is_chat, id, created, model } = head;
    let object = if *is_chat { "chat.completion.chunk" } else { "text_completion" };
    respond::push_event(out, &[], &Chunk { id, object, created: *created, model, choices, usage })
}
