//! [ONNX Runtime](https://onnxruntime.ai): all dtypes, texts, sequences, maps, and accelerators.
//!
//! The library is loaded when the program runs ([`library`]), so a build needs nothing of it. One session holds the
//! weights for all replicas: `Run` may be called by several threads at once.

mod library;
mod providers;
mod values;

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread::available_parallelism;

use callboard_codec::{DType, Value};
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};

pub use self::library::LibraryError;
pub(crate) use self::library::{Library, is_named, load as load_library};
use self::values::Names;
use super::{Engine, EngineError};
use crate::config::{OnnxConfig, Optimization};
use crate::signature::Signature;

const NAME: &str = "ONNX Runtime";

#[derive(Debug)]
pub(crate) struct OnnxRuntime {
    session: Session,
    names: Names,
    description: String,
}

impl OnnxRuntime {
    /// Loads the file, and the files with its external data, in the library's own way.
    pub(crate) fn load(library: &Library, config: &OnnxConfig, signature: &Signature) -> Result<Self, EngineError> {
        let builder = Session::builder(&library.environment).map_err(failed)?;
        let (builder, providers) = providers::register(configure(builder, config)?, config)?;
        let session = commit(builder, &config.model)?;
        let names = Names::new(signature).map_err(|error| EngineError::new(NAME, error))?;
        let (providers, threads, library) = (providers.join(", "), threads(config).get(), library.path.display());
        let description = format!("{NAME} (providers {providers}, threads {threads}) of {library}");
        tracing::info!(model = %config.model.display(), "runs on {description}");
        Ok(Self { session, names, description })
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn goes_beyond_numbers(&self) -> bool {
        true
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        values::run(&self.session, &self.names, inputs)
    }
}

fn commit(mut builder: SessionBuilder, model: &Path) -> Result<Session, EngineError> {
    builder.commit_from_file(model).map_err(failed)
}

fn configure(builder: SessionBuilder, config: &OnnxConfig) -> Result<SessionBuilder, EngineError> {
    let spinning = config.spinning.unwrap_or_else(|| config.replicas.get() == 1);
    let level = match config.optimization {
        Optimization::Off => GraphOptimizationLevel::Disable,
        Optimization::Basic => GraphOptimizationLevel::Level1,
        Optimization::Extended => GraphOptimizationLevel::Level2,
        Optimization::All => GraphOptimizationLevel::All,
    };
    let builder = builder.with_intra_threads(threads(config).get()).map_err(failed)?;
    let builder = builder.with_intra_op_spinning(spinning).map_err(failed)?;
    let builder = builder.with_inter_op_spinning(spinning).map_err(failed)?;
    let builder = builder.with_optimization_level(level).map_err(failed)?;
    match config.inter_threads {
        Some(threads) if threads.get() > 1 => {
            let builder = builder.with_parallel_execution(true).map_err(failed)?;
            builder.with_inter_threads(threads.get()).map_err(failed)
        }
        _ => Ok(builder),
    }
}

/// The threads of a run, its caller among them. Each replica calls with its own thread, so that n replicas and the
/// n − 1 threads that they do not need make a thread per core.
fn threads(config: &OnnxConfig) -> NonZeroUsize {
    config.threads.unwrap_or_else(|| {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new((cores + 1).saturating_sub(config.replicas.get())).unwrap_or(NonZeroUsize::MIN)
    })
}

fn failed<R>(error: ort::Error<R>) -> EngineError {
    EngineError::new(NAME, error.message())
}
