//! A loaded model: its signature and the engine that runs it. `load.rs` makes it from a file.

use std::path::Path;
use std::sync::{Arc, Weak};

use callboard_codec::{DType, DataType};
use parking_lot::Mutex;

use crate::config::OnnxConfig;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::signature::{Signature, TensorSpec};

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
pub struct Model(pub(crate) Arc<ModelParts>);

#[derive(Debug)]
pub(crate) struct ModelParts {
    signature: Signature,
    engine: Box<dyn Engine>,
    /// The engine's dtype of each input; `None` for an input that is no tensor of numbers.
    input_dtypes: Vec<Option<DType>>,
    /// The bytes of its files.
    bytes: u64,
    /// Whether the answer to an item depends on the others of its run.
    items: Items,
    /// The model that its replicas load, if it is loaded on demand.
    pub(crate) on_demand: Option<OnDemand>,
}

/// Whether the items of a model may share a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    /// Nothing shows that they may not, and something was there to show it.
    Apart,
    /// The answer to one depends on the others, for this reason.
    Mixed(String),
    /// It is not known, for this reason.
    Unknown(String),
}

/// A model that is in memory while a replica has it.
#[derive(Debug)]
pub(crate) struct OnDemand {
    pub(crate) config: OnnxConfig,
    /// The lock is held during a load, so that replicas that start together load once.
    pub(crate) loaded: Mutex<Weak<ModelParts>>,
}

impl Model {
    /// A model on another engine than the built-in one.
    ///
    /// # Errors
    ///
    /// [`LoadError::UnsupportedType`] when the engine has no dtype for one of the tensors.
    pub fn with_engine(signature: Signature, engine: impl Engine) -> Result<Self, LoadError> {
        let name = engine.name();
        Self::assemble(Path::new(name), signature, Box::new(engine), 0, None)
    }

    pub(crate) fn assemble(
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
        Ok(Self(Arc::new(ModelParts { signature, engine, input_dtypes, bytes, items: Items::Apart, on_demand })))
    }

    /// The model has no other owner yet.
    pub(crate) fn note_items(&mut self, items: Items) {
        if let Some(parts) = Arc::get_mut(&mut self.0) {
            parts.items = items;
        }
    }

    pub(crate) fn items(&self) -> &Items {
        &self.0.items
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

    /// Why the answer to an item depends on the other items of its run, if its operators or a trial at its load have
    /// shown that: such a model runs items one by one unless its stage says otherwise.
    #[must_use]
    pub fn mixes_items(&self) -> Option<&str> {
        if let Items::Mixed(reason) = &self.0.items { Some(reason) } else { None }
    }

    /// Why it is not known whether the answer to an item depends on the others, if its operators do not tell and it
    /// could not be tried: such a model, too, runs items one by one unless its stage says otherwise. It is always known
    /// of a model [on an engine of one's own](Self::with_engine), whose author gives its signature a batch axis.
    #[must_use]
    pub fn may_mix_items(&self) -> Option<&str> {
        if let Items::Unknown(reason) = &self.0.items { Some(reason) } else { None }
    }

    /// The default number of waiting items that a stage with this model runs together: that of its
    /// [signature](Signature::default_max_batch_size), or 1 if it [mixes items](Self::mixes_items) or
    /// [may do so](Self::may_mix_items).
    #[must_use]
    pub fn default_max_batch_size(&self) -> usize {
        if self.0.items == Items::Apart { self.signature().default_max_batch_size() } else { 1 }
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

    /// The engine and its providers, for the start lines of a server.
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
