//! Choices as server-sent events: chunks as they come, then the end of each choice, the usage and `[DONE]`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Map, Value};
use callboard_core::{Deadline, LocalClient};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    AbandonGuard, ApiError, HEARTBEAT, Heartbeat, RequestContext, RequestId, SERVER_TIMING, StreamedItems, first,
};
use callboard_telemetry::RequestSpan;
use futures_util::stream::{SelectAll, select_all};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;

use super::{AnswerHead, Choice, Piece};
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

/// One stream of events.
struct Events {
    pieces: SelectAll<Pieces>,
    head: AnswerHead,
    /// Whether the role of each choice was sent.
    has_role: Vec<bool>,
    usage: Vec<Usage>,
    wants_usage: bool,
    client: LocalClient,
    deadline: Deadline,
    request_id: RequestId,
    route: String,
    heartbeat: Heartbeat,
    /// `None` before the stream begins: until then the edge counts a client that leaves.
    abandon_guard: Option<AbandonGuard>,
    items: StreamedItems,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

pub(super) async fn respond(
    request: ModelRequest<'_>,
    head: AnswerHead,
    choices: Vec<Choice>,
    wants_usage: bool,
) -> Result<Response, ApiError> {
    let RequestContext { client, config, metrics, id, span, start, .. } = request.context;
    let items = StreamedItems::default();
    let count = choices.len();
    let mut events = Events {
        pieces: select_all(choices.into_iter().map(pieces_of)),
        head,
        has_role: vec![false; count],
        usage: vec![Usage::default(); count],
        wants_usage,
        client: client.clone(),
        deadline: request.deadline,
        request_id: id.clone(),
        route: request.route.name().to_owned(),
        heartbeat: Heartbeat::new(config.stream_heartbeat),
        abandon_guard: None,
        items: items.clone(),
        _span: span.cloned(),
    };
    // The first event decides the status.
    let first_event = events.next().await.transpose().map_err(|error| request.error_of(count, error))?;
    events.abandon_guard = Some(AbandonGuard::new(metrics.requests.abandoned.clone()));
    let rest = stream::unfold(Some(events), async |events| {
        let mut events = events?;
        match events.next().await {
            Some(Ok(event)) => Some((event, Some(events))),
            Some(Err(error)) => Some((events.failed(&error), None)),
            None => Some((events.ended(), None)),
        }
    });
    let body = stream::iter(first_event).chain(rest).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(items);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(SERVER_TIMING, first(start.elapsed()));
    // Otherwise nginx and similar proxies buffer a page of events before they send any.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// The pieces of a choice, which is dropped with the last one.
fn pieces_of(choice: Choice) -> Pieces {
    Box::pin(stream::unfold(Some(choice), async |choice| {
        let mut choice = choice?;
        let piece = choice.next().await;
        let goes_on = matches!(&piece, Ok(Piece { end: None, .. }));
        Some((piece, goes_on.then_some(choice)))
    }))
}

impl Events {
    /// The next event, or a comment after a silence; `None` after the last choice.
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let piece = tokio::select! {
            biased;
            piece = self.pieces.next() => piece?,
            () = self.heartbeat.silence() => return Some(Ok(HEARTBEAT)),
        };
        self.heartbeat.sent();
        self.items.count();
        match piece {
            Ok(piece) => Some(self.event(piece).await),
            Err(error) => Some(Err(error)),
        }
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
        budget.charge_outcome(bytes)?;
        let (head, wants_usage) = (self.head.clone(), self.wants_usage);
        let write = move || chunks_of(&head, &piece, is_first, wants_usage);
        let written = budget.run_outcome(bytes, write).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    /// The last events of a stream whose choices have all ended.
    fn ended(&mut self) -> Bytes {
        self.abandon_guard.iter_mut().for_each(AbandonGuard::ended);
        let usage = self.usage.iter().fold(Usage::default(), |sum, usage| sum.with(*usage));
        let mut last = Vec::new();
        if self.wants_usage && usage.is_known() {
            // Numbers can always be written.
            last = chunk(&self.head, Vec::new(), Some(Some(usage.into()))).unwrap_or_default();
        }
        last.extend_from_slice(b"data: [DONE]\n\n");
        last.into()
    }

    /// The last event of a stream that failed.
    fn failed(&mut self, error: &ApiError) -> Bytes {
        error.log(self.request_id.as_str(), Some(&self.route));
        self.abandon_guard.iter_mut().for_each(AbandonGuard::ended);
        event(&error::body(error)).into()
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
    if let Some(end) = end {
        choices.push(if head.is_chat {
            let delta = Delta { role: None, content: None, more: &none };
            ChunkChoice::Chat { index, delta, logprobs: None, finish_reason: Some(end) }
        } else {
            ChunkChoice::Text { index, text: "", logprobs: None, finish_reason: Some(end) }
        });
    }
    let mut written = Vec::new();
    for choice in choices {
        written.extend(chunk(head, vec![choice], wants_usage.then_some(None))?);
    }
    Ok(written)
}

fn chunk(
    head: &AnswerHead,
    choices: Vec<ChunkChoice<'_>>,
    usage: Option<Option<UsageJson>>,
) -> Result<Vec<u8>, ApiError> {
    let AnswerHead { is_chat, id, created, model } = head;
    let object = if *is_chat { "chat.completion.chunk" } else { "text_completion" };
    Ok(event(&respond::written(&Chunk { id, object, created: *created, model, choices, usage })?))
}

/// JSON has no line breaks outside of texts, where they are escaped.
fn event(json: &[u8]) -> Vec<u8> {
    [b"data: ", json, b"\n\n"].concat()
}
