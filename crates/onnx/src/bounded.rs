//! Runs of a model at its start, each within the timeout of its stage.
//!
//! * **Late:** the thread is abandoned with the model, and ends when the run does.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Why a run at the start has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// Longer than the timeout of the stage. Remedy: a longer `timeout`, or another model: some never end.
    #[error("a run at its start took longer than timeout = {0:?}")]
    Late(Duration),
    /// The engine panicked. The panic is in the log.
    #[error("a run at its start panicked")]
    Panicked,
    /// The system has no thread for it.
    #[error("no thread for a run at its start: {0}")]
    Thread(#[from] io::Error),
}

/// The result of `run` with `model`, if it comes in time.
pub(crate) fn within<M: Send + 'static, T: Send + 'static>(
    limit: Option<Duration>,
    model: M,
    run: impl FnOnce(M) -> T + Send + 'static,
) -> Result<T, TrialError> {
    let Some(limit) = limit else { return Ok(run(model)) };
    let (sender, done) = channel();
    // The caller may be gone.
    thread::Builder::new().name("onnx-start".to_owned()).spawn(move || drop(sender.send(run(model))))?;
    done.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => TrialError::Late(limit),
        RecvTimeoutError::Disconnected => TrialError::Panicked,
    })
}
