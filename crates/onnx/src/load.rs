//! From a file to a model.
//!
//! Loading happens once, when the plan is made, so that a broken file is an error before anything starts and routes can
//! be described without running. A model [on demand](Model::on_demand) is read for its signature then, and loaded while
//! a replica has it. Whether its items may share a run is found as it is loaded.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use callboard_codec::{DType, Value};
use parking_lot::Mutex;

use crate::batching::{self, Reading};
use crate::bounded::within;
use crate::choice::choose;
use crate::config::OnnxConfig;
use crate::engine::{Engine, EngineError};
use crate::error::LoadError;
use crate::model::{Items, Model, OnDemand};
use crate::signature::{BatchAxis, ModelHeader, Signature, read};

/// The most bytes of a protobuf message; larger models keep their weights in separate files.
const MAX_MODEL_BYTES: u64 = 2 * 1024 * 1024 * 1024 - 1;

impl Model {
    /// Loads an ONNX file with the default knobs.
    ///
    /// # Errors
    ///
    /// When the file is missing, is no ONNX model, or needs what the engine lacks.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::from_config(&OnnxConfig::new(path.as_ref()))
    }

    /// Loads an ONNX file as configured.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), and when `batched = true` contradicts the file.
    pub fn from_config(config: &OnnxConfig) -> Result<Self, LoadError> {
        let path = config.model.as_path();
        let file = read_file(path)?;
        let header = read(&file).map_err(|source| LoadError::Signature { path: path.into(), source })?;
        let bytes = bytes_of(path, &file, &header);
        let reading = read_items(&file, &header, config);
        let engine = choose(config, file, &header)?;
        let mut model = Self::assemble(path, settle_signature(header.signature, config)?, engine, bytes, None)?;
        let trial = || {
            let start = Instant::now();
            let found = within(config.timeout, model.clone(), |model: Self| batching::try_beside_others(&model));
            tracing::debug!(model = %path.display(), took = ?start.elapsed(), "a trial of its items beside others");
            found
        };
        let items = Items::of_loaded(reading, trial);
        model.note_items(items.map_err(|source| LoadError::Trial { path: path.into(), source })?);
        Ok(model)
    }

    /// The inputs and outputs of an ONNX file that is loaded when the first replica of its stage starts, and leaves the
    /// memory with the last: for a stage that [may have no replica][`Stage::replicas_between`].
    ///
    /// # Errors
    ///
    /// When the file is missing or no ONNX model, and when `batched = true` contradicts it. A model that its engine
    /// refuses is an error of the replica's start.
    ///
    /// [`Stage::replicas_between`]: callboard_core::Stage::replicas_between
    pub fn on_demand(config: &OnnxConfig) -> Result<Self, LoadError> {
        let on_demand = OnDemand { config: config.clone(), loaded: Mutex::default() };
        Self::from_header(config, Some(on_demand))
    }

    /// The model itself, for a replica: of one on demand, loaded by the first that asks.
    ///
    /// # Errors
    ///
    /// As [`from_config`](Self::from_config), and when the file has other inputs or outputs by now.
    pub(crate) fn open(&self) -> Result<Self, LoadError> {
        let Some(OnDemand { config, loaded }) = &self.0.on_demand else { return Ok(self.clone()) };
        let mut loaded = loaded.lock();
        if let Some(parts) = loaded.upgrade() {
            return Ok(Self(parts));
        }
        let model = Self::from_config(config)?;
        if model.signature() != self.signature() {
            let signature = model.signature().to_string();
            return Err(LoadError::Changed { path: config.model.clone(), signature });
        }
        *loaded = Arc::downgrade(&model.0);
        Ok(model)
    }

    /// The inputs and outputs of an ONNX file whose stage [another process](OnnxConfig::isolate) runs: nothing else of
    /// it is loaded, so that a model that ends its process as it is loaded does not end this one.
    ///
    /// # Errors
    ///
    /// When the file is missing or no ONNX model, and when `batched = true` contradicts it.
    pub fn run_elsewhere(config: &OnnxConfig) -> Result<Self, LoadError> {
        Self::from_header(config, None)
    }

    /// The inputs and outputs of a file, and nothing else of it.
    fn from_header(config: &OnnxConfig, on_demand: Option<OnDemand>) -> Result<Self, LoadError> {
        let path = config.model.as_path();
        let file = read_file(path)?;
        let header = read(&file).map_err(|source| LoadError::Signature { path: path.into(), source })?;
        let bytes = bytes_of(path, &file, &header);
        let items = Items::of_file(read_items(&file, &header, config));
        let signature = settle_signature(header.signature, config)?;
        let mut model = Self::assemble(path, signature, Box::new(EngineElsewhere), bytes, on_demand)?;
        model.note_items(items);
        Ok(model)
    }
}

/// The engine of a model that another process runs, or that is not loaded yet.
#[derive(Debug)]
struct EngineElsewhere;

impl Engine for EngineElsewhere {
    fn name(&self) -> &'static str {
        "another process"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn goes_beyond_numbers(&self) -> bool {
        true
    }

    fn run(&self, _: &[Value]) -> Result<Vec<Value>, EngineError> {
        Err(EngineError::new(self.name(), "the model is not loaded here"))
    }
}

/// The bytes of a model's files. A missing file is an error of the load.
fn bytes_of(path: &Path, file: &[u8], header: &ModelHeader) -> u64 {
    let directory = path.parent().unwrap_or_else(|| Path::new(""));
    let sizes = header.external_files.iter().filter_map(|name| directory.join(name).metadata().ok());
    sizes.fold(file.len() as u64, |sum, size| sum.saturating_add(size.len()))
}

fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source: io::Error| LoadError::Read { path: path.into(), source };
    let mut file = Vec::new();
    // One byte more than is allowed tells a file that is too large without believing its metadata.
    File::open(path).and_then(|open| open.take(MAX_MODEL_BYTES + 1).read_to_end(&mut file)).map_err(failed)?;
    if file.len() as u64 > MAX_MODEL_BYTES {
        Err(LoadError::TooLarge { path: path.into(), max_bytes: MAX_MODEL_BYTES })
    } else {
        Ok(file)
    }
}

/// What the file tells of the items of a batch.
fn read_items(file: &[u8], header: &ModelHeader, config: &OnnxConfig) -> Reading {
    if config.batched == Some(false) { Reading::Apart } else { batching::read(file, &header.signature) }
}

fn settle_signature(signature: Signature, config: &OnnxConfig) -> Result<Signature, LoadError> {
    let path = || config.model.clone();
    let signature = match config.batched {
        Some(true) if signature.batch_axis() != BatchAxis::Stacked => {
            return Err(LoadError::NoBatchAxis { path: path(), signature: signature.to_string() });
        }
        Some(false) => signature.without_batch_axis(),
        _ => signature,
    };
    match &config.pad {
        Some(pad) => signature.with_padding(pad).map_err(|source| LoadError::Padding { path: path(), source }),
        None => Ok(signature),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_share_one_load_and_the_weights_leave_with_the_last() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx");
        let model = Model::on_demand(&OnnxConfig::new(path)).unwrap();
        let loaded = || model.0.on_demand.as_ref().unwrap().loaded.lock().strong_count();
        assert_eq!(loaded(), 0, "nothing is loaded before a replica asks");
        let opened: Vec<Model> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| model.open().unwrap())).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(opened.iter().all(|other| Arc::ptr_eq(&other.0, &opened[0].0)));
        assert_eq!(loaded(), 4);
        drop(opened);
        assert_eq!(loaded(), 0);
        assert!(Model::from_config(&OnnxConfig::new(path)).unwrap().open().is_ok(), "a loaded model is its own");
    }
}
