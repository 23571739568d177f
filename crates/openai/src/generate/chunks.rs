//! Choices as server-sent events: chunks as they come, then the end of each choice, the usage and `[DONE]`.

use std::io::Write as _;
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

use super::{AnswerHead, Choice, ChoicePieces, Ending, Piece};
use crate::error;
use crate::reply::Usage;
use crate::request::ModelRequest;
use crate::respond::{self, UsageJson};

/// The chunk of a text of at most this length is short, also where each letter is escaped.
const SHORT_TEXT_BYTES: usize = 512;

/// What all chunks of an answer begin with, before their choices.
#[derive(Serialize)]
struct ChunkHead<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
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

/// The choices, in the order of their pieces.
enum Choices {
    One(Box<ChoicePieces>),
    Several(SelectAll<Pieces>),
}

impl Choices {
    fn new(mut choices: Vec<Choice>) -> Self {
        match choices.pop() {
            Some(only) if choices.is_empty() => Self::One(Box::new(only.pieces())),
            last => Self::Several(select_all(choices.into_iter().chain(last).map(pieces_of))),
        }
    }

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        match self {
            Self::One(pieces) => pieces.next().await,
            Self::Several(pieces) => pieces.next().await,
        }
    }
}

/// The chunks of the choices.
struct Chunks {
    choices: Choices,
    writer: Arc<ChunkWriter>,
    /// Whether the role of each choice was sent.
    has_role: Vec<bool>,
    usage: Vec<Usage>,
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
        choices: Choices::new(choices),
        writer: Arc::new(ChunkWriter::try_new(&head, wants_usage)?),
        has_role: vec![false; count],
        usage: vec![Usage::default(); count],
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
        self.choices.next().await
    }

    fn bytes(piece: &Piece) -> usize {
        piece.reply.bytes()
    }

    /// A token, as most pieces are.
    fn short_event(&mut self, piece: &Piece, out: &mut Vec<u8>) -> bool {
        let Piece { index, reply, end } = piece;
        let has_begun = self.has_role[*index] || !self.writer.is_chat;
        if !(has_begun
            && end.is_none()
            && reply.is_only_text()
            && (1..=SHORT_TEXT_BYTES).contains(&reply.content.len()))
        {
            return false;
        }
        let usage = &mut self.usage[*index];
        *usage = reply.usage.or(*usage);
        self.writer.text(out, *index, &reply.content);
        true
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
        let writer = Arc::clone(&self.writer);
        let write = move || writer.chunks_of(&piece, is_first);
        let written = budget.run_outcome(bytes, write).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn end(&mut self) -> Option<Bytes> {
        let usage = self.usage.iter().fold(Usage::default(), |sum, usage| sum.with(*usage));
        let mut last = Vec::new();
        if self.writer.wants_usage && usage.is_known() {
            // Numbers can always be written.
            let _ = self.writer.chunk(&mut last, &[], Some(usage.into()));
        }
        last.extend(event_bytes(b"[DONE]"));
        Some(last.into())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&error::body(error)).into()
    }
}

/// Writes the chunks of one answer.
struct ChunkWriter {
    is_chat: bool,
    /// Whether each chunk has a usage: null in all but the last, for clients that ask for it.
    wants_usage: bool,
    /// The bytes of every chunk until its choices.
    begin: Vec<u8>,
}

impl ChunkWriter {
    fn try_new(head: &AnswerHead, wants_usage: bool) -> Result<Self, ApiError> {
        let AnswerHead { is_chat, id, created, model } = head;
        let object = if *is_chat { "chat.completion.chunk" } else { "text_completion" };
        let json = respond::written(&ChunkHead { id, object, created: *created, model })?;
        // JSON without line breaks is one line of data. The object goes on with its choices.
        let begin = [b"data: ", json.strip_suffix(b"}").unwrap_or(&json), b",\"choices\":"].concat();
        Ok(Self { is_chat: *is_chat, wants_usage, begin })
    }

    /// The chunk of a piece, if there is anything in it, and the one of its end: clients take `finish_reason` from a
    /// chunk without text.
    fn chunks_of(&self, piece: &Piece, is_first: bool) -> Result<Vec<u8>, ApiError> {
        let Piece { index, reply, end } = piece;
        let (index, logprobs, text) = (*index, reply.logprobs.as_ref(), &*reply.content);
        let mut out = respond::room_for(reply.bytes());
        if !reply.is_empty() || (is_first && self.is_chat) {
            let choice = if self.is_chat {
                let content = Some(text).filter(|text| !text.is_empty() || is_first);
                let delta = Delta { role: is_first.then_some("assistant"), content, more: &reply.more };
                ChunkChoice::Chat { index, delta, logprobs, finish_reason: None }
            } else {
                ChunkChoice::Text { index, text, logprobs, finish_reason: None }
            };
            self.chunk(&mut out, &[choice], None)?;
        }
        if let Some(Ending { reason: end, .. }) = end {
            let more = Map::new();
            let choice = if self.is_chat {
                let delta = Delta { role: None, content: None, more: &more };
                ChunkChoice::Chat { index, delta, logprobs: None, finish_reason: Some(end) }
            } else {
                ChunkChoice::Text { index, text: "", logprobs: None, finish_reason: Some(end) }
            };
            self.chunk(&mut out, &[choice], None)?;
        }
        Ok(out)
    }

    /// The chunk of a text that goes on: the same bytes as [`chunk`](Self::chunk) writes, in a sixth of the
    /// instructions.
    fn text(&self, out: &mut Vec<u8>, index: usize, text: &str) {
        let (before, after) = if self.is_chat { ("\"delta\":{\"content\":", "}") } else { ("\"text\":", "") };
        let usage = if self.wants_usage { ",\"usage\":null" } else { "" };
        out.extend_from_slice(&self.begin);
        // Writing to memory does not fail.
        let _ = write!(out, "[{{\"index\":{index},{before}");
        let _ = serde_json::to_writer(&mut *out, text);
        let end = "\"logprobs\":null,\"finish_reason\":null}]";
        [after, ",", end, usage, "}\n\n"].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
    }

    fn chunk(&self, out: &mut Vec<u8>, choices: &[ChunkChoice<'_>], usage: Option<UsageJson>) -> Result<(), ApiError> {
        out.extend_from_slice(&self.begin);
        respond::write(out, choices)?;
        if self.wants_usage {
            out.extend_from_slice(b",\"usage\":");
            respond::write(out, &usage)?;
        }
        out.extend_from_slice(b"}\n\n");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reply::Reply;

    proptest! {
        /// A text that goes on has two ways to be written, and clients see one.
        #[test]
        fn a_text_is_written_as_any_piece(
            text in ".{1,40}",
            index in 0_usize..200,
            is_chat: bool,
            wants_usage: bool,
        ) {
            let (id, model) = ("chatcmpl-1".to_owned(), "a \"model\"".to_owned());
            let writer = ChunkWriter::try_new(&AnswerHead { is_chat, id, created: 7, model }, wants_usage).unwrap();
            let mut short = Vec::new();
            writer.text(&mut short, index, &text);
            let piece = Piece { index, reply: Reply::of_text(text), end: None };
            prop_assert_eq!(String::from_utf8(short), String::from_utf8(writer.chunks_of(&piece, false).unwrap()));
        }
    }
}
