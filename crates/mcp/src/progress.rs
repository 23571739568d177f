//! A streamed call as server-sent events: a notification for each output, then the answer.
//!
//! * **Begun:** a call that fails at once is answered without a stream.
//! * **Broken:** an error is the answer, the last event. A stream never ends without one.
//! * **Cancelled:** dropping the body drops the call.

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_core::ErrorKind;
use callboard_core::edge::LARGE_BYTES;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, EventSource, RequestContext, RequestId, event_bytes, events};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::answer::{Asked, written};
use crate::piece::{Piece, PieceReader, Report};
use crate::replies::Replies;
use crate::rpc;

#[derive(Serialize)]
struct ProgressJson<'a> {
    #[serde(rename = "progressToken")]
    token: &'a RawValue,
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// The outputs of one call.
struct Outputs {
    replies: Replies,
    reader: PieceReader,
    asked: Asked,
    token: Box<RawValue>,
    request_id: RequestId,
    pieces: Vec<Piece>,
    /// Whether the last output was read.
    is_over: bool,
}

pub(crate) async fn respond(
    context: &RequestContext<'_>,
    asked: Asked,
    replies: Replies,
    reader: PieceReader,
    token: Box<RawValue>,
) -> Result<Response, ApiError> {
    let (request_id, route) = (context.id.clone(), reader.route.name().to_owned());
    let outputs = Outputs { replies, reader, asked, token, request_id, pieces: Vec::new(), is_over: false };
    events(context, &route, context.start, outputs).await
}

impl EventSource for Outputs {
    /// `None` is the end, which the answer follows.
    type Item = Option<Payload>;

    async fn next(&mut self) -> Option<Result<Option<Payload>, ApiError>> {
        if self.is_over {
            return None;
        }
        match self.replies.next().await {
            Some(reply) => Some(reply.map(Some)),
            None => {
                self.is_over = true;
                Some(Ok(None))
            }
        }
    }

    /// The answer has all outputs once more.
    fn bytes(item: &Option<Payload>) -> usize {
        item.as_ref().map_or(LARGE_BYTES, |payload| payload.size_up_to(LARGE_BYTES))
    }

    async fn event(&mut self, item: Option<Payload>) -> Result<Bytes, ApiError> {
        let Some(payload) = item else {
            let answer = written(&self.asked, std::mem::take(&mut self.pieces), &self.reader).await?;
            return Ok(event_bytes(&answer).into());
        };
        let piece = self.reader.read(payload).await?;
        let event = self.progress(&piece)?;
        self.pieces.push(piece);
        Ok(event)
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event_bytes(&self.asked.failure(error, self.request_id.as_str())).into()
    }
}

impl Outputs {
    /// The notification of an output: what a report says, or the count of outputs and the text of this one.
    fn progress(&self, piece: &Piece) -> Result<Bytes, ApiError> {
        let count = (self.pieces.len() + 1) as f64;
        let (progress, total, message) = match piece {
            // Null is nothing to tell, and a comment is ignored.
            Piece::Nothing => return Ok(Bytes::from_static(b":\n\n")),
            Piece::Report(Report { progress, total, message }) => (*progress, *total, message.as_deref()),
            Piece::Text(text) => (count, None, Some(&**text)),
            Piece::Json(json) => (count, None, std::str::from_utf8(json).ok()),
            Piece::File { .. } => (count, None, None),
        };
        let params = ProgressJson { token: &self.token, progress, total, message };
        let unwritten = |error| ApiError::new(ErrorKind::Internal, format!("no JSON: {error}"));
        let notification = rpc::notification("notifications/progress", params).map_err(unwritten)?;
        Ok(event_bytes(&notification).into())
    }
}
