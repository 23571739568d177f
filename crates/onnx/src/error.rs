//! Why a model could not be loaded. An item that a running model refuses is a [`Failure`](callboard_core::Failure).

use std::io;
use std::path::PathBuf;

use callboard_codec::DType;

use crate::engine::EngineError;
use crate::signature::SignatureError;

/// Why a model could not be loaded. `Display` names the file, `source()` says what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is missing or cannot be read.
    #[error("cannot read model {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Larger than a protobuf message may be. Remedy: export with the weights in a file of their own (external data).
    #[error("model {} is larger than {max_bytes} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        max_bytes: u64,
    },
    /// The signature of the model cannot be read.
    #[error("cannot use model {}", path.display())]
    Signature {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: SignatureError,
    },
    /// The engine cannot load it, most often because it lacks an operator.
    #[error("cannot use model {}", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// The error of the engine.
        source: EngineError,
    },
    /// An input or output of a dtype that the engine has not and cannot replace.
    #[error("cannot use model {}: {engine} does not compute in {dtype}, the type of `{tensor}`", path.display())]
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The engine.
        engine: &'static str,
        /// The input or output.
        tensor: String,
        /// Its dtype.
        dtype: DType,
    },
    /// The configuration says `batched = true`, but not every input and output has a free first axis.
    #[error("cannot use model {} as batched: {signature} has no batch axis", path.display())]
    NoBatchAxis {
        /// The file.
        path: PathBuf,
        /// The inputs and outputs of the model.
        signature: String,
    },
}
