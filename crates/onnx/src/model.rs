//! A loaded model: its signature and the engine that runs it.
//!
//! Loading happens once, when the plan is made, so that a broken file is an error before anything starts and routes can
//! be described without running. Clones share the weights.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use callboard_codec::{DType, DataType, Value};

use crate::choice::choose;
use crate::config::OnnxConfig;
use crate::engine::{Engine, EngineError};
use crate::error::LoadError;
use crate::signature::{BatchAxis, Signature, TensorSpec, read};

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
        let engine = choose(config, file, &header)?;
        Self::assemble(path, settle_signature(header.signature, config)?, engine)
    }

    /// The inputs and outputs of an ONNX file whose stage [another process](OnnxConfig::isolate) runs: nothing else of
    /// it is loaded, so that a model that ends its process as it is loaded does not end this one.
    ///
    /// # Errors
    ///
    /// When the file is missing or no ONNX model, and when `batched = true` contradicts it.
    pub fn run_elsewhere(config: &OnnxConfig) -> Result<Self, LoadError> {
        let path = config.model.as_path();
        let header = read(&read_file(path)?).map_err(|source| LoadError::Signature { path: path.into(), source })?;
        Self::assemble(path, settle_signature(header.signature, config)?, Box::new(Elsewhere))
    }

    /// A model on another engine than the built-in one.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnsupportedType`] when the engine has no dtype for one of the tensors.
    pub fn with_engine(signature: Signature, engine: impl Engine) -> Result<Self, LoadError> {
        let name = engine.name();
        Self::assemble(Path::new(name), signature, Box::new(engine))
    }

    fn assemble(path: &Path, signature: Signature, engine: Box<dyn Engine>) -> Result<Self, LoadError> {
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
        Ok(Self(Arc::new(ModelParts { signature, engine, input_dtypes })))
    }

    /// The inputs and outputs of the model.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.0.signature
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
        self.engine().description()
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.0.engine
    }

    /// The inputs with the dtype that the engine takes each as, for tensors of numbers.
    pub(crate) fn inputs(&self) -> impl ExactSizeIterator<Item = (&TensorSpec, Option<DType>)> {
        self.signature().inputs().iter().zip(self.0.input_dtypes.iter().copied())
    }
}

/// The engine of a model that another process runs.
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
