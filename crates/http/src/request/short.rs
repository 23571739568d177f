//! Bodies of a few words, which are no calls and take no permits: within limits of size (413) and time (408) that are their own.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use super::body::RequestBody;
use crate::error::ApiError;

/// A few words, and what somebody may have put around them.
const MAX_BODY_BYTES: u64 = 64 * 1024;

/// The whole body, which has this much time.
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
    timeout(limit, reading).await.map_err(|_| ApiError::body_out_of_time(limit))?
}
