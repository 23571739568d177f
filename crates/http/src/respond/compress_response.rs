//! Pages and other answers that are written whole, packed as their clients like it: as what a route answers.
//!
//! Metrics, documents and statistics are texts of up to megabytes, asked for by machines every few seconds. They are
//! packed a piece at a time, so that other requests of the same thread get their turn between two pieces.

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::response::Response;

use super::ResponseCompression;
use super::compressor::Compressor;
use crate::request::coding::Compressibility;

/// Packed in well under a millisecond.
const PIECE_BYTES: usize = 64 * 1024;

/// The same answer, packed where that is worth it and asked for.
pub async fn compressed(response: Response, packing: &ResponseCompression) -> Response {
    let Some(length) = length_of_text(&response) else { return response };
    let coding = packing.of_bytes(Compressibility::Text, length);
    let (mut head, body) = response.into_parts();
    packing.mark(coding, length, &mut head.headers);
    let Some(coding) = coding else { return Response::from_parts(head, body) };
    head.headers.remove(CONTENT_LENGTH);
    // In one piece already, so that nothing is waited for and nothing can fail.
    let bytes = to_bytes(body, length).await.unwrap_or_default();
    let body = async {
        let mut packer = Compressor::new(coding)?;
        let mut packed = Vec::new();
        for piece in bytes.chunks(PIECE_BYTES) {
            packed.extend_from_slice(&packer.piece(piece)?);
            tokio::task::yield_now().await;
        }
        packed.extend_from_slice(&packer.finish()?);
        std::io::Result::Ok(packed)
    };
    match body.await {
        Ok(packed) => Response::from_parts(head, Body::from(packed)),
        Err(_) => {
            head.headers.remove(CONTENT_ENCODING);
            Response::from_parts(head, Body::from(bytes))
        }
    }
}

/// How long an answer is that is a text, whole, and not packed or decided about yet.
fn length_of_text(response: &Response) -> Option<usize> {
    let headers = response.headers();
    if headers.contains_key(CONTENT_ENCODING) || headers.contains_key(VARY) {
        return None;
    }
    let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let is_text = ["application/json", "text/", "application/openmetrics-text", "image/svg"];
    is_text.iter().any(|kind| content_type.starts_with(kind)).then_some(())?;
    usize::try_from(response.body().size_hint().exact()?).ok()
}
