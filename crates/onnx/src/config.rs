//! The knobs of an ONNX stage.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer};

/// How a model is loaded and run. In `callboard.toml` these are the keys of a stage of kind `onnx`.
///
/// Batching itself is the stage's: `max_batch_size` (32 by default if the model has a batch axis), `max_delay`,
/// `replicas`, `queue`. Replicas share the weights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnnxConfig {
    /// The `.onnx` file. Weights in separate files (`.onnx.data`) are found by their names. Required.
    pub model: PathBuf,

    /// Threads that compute this model, for all its replicas together. By default all models of the process share one
    /// pool with a thread per physical core; with a number this model gets a pool of its own, so that a large model
    /// cannot starve its neighbours. More replicas than threads wait for each other. At most 1,024.
    #[serde(default, deserialize_with = "threads")]
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

/// A larger pool would take longer to start than any model to run.
const MAX_THREADS: usize = 1024;

fn threads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZeroUsize>, D::Error> {
    let threads = NonZeroUsize::deserialize(deserializer)?;
    if threads.get() > MAX_THREADS {
        let (found, expected) = (Unexpected::Unsigned(threads.get() as u64), format!("at most {MAX_THREADS} threads"));
        return Err(D::Error::invalid_value(found, &expected.as_str()));
    }
    Ok(Some(threads))
}
