//! Short bodies of requests that are not calls and take no permit, with their own limits of size (413) and time (408).

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use callboard_core::edge::TooSlow;
use tokio::time::timeout;

use super::body::RequestBody;
use crate::error::ApiError;

/// Room for any such body.
const MAX_BODY_BYTES: u64 = 64 * 1024;

/// Reads the whole body within this time.
///
/// # Errors
///
/// The body is too long, too slow or broken.
pub async fn short_body<B: RequestBody>(mut body: B, limit: Duration) -> Result<Bytes, ApiError> {
    let reading = async {
        let mut whole = BytesMut::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| ApiError::broken_body(&*error.into()))?;
            let Ok(chunk) = frame.into_data() else { continue };
            if (whole.len() + chunk.len()) as u64 > MAX_BODY_BYTES {
                return Err(ApiError::body_too_large(MAX_BODY_BYTES));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    };
    timeout(limit, reading).await.map_err(|_| TooSlow::OutOfTime { limit })?
}
