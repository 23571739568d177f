//! The engines that compute a model, behind one trait: ONNX Runtime where it is installed, and rten, which is embedded.
//!
//! An engine takes tensors of its own dtypes; other dtypes are converted before the call. It does not know batches,
//! items or callers. All replicas of a stage share it, so the weights are in memory once.

pub(crate) mod onnxruntime;
pub(crate) mod rten;
mod rten_unsupported;

use std::fmt;

use callboard_codec::{DType, Value};

pub use self::onnxruntime::LibraryError;

/// Runs one loaded model.
///
/// # Contract
///
/// * [`run`](Self::run) is called from several threads at once. It takes the inputs in the order of the signature and
///   returns the outputs in the order of the signature: tensors, each of the dtype that [`dtype`](Self::dtype) gives
///   for the declared one; if it [goes beyond numbers](Self::goes_beyond_numbers) also arrays of texts, lists for
///   sequences and maps.
/// * The same inputs give the same outputs, and a run leaves nothing behind: stages are idempotent because engines are.
/// * The caller checks shapes against the signature. Every other objection of a model is an [`EngineError`].
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// The engine's name, for people.
    fn name(&self) -> &'static str;

    /// The name with what matters to an operator, such as threads and devices. Default: the name.
    fn description(&self) -> String {
        self.name().to_owned()
    }

    /// The dtype in which this engine computes a declared one: the same, another with the same numbers, or `None`.
    fn dtype(&self, declared: DType) -> Option<DType>;

    /// Whether it takes and gives texts, sequences and maps.
    fn goes_beyond_numbers(&self) -> bool {
        false
    }

    /// Computes the outputs.
    ///
    /// # Errors
    ///
    /// The model refused these inputs.
    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError>;
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

    /// Adds that ONNX Runtime can run what this engine cannot.
    pub(crate) fn or_onnx_runtime(mut self) -> Self {
        self.message +=
            "; engine \"onnxruntime\" runs every model of the format: `pip install onnxruntime`, or name its `library`";
        self
    }
}
