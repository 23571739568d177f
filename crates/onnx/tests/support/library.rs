//! Models on ONNX Runtime, for tests that are skipped without its library.

use std::io::Write as _;
use std::path::PathBuf;

use callboard_onnx::{EngineChoice, LoadError, Model, OnnxConfig};

use super::{Graph, TempFile};

pub(crate) fn config(path: impl Into<PathBuf>) -> OnnxConfig {
    let mut config = OnnxConfig::new(path);
    config.engine = EngineChoice::OnnxRuntime;
    config
}

/// The model on ONNX Runtime, or a line that says why there is none.
pub(crate) fn load(config: &OnnxConfig) -> Option<Result<Model, LoadError>> {
    match Model::from_config(config) {
        Err(LoadError::Library { source, .. }) => {
            let required = std::env::var("CALLBOARD_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "onnxruntime"), "{source}");
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            // The line bypasses the capture of the test harness.
            let _ = std::io::stderr().write_all(format!("skipped {test}: no onnxruntime: {source}\n").as_bytes());
            None
        }
        result => Some(result),
    }
}

pub(crate) fn load_graph(graph: &Graph, name: &str) -> Option<Model> {
    let file = TempFile::new(name, &graph.to_onnx());
    load(&config(&file.0)).map(Result::unwrap)
}
