//! Decompresses a message that is in memory as a whole.

use bytes::Bytes;
use callboard_codec::Account as _;
use callboard_core::edge::HeldBytes;

use super::decompressor::STEP_INPUT_BYTES;
use super::{ContentCoding, Decompressor};
use crate::error::ApiError;
use crate::request::body_buffer::BodyBuffer;
use crate::runtime::coop;

/// State and buffers of a decoder of gzip or deflate.
const DECODER_BYTES: usize = 128 * 1024;

/// Decompresses a message in small steps, each of which is charged to `held`. Other tasks run in between.
///
/// # Errors
///
/// 413 beyond `max_bytes`, 429 without room, 400 if the message is not of this coding.
pub async fn unpacked(
    coding: ContentCoding,
    packed: Bytes,
    max_bytes: u64,
    held: &HeldBytes,
) -> Result<Bytes, ApiError> {
    held.grow(DECODER_BYTES as u64)?;
    let mut decoder = Decompressor::new(coding)?;
    decoder.push(packed);
    let mut whole: Option<BodyBuffer> = None;
    let mut is_over = false;
    while !is_over {
        let step = match decoder.step()? {
            Some(step) => step,
            None => {
                is_over = true;
                decoder.finish()?
            }
        };
        let unpacked_bytes = whole.as_ref().map_or(0, BodyBuffer::received) + step.len() as u64;
        if unpacked_bytes > max_bytes {
            return Err(ApiError::body_too_large(max_bytes));
        }
        held.grow(step.len() as u64)?;
        coop::moved(step.len().max(STEP_INPUT_BYTES)).await;
        match &mut whole {
            Some(whole) => whole.push(step).await,
            none => *none = Some(BodyBuffer::new(None, step)),
        }
    }
    drop(decoder);
    held.refund(DECODER_BYTES);
    let Some(whole) = whole else { return Ok(Bytes::new()) };
    // While the pieces are joined, the memory holds the message twice.
    let joined = whole.copies_at_end();
    held.grow(joined)?;
    let whole = whole.finish().await;
    held.refund(usize::try_from(joined).unwrap_or(usize::MAX));
    Ok(whole)
}
