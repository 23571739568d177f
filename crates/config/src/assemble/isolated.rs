//! Models in processes of their own: how a node asks for one, and how that process serves it.
//!
//! The process is the node's program, but reads no configuration: the file may have changed since.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::Stage;
use callboard_onnx::{EngineChoice, Model, OnnxConfig};
use callboard_process::{Isolate as _, MemoryLimit};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The instructions for the process of a model.
#[derive(Serialize, Deserialize)]
struct IsolatedModel {
    config: OnnxConfig,
    /// The longest that a run at its start may take.
    timeout: Option<Duration>,
}

/// The model. Variables that begin with `CALLBOARD_` are settings.
const MODEL_VARIABLE: &str = "_CALLBOARD_MODEL";

/// The stage of a model, with its replicas in processes of their own. The limits of these are those of `config`: of
/// memory, and of the time that a start may take.
///
/// # Errors
///
/// A path that is not UTF-8, as the texts of JSON are: the keys travel in it.
pub(super) fn isolate(
    stage: Stage<Value, Value>,
    config: &OnnxConfig,
    (memory_limit, start_timeout): (MemoryLimit, Duration),
) -> Result<Stage<Value, Value>, String> {
    let (model, library) = (absolute(&config.model)?, config.library.as_deref().map(absolute).transpose()?);
    let shared = OnnxConfig { model: model.into(), library: library.map(Into::into), ..config.clone() };
    let config = of_one_replica(shared, available_parallelism().map_or(1, NonZeroUsize::get));
    let timeout = config.timeout;
    let keys = json!(IsolatedModel { config, timeout });
    Ok(stage.isolate_with(|process| {
        process.command.truncate(1);
        process.memory_limit = memory_limit;
        process.start_timeout = Some(start_timeout);
        process.env.insert(MODEL_VARIABLE.to_owned(), keys.to_string());
    }))
}

/// The keys of each process: it sees one replica, and several share the cores.
fn of_one_replica(mut config: OnnxConfig, cores: usize) -> OnnxConfig {
    let replicas = config.replicas.get();
    if replicas > 1 {
        // rten has no threads that spin, and refuses the key.
        if config.engine != EngineChoice::Rten {
            config.spinning.get_or_insert(false);
        }
        config.threads = config.threads.or_else(|| NonZeroUsize::new((cores / replicas).max(1)));
    }
    config
}

fn absolute(path: &Path) -> Result<String, String> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.into_os_string().into_string().map_err(|path| {
        format!("`{}` is not UTF-8, and the path of an isolated model must be", Path::new(&path).display())
    })
}

/// Serves the model, if this process is a replica of one, and does not return then.
///
/// # Errors
///
/// A model that cannot be loaded.
pub fn serve_if_asked(stage: &str) -> Result<(), String> {
    let Ok(keys) = std::env::var(MODEL_VARIABLE) else { return Ok(()) };
    let IsolatedModel { config, timeout } = serde_json::from_str(&keys).map_err(|error| error.to_string())?;
    // Its node knows of it what the file says, and set the largest batch by that. The rest is found as it is loaded.
    let model = Model::on_demand(&OnnxConfig { timeout, ..config }).map_err(|error| error.to_string())?;
    let stage = callboard_onnx::stage(stage, &model);
    let stage = timeout.into_iter().fold(stage, Stage::timeout);
    let _: Stage<Value, Value> = stage.isolate();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn replicas_share_the_cores_and_get_only_keys_that_their_engine_knows() {
        let keys = |engine: &str, replicas: usize| {
            let config: OnnxConfig = serde_json::from_value(json!({ "model": "m.onnx", "engine": engine })).unwrap();
            let replicas = NonZeroUsize::new(replicas).unwrap();
            let config = of_one_replica(OnnxConfig { replicas, ..config }, 8);
            (config.spinning, config.threads.map(NonZeroUsize::get))
        };
        assert_eq!(keys("onnxruntime", 1), (None, None));
        assert_eq!(keys("onnxruntime", 2), (Some(false), Some(4)));
        assert_eq!(keys("auto", 16), (Some(false), Some(1)));
        assert_eq!(keys("rten", 2), (None, Some(4)));
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_refused_by_its_name() {
        assert_eq!(absolute(Path::new("/models/a.onnx")).as_deref(), Ok("/models/a.onnx"));
        let error = absolute(Path::new(OsStr::from_bytes(b"/models/\xff.onnx"))).unwrap_err();
        assert_eq!(error, "`/models/\u{fffd}.onnx` is not UTF-8, and the path of an isolated model must be");
    }
}
