//! Decoding and encoding of users' values: large ones off the runtime's threads. A panic is the error of its call.
//!
//! A value of megabytes takes milliseconds, during which its thread would serve no other call. For the calls of a node
//! its [`CodecBudget`] does the work. For clients [`run`] does.

use callboard_codec::{EncodeError, Envelope, Payload};
use callboard_core::edge::{self, CodecBudget, LARGE_BYTES};
use callboard_core::{CallError, ErrorKind};
use futures_util::future::{Either, ready};

/// Encodes a payload for a peer, at the expense of its call on this node; on another thread if that is much.
///
/// # Errors
///
/// `internal`, with the message, if the user's `Serialize` panics; the inner error if it fails, or if there is no room.
pub(crate) async fn encode(
    payload: &Payload,
    budget: Option<CodecBudget<'_>>,
) -> Result<Result<Envelope, EncodeError>, CallError> {
    let shared = payload.clone();
    let encode = move || Ok(shared.to_envelope());
    match budget {
        // What it becomes is not known before.
        Some(budget) => budget.run((), 0, move || contain(&encode)).await.and_then(|((), encoded)| encoded),
        None => run(payload.size_up_to(LARGE_BYTES), encode).await,
    }
}

/// Does work on this number of bytes without a node.
///
/// # Errors
///
/// The work's own; `internal`, with the message, if it panics.
pub(crate) fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> impl Future<Output = Result<T, CallError>> + Send {
    let work = move || contain(work);
    if bytes < LARGE_BYTES {
        // Small work is done before the first poll, so that its input is not moved into a future.
        return Either::Left(ready(work()));
    }
    // Boxed, so that the rare large future does not enlarge the future of every call.
    Either::Right(Box::pin(async move { edge::run_without_node(work).await? }))
}

/// Turns a panic of user code into the error of its call.
pub(crate) fn contain<T>(work: impl FnOnce() -> Result<T, CallError>) -> Result<T, CallError> {
    edge::contain(work).unwrap_or_else(|panic| {
        Err(CallError::new(ErrorKind::Internal, format!("a value could not be read or written: {panic}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_error_of_its_call_wherever_it_happens() {
        for bytes in [0, LARGE_BYTES] {
            let error = run::<()>(bytes, || panic!("no such number")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.message().ends_with("no such number"), "{error}");
        }
        assert_eq!(run(LARGE_BYTES, || Ok(7)).await.unwrap(), 7);
    }
}
