//! The knobs of an ONNX stage.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::Deserialize;

/// How a model is loaded and run. In `callboard.toml` these are the keys of a stage of kind `onnx`.
///
/// Batching itself is the stage's: `max_batch_size`, `max_delay`, `replicas`, `queue`. Replicas share the weights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OnnxConfig {
    /// The `.onnx` file. Weights in files beside it (`.onnx.data`) are found by their names. Required.
    pub model: PathBuf,

    /// Threads that compute this model, for all its replicas together. By default all models of the process share one
    /// pool with a thread per physical core; with a number this model gets a pool of its own, so that a large model
    /// cannot starve its neighbours. More replicas than threads wait for each other.
    #[serde(default)]
    pub threads: Option<NonZeroUsize>,

    /// Whether the first axis of inputs and outputs is the batch. By default the declared shapes decide, see
    /// [`BatchAxis`](crate::BatchAxis). Say `false` for a model whose first axis has any length but is no batch, such
    /// as the length of a text; `true` makes it an error if the shapes do not allow it.
    #[serde(default)]
    pub batched: Option<bool>,
}

impl OnnxConfig {
    /// The defaults, for this file.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self { model: model.into(), threads: None, batched: None }
    }
}
