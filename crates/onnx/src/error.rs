//! Why a model could not be loaded. An item that a running model refuses is a [`Failure`](callboard_core::Failure).

use std::io;
use std::path::PathBuf;

pub use crate::bounded::TrialError;
use crate::engine::{EngineError, LibraryError};
use crate::signature::{Kind, PadError, SignatureError};

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
    /// Its trial at the start did not end within the timeout of its stage.
    #[error("cannot use model {}", path.display())]
    Trial {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: TrialError,
    },
    /// There is no ONNX Runtime, or none that works, and the configuration asks for it.
    #[error("cannot use model {}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: LibraryError,
    },
    /// A key of the other engine, which would have no effect.
    #[error("cannot use model {}: `{key}` is for the engine \"onnxruntime\", not for \"rten\"", path.display())]
    UnusedKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// An input or output of a type that the engine has not and cannot replace. Remedy: install ONNX Runtime.
    #[error(
        "cannot use model {}: {engine} does not compute in {kind}, the type of `{tensor}`; ONNX Runtime does",
        path.display()
    )]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The engine.
        engine: &'static str,
        /// The input or output.
        tensor: String,
        /// Its type.
        kind: Kind,
    },
    /// The key `pad` does not fit the inputs of the model.
    #[error("cannot use model {}", path.display())]
    Padding {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PadError,
    },
    /// The file has other inputs or outputs than when the plan was made. Remedy: reload the configuration.
    #[error("model {} has other inputs or outputs than its stage was made for: {signature}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// The inputs and outputs that it has now.
        signature: String,
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
