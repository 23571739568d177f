//! Which engine runs a model: the configured one, or ONNX Runtime if its library is found and rten if it is not.

use std::path::Path;

use callboard_codec::DType;

use crate::config::{EngineChoice, OnnxConfig, Provider};
use crate::engine::onnxruntime::{self, OnnxRuntime};
use crate::engine::rten::RtenEngine;
use crate::engine::{Engine, EngineError, LibraryError};
use crate::error::LoadError;
use crate::signature::{ModelHeader, Signature};

/// Loads the model on its engine, and logs which one it is. `file` is what `header` was read from.
pub(crate) fn choose(config: &OnnxConfig, file: Vec<u8>, header: &ModelHeader) -> Result<Box<dyn Engine>, LoadError> {
    let path = || config.model.clone();
    if let (EngineChoice::Rten, Some(key)) = (config.engine, config.key_of_onnx_runtime()) {
        return Err(LoadError::UnusedKey { path: path(), key });
    }
    let library = match config.engine {
        EngineChoice::Rten => None,
        EngineChoice::Auto | EngineChoice::OnnxRuntime => match onnxruntime::load_library(config.library.as_deref()) {
            Ok(library) => Some(library),
            Err(reason) if may_do_without(config) => {
                tell_fallback(&config.model, &reason);
                None
            }
            Err(source) => return Err(LoadError::Library { path: path(), source }),
        },
    };
    let engine = match library {
        Some(library) => {
            // It reads the file itself, and the files beside it.
            drop(file);
            OnnxRuntime::load(&library, config, &header.signature).map(|engine| Box::new(engine) as Box<dyn Engine>)
        }
        None => {
            let engine = RtenEngine::load(&config.model, file, header, config.threads);
            engine.map(|engine| Box::new(engine) as Box<dyn Engine>).map_err(EngineError::or_onnx_runtime)
        }
    };
    let engine = engine.map_err(|source| LoadError::Engine { path: path(), source })?;
    tell_precision(&config.model, &*engine, &header.signature);
    Ok(engine)
}

/// Whether the configuration names nothing that only ONNX Runtime has.
fn may_do_without(config: &OnnxConfig) -> bool {
    let named = onnxruntime::is_named(config.library.as_deref());
    config.engine == EngineChoice::Auto && !named && config.providers.contains(&Provider::Cpu)
}

fn tell_fallback(model: &Path, reason: &LibraryError) {
    let model = model.display();
    let cost = "rten runs this model: two to five times slower, on the processor only, FP64 and FP16 as FP32";
    match reason {
        LibraryError::NotFound => tracing::info!(%model, "{reason}; {cost}"),
        _ => tracing::warn!(%model, "{reason}; {cost}"),
    }
}

fn tell_precision(model: &Path, engine: &dyn Engine, signature: &Signature) {
    let narrowed = |dtype: Option<DType>| dtype == Some(DType::F64) && engine.dtype(DType::F64) != Some(DType::F64);
    let specs = || signature.inputs().iter().chain(signature.outputs());
    if let Some(spec) = specs().find(|spec| narrowed(spec.dtype())) {
        let (engine, tensor) = (engine.name(), spec.name());
        tracing::warn!(model = %model.display(), engine, tensor, "FP64 is computed as FP32: results have its precision");
    }
}
