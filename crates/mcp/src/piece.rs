//! One output of a route, as a part of a tool's result: a text, JSON, a file, or how far the work is.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{Format, Media, Payload, Value};
use callboard_core::edge::{LARGE_BYTES, Route};
use callboard_core::{CallError, Deadline, LocalClient};
use callboard_http::protocol::{ApiError, HeldBytes, caught_within, file_type_of};
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};

/// A longer JSON is no report.
const MAX_REPORT_BYTES: usize = 4096;

/// The memory of a piece beside its text.
const PIECE_BYTES: usize = 64;

#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Null.
    Nothing,
    Text(String),
    Json(Bytes),
    File {
        bytes: Bytes,
        media_type: String,
    },
    /// Of a stream: how far the work is. It is no part of the result.
    Report(Report),
}

/// An output that is `{"progress": 3, "total": 7, "message": "…"}`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    pub(crate) progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

impl Piece {
    pub(crate) fn bytes(&self) -> usize {
        let content = match self {
            Self::Nothing | Self::Report(_) => 0,
            Self::Text(text) => text.len(),
            Self::Json(json) => json.len(),
            Self::File { bytes, .. } => bytes.len(),
        };
        content.saturating_add(PIECE_BYTES)
    }
}

/// Reads the outputs of a route at the expense of an account of their own, which pays until the result is sent.
#[derive(Debug)]
pub(crate) struct PieceReader {
    pub(crate) client: LocalClient,
    pub(crate) route: Arc<Route>,
    pub(crate) deadline: Deadline,
    /// Counts panics of user code in codecs.
    pub(crate) panics: Counter,
    pub(crate) account: Arc<HeldBytes>,
}

impl PieceReader {
    /// One output; a large one is read off the runtime. A panic of user code is its error.
    ///
    /// # Errors
    ///
    /// The output has no form in JSON, or the node has no room for it.
    pub(crate) async fn read(&self, payload: Payload) -> Result<Piece, ApiError> {
        let budget = self.client.edge().codec_budget(Arc::clone(&self.account) as _, self.deadline);
        let (route, bytes) = (Arc::clone(&self.route), payload.size_up_to(LARGE_BYTES));
        let read = move || piece(&payload, &route);
        let reading = async {
            let piece = budget.run_outcome(bytes, read).await??;
            // Texts and files are copied or shared without the account of the encoder.
            budget.charge_outcome(piece.bytes())?;
            Ok::<_, ApiError>(piece)
        };
        caught_within(&self.panics, Box::pin(reading)).await
    }
}

fn piece(payload: &Payload, route: &Route) -> Result<Piece, ApiError> {
    let file = |bytes: &Bytes| {
        let declared = route.output().schema()["contentMediaType"].as_str();
        let media_type = file_type_of(bytes).or(declared).unwrap_or("application/octet-stream").to_owned();
        Piece::File { bytes: bytes.clone(), media_type }
    };
    if let Some(text) = payload.downcast_ref::<String>() {
        return Ok(Piece::Text(text.clone()));
    }
    if let Some(media) = payload.downcast_ref::<Media>() {
        return Ok(file(media.bytes()));
    }
    match payload.value().map_err(|error| ApiError::from(CallError::from(error)))? {
        Some(Value::Null) => return Ok(Piece::Nothing),
        Some(Value::Str(text)) => return Ok(Piece::Text(text.clone())),
        Some(Value::Bytes(bytes)) => return Ok(file(bytes)),
        _ => {}
    }
    let json = payload.encode(Format::Json).map_err(ApiError::unencodable)?;
    if &*json == b"null" {
        return Ok(Piece::Nothing);
    }
    let report = (route.streams() && json.len() <= MAX_REPORT_BYTES).then(|| serde_json::from_slice(&json).ok());
    Ok(report.flatten().map_or(Piece::Json(json), Piece::Report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_nothing_but_progress() {
        let read = |json: &str| serde_json::from_str::<Report>(json).ok();
        assert_eq!(read(r#"{"progress":1}"#), Some(Report { progress: 1.0, total: None, message: None }));
        assert!(read(r#"{"progress":1,"total":2,"message":"a"}"#).is_some());
        for other in [r#"{"progress":1,"more":2}"#, r#"{"progress":"1"}"#, r#"{"total":1}"#, "[1]", "3"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
