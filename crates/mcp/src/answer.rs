//! The result of a tool, or the error in its place.
//!
//! A failed call is a result with `isError`, which the model reads and may correct itself by. `answered` is the one
//! place that decides so by the kind of an error.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use callboard_core::ErrorKind;
use callboard_core::edge::ErrorOrigin;
use callboard_http::protocol::ApiError;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::era::Era;
use crate::piece::{Piece, PieceReader};
use crate::rpc::{self, INTERNAL_ERROR, INVALID_PARAMS, Id, RpcError};

/// How the error of a call reaches its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// As a result with `isError`.
    Result,
    /// As an error of JSON-RPC with this code.
    Error(i32),
    /// By the status of HTTP.
    Status,
}

/// By the kind of the error.
pub(crate) fn answered(kind: ErrorKind) -> Answered {
    match kind.row().origin {
        ErrorOrigin::Request if kind != ErrorKind::InvalidInput => Answered::Status,
        // The tool was removed since it was found.
        ErrorOrigin::Route => Answered::Error(INVALID_PARAMS),
        ErrorOrigin::Framework => Answered::Error(INTERNAL_ERROR),
        ErrorOrigin::Request
        | ErrorOrigin::Load
        | ErrorOrigin::Caller
        | ErrorOrigin::Code
        | ErrorOrigin::Service
        | ErrorOrigin::Time => Answered::Result,
    }
}

/// The request that an answer is for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) id: Id,
    pub(crate) era: Era,
}

#[derive(Serialize)]
struct ToolResultJson<'a> {
    #[serde(rename = "resultType", skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    content: Vec<ContentJson<'a>>,
    #[serde(rename = "structuredContent", skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a RawValue>,
    #[serde(rename = "isError")]
    is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<FailureMetaJson<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ContentJson<'a> {
    Text {
        text: &'a str,
    },
    Image {
        data: String,
        #[serde(rename = "mimeType")]
        media_type: &'a str,
    },
    Audio {
        data: String,
        #[serde(rename = "mimeType")]
        media_type: &'a str,
    },
    Resource {
        resource: ResourceJson<'a>,
    },
}

#[derive(Serialize)]
struct ResourceJson<'a> {
    uri: &'static str,
    #[serde(rename = "mimeType")]
    media_type: &'a str,
    blob: String,
}

/// The error for programs.
#[derive(Serialize)]
struct FailureMetaJson<'a> {
    #[serde(rename = "callboard/error")]
    error: FailureFields<'a>,
}

#[derive(Serialize)]
struct FailureFields<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    request_id: &'a str,
}

/// The URI of a file that is a part of a result, and can be read nowhere else.
const OUTPUT: &str = "callboard:output";

impl Asked {
    /// The answer with the outputs of a call. Only that of a call with one output is structured content, too.
    ///
    /// # Errors
    ///
    /// An output is no JSON.
    pub(crate) fn result(&self, pieces: &[Piece], is_stream: bool) -> Result<Vec<u8>, ApiError> {
        let structured = match pieces {
            [piece] if !is_stream => self.structured(piece)?,
            _ => None,
        };
        let joined = joined(pieces);
        self.written(&ToolResultJson {
            result_type: self.result_type(),
            content: joined.iter().filter_map(Joined::content).collect(),
            structured_content: structured.as_deref(),
            is_error: false,
            meta: None,
        })
    }

    /// The output as JSON. Before 2026-07-28 it had to be an object.
    fn structured(&self, piece: &Piece) -> Result<Option<Box<RawValue>>, ApiError> {
        let is_any_allowed = self.era == Era::Stateless;
        match piece {
            Piece::Text(text) if is_any_allowed => to_raw_value(text).map(Some).map_err(unwritten),
            Piece::Json(json) if is_any_allowed || json.first() == Some(&b'{') => {
                serde_json::from_slice::<&RawValue>(json).map(|json| Some(json.to_owned())).map_err(unwritten)
            }
            _ => Ok(None),
        }
    }

    /// The answer to a call that failed: a result that says so.
    pub(crate) fn failure(&self, error: &ApiError, request_id: &str) -> Vec<u8> {
        if let Answered::Error(code) = answered(error.kind()) {
            return rpc::error(Some(&self.id), &RpcError::new(code, error.message()));
        }
        let wait = error.wait().map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
        let text = match wait {
            Some(wait) => format!("{}; try again in {:.1} s", error.message(), wait as f64 / 1000.0),
            None => error.message().to_owned(),
        };
        let fields = FailureFields {
            kind: error.kind().as_str(),
            error_type: error.error_type(),
            retryable: error.is_retryable(),
            retry_after_ms: wait,
            request_id,
        };
        let result = ToolResultJson {
            result_type: self.result_type(),
            content: vec![ContentJson::Text { text: &text }],
            structured_content: None,
            is_error: true,
            meta: Some(FailureMetaJson { error: fields }),
        };
        // Texts can always be written.
        self.written(&result).unwrap_or_default()
    }

    fn written(&self, result: &ToolResultJson<'_>) -> Result<Vec<u8>, ApiError> {
        rpc::result(&self.id, result).map_err(unwritten)
    }

    pub(crate) fn result_type(&self) -> Option<&'static str> {
        (self.era == Era::Stateless).then_some("complete")
    }
}

fn unwritten(error: serde_json::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the result cannot be written as JSON: {error}"))
}

/// The answer with these outputs, written at the expense of their account; of large ones off the runtime.
pub(crate) async fn written(asked: &Asked, pieces: Vec<Piece>, reader: &PieceReader) -> Result<Bytes, ApiError> {
    let budget = reader.client.edge().codec_budget(Arc::clone(&reader.account) as _, reader.deadline);
    let bytes = pieces.iter().map(Piece::bytes).fold(0, usize::saturating_add);
    budget.charge_outcome(bytes.saturating_mul(COPIES))?;
    let (asked, is_stream) = (asked.clone(), reader.route.streams());
    let written = budget.run_outcome(bytes, move || asked.result(&pieces, is_stream)).await??;
    budget.settle(written.len())?;
    Ok(budget.charged(written.into()))
}

/// Of an output while it is written: joined or in base64, as text in the answer, and as structured content.
const COPIES: usize = 4;

/// Outputs as content: texts that follow each other are one text.
enum Joined<'p> {
    Text(String),
    Other(&'p Piece),
}

fn joined(pieces: &[Piece]) -> Vec<Joined<'_>> {
    let mut joined = Vec::new();
    for piece in pieces {
        match (piece, joined.last_mut()) {
            (Piece::Nothing | Piece::Report(_), _) => {}
            (Piece::Text(text), Some(Joined::Text(before))) => before.push_str(text),
            (Piece::Text(text), _) => joined.push(Joined::Text(text.clone())),
            (other, _) => joined.push(Joined::Other(other)),
        }
    }
    joined
}

impl Joined<'_> {
    fn content(&self) -> Option<ContentJson<'_>> {
        Some(match self {
            Self::Text(text) => ContentJson::Text { text },
            // JSON is UTF-8.
            Self::Other(Piece::Json(json)) => ContentJson::Text { text: std::str::from_utf8(json).ok()? },
            Self::Other(Piece::File { bytes, media_type }) => {
                let data = STANDARD.encode(bytes);
                if media_type.starts_with("image/") {
                    ContentJson::Image { data, media_type }
                } else if media_type.starts_with("audio/") {
                    ContentJson::Audio { data, media_type }
                } else {
                    ContentJson::Resource { resource: ResourceJson { uri: OUTPUT, media_type, blob: data } }
                }
            }
            Self::Other(Piece::Nothing | Piece::Text(_) | Piece::Report(_)) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use callboard_core::CallError;
    use callboard_core::edge::ErrorParts;
    use serde_json::{Value as Json, json};

    use super::*;

    fn asked(era: Era) -> Asked {
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        Asked { id: rpc::read(&body).unwrap().id.unwrap(), era }
    }

    fn result(era: Era, pieces: &[Piece], is_stream: bool) -> Json {
        let answer = asked(era).result(pieces, is_stream).unwrap();
        serde_json::from_slice::<Json>(&answer).unwrap()["result"].take()
    }

    #[test]
    fn each_kind_of_error_reaches_the_client_in_its_own_way() {
        for kind in ErrorKind::ALL {
            let expected = match kind {
                ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => Answered::Status,
                ErrorKind::NotFound => Answered::Error(-32602),
                ErrorKind::Internal => Answered::Error(-32603),
                _ => Answered::Result,
            };
            assert_eq!(answered(kind), expected, "{kind}");
        }
    }

    #[test]
    fn an_output_is_text_and_structured_content() {
        let json = Piece::Json(Bytes::from_static(br#"{"a":1}"#));
        let expected = json!({
            "resultType": "complete", "content": [{ "type": "text", "text": "{\"a\":1}" }],
            "structuredContent": { "a": 1 }, "isError": false,
        });
        assert_eq!(result(Era::Stateless, &[json], false), expected);
        let list = [Piece::Json(Bytes::from_static(b"[1]"))];
        assert_eq!(result(Era::Stateless, &list, false)["structuredContent"], json!([1]));
        assert_eq!(
            result(Era::Handshake, &list, false),
            json!({ "content": [{ "type": "text", "text": "[1]" }], "isError": false })
        );
        let text = [Piece::Text("a".to_owned())];
        assert_eq!(result(Era::Stateless, &text, false)["structuredContent"], "a");
        assert_eq!(result(Era::Handshake, &text, false)["structuredContent"], Json::Null);
        assert_eq!(result(Era::Stateless, &[Piece::Nothing], false)["content"], json!([]));
    }

    #[test]
    fn outputs_of_a_stream_are_content_and_texts_are_joined() {
        let report = Piece::Report(crate::piece::Report { progress: 1.0, total: None, message: None });
        let file =
            |media_type: &str| Piece::File { bytes: Bytes::from_static(b"x"), media_type: media_type.to_owned() };
        let pieces = [
            Piece::Text("a ".to_owned()),
            report,
            Piece::Text("b".to_owned()),
            Piece::Json(Bytes::from_static(b"7")),
            file("image/png"),
            file("audio/wav"),
            file("application/pdf"),
        ];
        let result = result(Era::Stateless, &pieces, true);
        let blob = json!({ "uri": "callboard:output", "mimeType": "application/pdf", "blob": "eA==" });
        let expected = json!([
            { "type": "text", "text": "a b" },
            { "type": "text", "text": "7" },
            { "type": "image", "data": "eA==", "mimeType": "image/png" },
            { "type": "audio", "data": "eA==", "mimeType": "audio/wav" },
            { "type": "resource", "resource": blob },
        ]);
        assert_eq!((&result["content"], &result["structuredContent"]), (&expected, &Json::Null));
    }

    #[test]
    fn a_refusal_says_how_long_to_wait() {
        let wait = Some(Duration::from_millis(1_500));
        let parts = ErrorParts { retry_after: wait, ..ErrorParts::new(ErrorKind::Overloaded, "full") };
        let answer = asked(Era::Stateless).failure(&CallError::from(parts).into(), "r1");
        let answer: Json = serde_json::from_slice(&answer).unwrap();
        let result = &answer["result"];
        assert_eq!(result["content"][0]["text"], "full; try again in 1.5 s");
        let error = json!({ "kind": "overloaded", "retryable": true, "retry_after_ms": 1500, "request_id": "r1" });
        assert_eq!((&result["isError"], &result["_meta"]["callboard/error"]), (&json!(true), &error));
    }
}
