//! The engine that computes a model, behind a trait, so that another engine can replace rten.
//!
//! An engine takes tensors of its own dtypes; other dtypes are converted before the call. It does not know batches,
//! items or callers. All replicas of a stage share it, so the weights are in memory once.

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

    /// The dtype in which this engine computes a declared one: the same, one that holds the same numbers, or `None`.
    fn dtype(&self, declared: DType) -> Option<DType>;

    /// Computes the outputs.
    ///
    /// # Errors
    ///
    /// The model refused these inputs.
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
        // The message becomes one line, for log lines and problem documents.
        let message = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self { engine, message }
    }
}
