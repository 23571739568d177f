//! Compresses whole responses that are not from a route: pages and statistics.
//!
//! Metrics, documents and statistics are texts of up to megabytes, which machines request every few seconds. They are
//! compressed piece by piece, so that other tasks of the thread run in between.

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::response::Response;

use super::ResponseCompression;
use super::compressor::Compressor;
use crate::request::coding::Compressibility;

/// Compressed in well under a millisecond.
const PIECE_BYTES: usize = 64 * 1024;

/// The same response, compressed if it is worth it and the client allows it.
pub async fn compressed(response: Response, compression: &ResponseCompression) -> Response {
    let Some(length) = length_of_text(&response) else { return response };
    let coding = compression.for_bytes(Compressibility::Text, length);
    let (mut head, body) = response.into_parts();
    compression.mark(coding, length, &mut head.headers);
    let Some(coding) = coding else { return Response::from_parts(head, body) };
    head.headers.remove(CONTENT_LENGTH);
    // The body is one piece already: nothing waits and nothing fails.
    let bytes = to_bytes(body, length).await.unwrap_or_default();
    let body = async {
        let mut compressor = Compressor::new(coding)?;
        let mut compressed_bytes = Vec::new();
        for piece in bytes.chunks(PIECE_BYTES) {
            compressed_bytes.extend_from_slice(&compressor.piece(piece)?);
            tokio::task::yield_now().await;
        }
        compressed_bytes.extend_from_slice(&compressor.finish()?);
        std::io::Result::Ok(compressed_bytes)
    };
    match body.await {
        Ok(compressed_bytes) => Response::from_parts(head, Body::from(compressed_bytes)),
        Err(_) => {
            head.headers.remove(CONTENT_ENCODING);
            Response::from_parts(head, Body::from(bytes))
        }
    }
}

/// The length of a text that is whole, and not compressed or negotiated yet.
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
