//! Speech: one call of the route, whose bytes are the answer, whole or as events.
//!
//! * **Streamed:** with `stream_format: "sse"` each piece of a streaming route is an event. Without it the pieces are
//!   joined, so that a failure still has its status.
//! * **Broken:** an error before the first event has its status. A later one is the last event, without
//!   `speech.audio.done`.
//! * **Cancelled:** a client that leaves drops the response, which cancels the call.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use callboard_codec::{Payload, Value};
use callboard_core::edge::{LARGE_BYTES, PayloadReplies};
use callboard_core::{Deadline, LocalClient, Task};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, EdgeLife, EventSource, HeldBytes, SERVER_TIMING, caught_within, event_bytes, events, file_type_of,
    next_reply, total,
};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;

use crate::error::{self, bad_answer, invalid};
use crate::input::InputForm;
use crate::request::ModelRequest;
use crate::respond;

/// The formats of the API, and their media types.
const FORMATS: [(&str, &str); 6] = [
    ("mp3", "audio/mpeg"),
    ("opus", "audio/ogg"),
    ("aac", "audio/aac"),
    ("flac", "audio/flac"),
    ("wav", "audio/wav"),
    ("pcm", "audio/pcm"),
];

/// Answers `POST /v1/audio/speech`.
pub(crate) async fn speak(mut request: ModelRequest<'_>) -> Result<Response, ApiError> {
    let is_streamed = match request.fields.get("stream_format") {
        None | Some(Value::Null) => false,
        Some(Value::Str(format)) if format == "audio" => false,
        Some(Value::Str(format)) if format == "sse" => true,
        Some(_) => return Err(invalid("`stream_format` must be \"audio\" or \"sse\"")),
    };
    let format = format_of(&request)?;
    let text = match request.take("input")? {
        text @ Value::Str(_) => text,
        other => return Err(invalid(format!("`input` must be a text, not {}", other.kind()))),
    };
    let route = Arc::clone(&request.route);
    let input = InputForm::of(Task::Speak, route.input().schema()).input(Task::Speak, text, &request.fields);
    let (admission, payload) = request.admit(input).await?;
    let mut sound = Sound {
        replies: request.context.client.edge().submit_streaming(admission, payload, request.options.clone()),
        life: Arc::clone(request.context.life),
        reader: SoundReader {
            client: request.context.client.clone(),
            route: route.name().into(),
            deadline: request.deadline,
            panics: request.context.metrics.requests.panics.clone(),
        },
        _account: Arc::clone(&request.account),
    };
    if is_streamed {
        return events(&request.context, route.name(), request.context.start, sound).await;
    }
    let (budget, mut whole) = (request.budget(), BytesMut::new());
    while let Some(piece) = EventSource::next(&mut sound).await {
        let piece = piece?;
        budget.charge_outcome(piece.len())?;
        whole.extend_from_slice(&piece);
    }
    let whole = whole.freeze();
    budget.settle(whole.len())?;
    let media_type = file_type_of(&whole).or(format).unwrap_or("application/octet-stream");
    let mut response = Response::new(Body::from(budget.charged(whole)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

/// The media type that the client asks for.
fn format_of(request: &ModelRequest<'_>) -> Result<Option<&'static str>, ApiError> {
    let asked = match request.fields.get("response_format") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Str(asked)) => asked.as_str(),
        Some(other) => return Err(invalid(format!("`response_format` must be a text, not {}", other.kind()))),
    };
    // Others are the route's affair.
    Ok(FORMATS.iter().find(|(name, _)| *name == asked).map(|(_, media_type)| *media_type))
}

/// The pieces of one sound.
struct Sound {
    replies: PayloadReplies,
    life: Arc<EdgeLife>,
    reader: SoundReader,
    /// Pays for the input, as long as the call may wait.
    _account: Arc<HeldBytes>,
}

/// Reads the outputs of a route.
struct SoundReader {
    client: LocalClient,
    route: Arc<str>,
    deadline: Deadline,
    /// Counts panics of user code in codecs.
    panics: Counter,
}

impl SoundReader {
    /// The bytes of an output, at the expense of an account of its own; a large one is read off the runtime.
    async fn read(&self, payload: Payload) -> Result<Bytes, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let (bytes, route) = (payload.size_up_to(LARGE_BYTES), Arc::clone(&self.route));
        let read = move || match payload.to_value().map_err(ApiError::unencodable)? {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Null => Ok(Bytes::new()),
            other => Err(bad_answer(&route, other.kind(), "bytes")),
        };
        caught_within(&self.panics, Box::pin(budget.run_outcome(bytes, read))).await?
    }
}

impl EventSource for Sound {
    type Item = Bytes;

    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        match next_reply(&mut self.replies, &self.life).await? {
            Ok(payload) => Some(self.reader.read(payload).await),
            Err(error) => Some(Err(error)),
        }
    }

    fn bytes(piece: &Bytes) -> usize {
        piece.len()
    }

    async fn event(&mut self, piece: Bytes) -> Result<Bytes, ApiError> {
        let edge = self.reader.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.reader.deadline);
        let bytes = piece.len();
        // The piece; in base64, a third longer, as a text, as data, and as an event.
        budget.charge_outcome(bytes.saturating_mul(5))?;
        let write = move || {
            let (audio, mut out) = (STANDARD.encode(&piece), respond::room_for(bytes.div_ceil(3).saturating_mul(4)));
            let data = json!({ "type": "speech.audio.delta", "audio": audio });
            respond::push_event(&mut out, None, &data).map(|()| out)
        };
        let written = budget.run_outcome(bytes, write).await??;
        budget.settle(written.len())?;
        Ok(budget.charged(written.into()))
    }

    fn end(&mut self) -> Option<Bytes> {
        // The tokens of a sound are not counted; clients demand the field.
        let usage = json!({ "input_tokens": 0, "output_tokens": 0, "total_tokens": 0 });
        let mut out = Vec::new();
        // Numbers can always be written.
        let _ = respond::push_event(&mut out, None, &json!({ "type": "speech.audio.done", "usage": usage }));
        Some(out.into())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&error::body(error)).into()
    }
}
