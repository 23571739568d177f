//! A loaded model: its signature and the engine that runs it.
//!
//! Loading happens once, when the plan is made, so that a broken file is an error before anything starts and routes can
//! be described without running. Clones share the weights. A model [on demand](Model::on_demand) is read for its
//! signature then, and loaded while a replica has it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, Weak};

use callboard_codec::{DType, DataType, Value};
use parking_lot::Mutex;

use crate::choice::choose;
use crate::config::OnnxConfig;
use crate::engine::{Engine, EngineError};
use crate::error::LoadError;
use crate::signature::{BatchAxis, ModelHeader, Signature, TensorSpec, read};

/// The most bytes of a protobuf message; larger models keep their weights in separate files.
const MAX_MODEL_BYTES: u64 = 2 * 1024 * 1024 * 1024 - 1;

/// A model that is ready to run. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_onnx::Model;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx");
/// let model = Model::load(path)?;
/// assert_eq!(model.signature().to_string(), "image: f32 [batch, 1, 8, 8] → logits: f32 [batch, 10]");
///
/// let stage = callboard_onnx::stage("digits", &model).replicas(2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Model(Arc<ModelParts>);

#[derive(Debug)]
struct ModelParts {
    signature: Signature,
    engine: Box<dyn Engine>,
    /// The engine's dtype of each input; `None` for one that is no tensor of numbers.
    input_dtypes: Vec<Option<DType>>,
    /// The bytes of its files.
    bytes: u64,
    /// What to load, if it is loaded on demand.
    on_demand: Option<OnDemand>,
}

/// A model that is in memory while a replica has it.
#[derive(Debug)]
struct OnDemand {
    config: OnnxConfig,
    /// The lock is held during a load, so that replicas that start together load once.
    loaded: Mutex<Weak<ModelParts>>,
}

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
        let engine = choose(config, file, &header)?;
        Self::assemble(path, settle_signature(header.signature, config)?, engine, bytes, None)
    }

    /// The inputs and outputs of an ONNX file that is loaded when the first replica of its stage starts, and leaves the
    /// memory with the last: for a stage that [may have no replica][`Stage::replicas_between`].
    ///
    /// # Errors
    ///
    /// When the file is missing or no ONNX model, and when `batched = true` contradicts it. What its engine refuses is
    /// an error of the replica's start.
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
        Self::assemble(path, settle_signature(header.signature, config)?, Box::new(Elsewhere), bytes, on_demand)
    }

    /// A model on another engine than the built-in one.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnsupportedType`] when the engine has no dtype for one of the tensors.
    pub fn with_engine(signature: Signature, engine: impl Engine) -> Result<Self, LoadError> {
        let name = engine.name();
        Self::assemble(Path::new(name), signature, Box::new(engine), 0, None)
    }

    fn assemble(
        path: &Path,
        signature: Signature,
        engine: Box<dyn Engine>,
        bytes: u64,
        on_demand: Option<OnDemand>,
    ) -> Result<Self, LoadError> {
        let dtype = |spec: &TensorSpec| {
            let own = spec.dtype().map(|declared| engine.dtype(declared));
            match own {
                Some(Some(dtype)) => Ok(Some(dtype)),
                None if engine.goes_beyond_numbers() => Ok(None),
                Some(None) | None => Err(LoadError::UnsupportedType {
                    path: path.into(),
                    engine: engine.name(),
                    tensor: spec.name().to_owned(),
                    kind: spec.kind().clone(),
                }),
            }
        };
        let input_dtypes = signature.inputs().iter().map(dtype).collect::<Result<_, _>>()?;
        signature.outputs().iter().try_for_each(|spec| dtype(spec).map(drop))?;
        Ok(Self(Arc::new(ModelParts { signature, engine, input_dtypes, bytes, on_demand })))
    }

    /// The inputs and outputs of the model.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// The bytes of its file and of the files with its weights: about what it takes in memory. 0 for an engine of one's
    /// own.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The type of one item, for a route that begins with this model.
    #[must_use]
    pub fn input_type(&self) -> DataType {
        self.signature().input_type()
    }

    /// The type of one result, for a route that ends with this model.
    #[must_use]
    pub fn output_type(&self) -> DataType {
        self.signature().output_type()
    }

    /// What runs the model, for the start lines of a server.
    #[must_use]
    pub fn runs_on(&self) -> String {
        match self.0.on_demand {
            Some(_) => "an engine that its first call loads".to_owned(),
            None => self.engine().description(),
        }
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.0.engine
    }

    /// The inputs with the dtype that the engine takes each as, for tensors of numbers.
    pub(crate) fn inputs(&self) -> impl ExactSizeIterator<Item = (&TensorSpec, Option<DType>)> {
        self.signature().inputs().iter().zip(self.0.input_dtypes.iter().copied())
    }
}

/// The engine of a model that another process runs, or that is not loaded yet.
#[derive(Debug)]
struct Elsewhere;

impl Engine for Elsewhere {
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

/// The bytes of a model's files. One that is missing is an error of the load.
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
