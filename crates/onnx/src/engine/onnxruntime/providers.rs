//! Execution providers: what runs the operators, in the order of the configuration.

use ort::ep::{CPU, CUDA, CoreML, ExecutionProvider, ExecutionProviderDispatch, OpenVINO, TensorRT};
use ort::session::builder::SessionBuilder;

use super::{NAME, failed};
use crate::config::{OnnxConfig, Provider};
use crate::engine::EngineError;

/// Registers the providers, and returns the names of the providers that will run. `cpu` runs the remaining operators.
///
/// A provider that this library or machine lacks is an error, unless `cpu` follows: then the loss is logged.
pub(super) fn register(
    mut builder: SessionBuilder,
    config: &OnnxConfig,
) -> Result<(SessionBuilder, Vec<&'static str>), EngineError> {
    let mut registered = Vec::new();
    for (index, provider) in config.providers.iter().enumerate() {
        let name = provider.name();
        match register_one(builder, *provider, config.arena) {
            Ok(with) => {
                builder = with;
                registered.push(name);
            }
            Err(refused) if config.providers[index..].contains(&Provider::Cpu) => {
                let reason = &refused.reason;
                tracing::warn!(provider = name, %reason, "this provider does not run; the next one does");
                builder = refused.builder;
            }
            Err(refused) => {
                let reason = &refused.reason;
                let advice = "add \"cpu\" behind it to run without it";
                return Err(EngineError::new(NAME, format_args!("providers: `{name}`: {reason}; {advice}")));
            }
        }
    }
    if !config.providers.contains(&Provider::Cpu) {
        builder = register_one(builder, Provider::Cpu, config.arena).map_err(|refused| refused.reason)?;
    }
    Ok((builder, registered))
}

/// A provider that does not run; the builder goes on without it.
struct FailedProvider {
    builder: SessionBuilder,
    reason: EngineError,
}

fn register_one(
    builder: SessionBuilder,
    provider: Provider,
    arena: bool,
) -> Result<SessionBuilder, Box<FailedProvider>> {
    match available(provider) {
        Ok(true) => {}
        Ok(false) => {
            let reason = EngineError::new(NAME, "this library was built without it");
            return Err(Box::new(FailedProvider { builder, reason }));
        }
        Err(error) => return Err(Box::new(FailedProvider { builder, reason: failed(error) })),
    }
    let builder = builder.with_execution_providers([dispatch(provider, arena).error_on_failure()]);
    builder.map_err(|error| {
        let reason = EngineError::new(NAME, error.message());
        Box::new(FailedProvider { builder: error.recover(), reason })
    })
}

fn available(provider: Provider) -> Result<bool, ort::Error> {
    match provider {
        Provider::Cpu => Ok(true),
        Provider::Cuda => CUDA::is_available(),
        Provider::Tensorrt => TensorRT::is_available(),
        Provider::Openvino => OpenVINO::is_available(),
        Provider::Coreml => CoreML::is_available(),
    }
}

fn dispatch(provider: Provider, arena: bool) -> ExecutionProviderDispatch {
    match provider {
        Provider::Cpu => CPU::default().with_arena_allocator(arena).into(),
        Provider::Cuda => CUDA::default().into(),
        Provider::Tensorrt => TensorRT::default().into(),
        Provider::Openvino => OpenVINO::default().into(),
        Provider::Coreml => CoreML::default().into(),
    }
}
