//! Transcriptions: one call of the route with a recording, whose text is the answer, whole or as events.
//!
//! * **Streamed:** each piece of a streaming route is an event. Without `stream` the pieces are joined.
//! * **Broken:** an error before the first event has its status. A later one is the last event, without
//!   `transcript.text.done`.
//! * **Cancelled:** a client that leaves drops the response, which cancels the call.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Map, Value};
use callboard_core::{Deadline, ErrorKind, LocalClient, Task};
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, HeldBytes, SERVER_TIMING, event_bytes, events, total};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::error::{self, bad_answer, invalid};
use crate::generate::{self, ChoicePieces, Piece};
use crate::input::InputForm;
use crate::reply::{Reply, Usage};
use crate::request::ModelRequest;
use crate::respond::{self, written};
use crate::subtitles::{self, Segment};

/// What a recording becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A text in its language.
    Transcribe,
    /// A text in English.
    Translate,
}

impl Purpose {
    /// The words that Whisper has for them.
    fn as_str(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// The field by which a route learns the purpose.
const TASK: &str = "task";

/// The form of an answer that is not streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    /// With all that the route says.
    Verbose,
    Text,
    Srt,
    Vtt,
}

impl Format {
    fn of(request: &ModelRequest<'_>) -> Result<Self, ApiError> {
        match request.fields.get("response_format") {
            None | Some(Value::Null) => Ok(Self::Json),
            Some(Value::Str(name)) => match name.as_str() {
                "json" => Ok(Self::Json),
                "verbose_json" => Ok(Self::Verbose),
                "text" => Ok(Self::Text),
                "srt" => Ok(Self::Srt),
                "vtt" => Ok(Self::Vtt),
                _ => Err(invalid("`response_format` must be json, verbose_json, text, srt or vtt")),
            },
            Some(other) => Err(invalid(format!("`response_format` must be a text, not {}", other.kind()))),
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::Verbose => "application/json",
            Self::Text | Self::Srt => "text/plain; charset=utf-8",
            Self::Vtt => "text/vtt; charset=utf-8",
        }
    }
}

/// Answers `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`. A route that does not take a `task`
/// would transcribe a recording that is to be translated.
pub(crate) async fn transcribe(mut request: ModelRequest<'_>, purpose: Purpose) -> Result<Response, ApiError> {
    if purpose == Purpose::Translate {
        if !InputForm::of(Task::Transcribe, request.route.input().schema()).takes(TASK) {
            let message = format!("model `{}` transcribes only: to translate it must take a `{TASK}`", request.model);
            return Err(invalid(message));
        }
        request.fields.insert(TASK, purpose.as_str());
    }
    let is_streamed = request.is_set("stream")?;
    let format = Format::of(&request)?;
    if is_streamed && format != Format::Json && format != Format::Text {
        return Err(invalid("a stream has no `response_format` but json: leave out `stream`"));
    }
    if !matches!(request.required("file")?, Value::Bytes(_)) {
        return Err(invalid("`file` must be one file"));
    }
    // Of other tasks: a transcript is one, and whole.
    for name in ["n", "stop"] {
        request.fields.remove(name);
    }
    let mut choices = generate::choices(&mut request).await?;
    let choice = choices.pop().ok_or_else(|| ApiError::new(ErrorKind::Internal, "there is no choice"))?;
    if is_streamed {
        let source = TranscriptEvents {
            pieces: choice.pieces(),
            text: String::new(),
            held_bytes: request.context.client.edge().held_bytes(),
            usage: Usage::default(),
            client: request.context.client.clone(),
            deadline: request.deadline,
        };
        return events(&request.context, request.route.name(), request.context.start, source).await;
    }
    let budget = request.budget();
    let (reply, _) = Box::pin(choice.collect(&budget)).await?;
    let (bytes, route) = (reply.bytes(), request.route.name().to_owned());
    let write = move || write(&route, &reply, format, purpose);
    let mut response = respond::json(&request, bytes, write).await?;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

#[derive(Serialize)]
struct TranscriptJson<'a> {
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Json>,
}

#[derive(Serialize)]
struct VerboseJson<'a> {
    task: &'static str,
    text: &'a str,
    /// `language`, `duration`, `segments` and `words`, as the route gives them.
    #[serde(flatten)]
    more: &'a Map,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Json>,
}

fn usage_json(usage: Usage) -> Option<Json> {
    let (input, output) = (usage.prompt_tokens.unwrap_or(0), usage.completion_tokens.unwrap_or(0));
    let total = input.saturating_add(output);
    let json = json!({ "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": total });
    usage.is_known().then_some(json)
}

fn write(route: &str, reply: &Reply, format: Format, purpose: Purpose) -> Result<Vec<u8>, ApiError> {
    let (text, usage) = (&*reply.content, usage_json(reply.usage));
    match format {
        Format::Json => written(&TranscriptJson { text, usage }),
        Format::Verbose => written(&VerboseJson { task: purpose.as_str(), text, more: &reply.more, usage }),
        Format::Text => Ok(text.as_bytes().to_vec()),
        Format::Srt => Ok(subtitles::srt(&segments(route, reply)?).into_bytes()),
        Format::Vtt => Ok(subtitles::vtt(&segments(route, reply)?).into_bytes()),
    }
}

fn segments(route: &str, reply: &Reply) -> Result<Vec<Segment>, ApiError> {
    let Some(segments) = reply.more.get("segments") else {
        return Err(invalid("this model says no times: `response_format` must be json or text"));
    };
    segments
        .deserialize()
        .map_err(|_| bad_answer(route, "other `segments`", "a list of objects with `start`, `end` and `text`"))
}

struct TranscriptEvents {
    pieces: ChoicePieces,
    /// The last event has all of it.
    text: String,
    /// Pays for the text.
    held_bytes: HeldBytes,
    usage: Usage,
    client: LocalClient,
    deadline: Deadline,
}

impl EventSource for TranscriptEvents {
    type Item = Piece;

    async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        self.pieces.next().await
    }

    fn bytes(piece: &Piece) -> usize {
        piece.reply.bytes()
    }

    async fn event(&mut self, Piece { reply, end, .. }: Piece) -> Result<Bytes, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        budget.charge_outcome(reply.bytes())?;
        self.usage = reply.usage.or(self.usage);
        let delta = reply.content;
        if !self.held_bytes.try_grow(delta.len() as u64) {
            return Err(ApiError::new(ErrorKind::Overloaded, "there is no room for the text until now"));
        }
        self.text.push_str(&delta);
        let done = end.map(|_| (std::mem::take(&mut self.text), usage_json(self.usage)));
        let bytes = delta.len() + done.as_ref().map_or(0, |(text, _)| text.len());
        // The texts, the data of an event, and the events.
        budget.charge_outcome(bytes.saturating_mul(3))?;
        let write = move || {
            let mut out = respond::room_for(bytes);
            if !delta.is_empty() {
                respond::push_event(&mut out, None, &json!({ "type": "transcript.text.delta", "delta": delta }))?;
            }
            if let Some((text, usage)) = &done {
                let mut done = json!({ "type": "transcript.text.done", "text": text });
                if let Some(usage) = usage {
                    done["usage"] = usage.clone();
                }
                respond::push_event(&mut out, None, &done)?;
            }
            Ok::<_, ApiError>(out)
        };
        let written = budget.run_outcome(bytes, write).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&error::body(error)).into()
    }
}
