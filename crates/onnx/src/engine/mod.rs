//! What computes a model: a small seam, so that another engine can take rten's place.
//!
//! An engine knows tensors of the dtypes that it computes in, and nothing of batches, items or callers; what is
//! declared otherwise is converted before it is called. It is shared by all replicas of a stage: the weights are in
//! memory once.

mod rten;

use std::fmt;

use callboard_codec::{DType, Tensor};

pub(crate) use self::rten::RtenEngine;

/// Runs one loaded model.
///
/// # Contract
///
/// * [`run`](Self::run) is called from several threads at once. It takes the inputs in the order of the signature, each
///   of the dtype that [`dtype`](Self::dtype) gives for the declared one, and returns the outputs in the order of the
///   signature, likewise.
/// * The same inputs give the same outputs, and a run leaves nothing behind: stages are idempotent because engines are.
/// * Shapes are checked against the signature by the caller. Whatever else a model may object to is an [`EngineError`].
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// The engine's name, for people.
    fn name(&self) -> &'static str;

    /// The dtype that this engine computes a declared one in: itself, one that holds the same numbers, or `None` when
    /// there is neither.
    fn dtype(&self, declared: DType) -> Option<DType>;

    /// Computes the outputs.
    ///
    /// # Errors
    ///
    /// What the model had against these inputs.
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError>;
}

/// Why an engine could not load or run a model, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine}: {message}")]
pub struct EngineError {
    engine: &'static str,
    message: String,
}

impl EngineError {
    /// An error of the engine of that name.
    #[must_use]
    pub fn new(engine: &'static str, message: impl fmt::Display) -> Self {
        // One line, whatever the engine wrote: it ends up in a log line or a problem document.
        let message = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self { engine, message }
    }
}
