//! Decoding and encoding, off the runtime's threads when there is much of it.
//!
//! A body of megabytes takes milliseconds to parse, in which its thread would answer nobody else. Below
//! [`LARGE_BYTES`] handing the work over would take longer than doing it.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Payload};
use callboard_core::Route;
use tokio::task::spawn_blocking;

use crate::error::ApiError;

/// About a millisecond of JSON.
const LARGE_BYTES: usize = 256 * 1024;

/// The payload that these bytes mean to `route`.
pub(crate) async fn decode(
    route: &Arc<Route>,
    format: Format,
    bytes: Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, ApiError> {
    if bytes.len() < LARGE_BYTES {
        return Ok(route.input().decode(format, &bytes, limits)?);
    }
    let (route, limits) = (Arc::clone(route), limits.clone());
    let decoding = spawn_blocking(move || route.input().decode(format, &bytes, &limits));
    Ok(decoding.await.map_err(|_| ApiError::panicked())??)
}

/// The bytes of an answer.
pub(crate) async fn encode(payload: Payload, format: Format) -> Result<Bytes, ApiError> {
    let encoded = if payload.size_hint() < LARGE_BYTES {
        payload.encode(format)
    } else {
        spawn_blocking(move || payload.encode(format)).await.map_err(|_| ApiError::panicked())?
    };
    encoded.map_err(ApiError::unencodable)
}
