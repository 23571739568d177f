//! [rten](https://docs.rs/rten): pure Rust, a minute to build.
//!
//! It computes in f32, i32, i8 and u8. Inputs are lent to it and outputs taken from it without a copy.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Component, Path};
use std::sync::Arc;

use callboard_codec::{DType, Element, Tensor, Value};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value as RtenValue, ValueView};
use rten_tensor::{Layout, Tensor as RtenTensor, TensorView};

use super::{Engine, EngineError, rten_unsupported};
use crate::signature::{ModelHeader, TensorSpec};

const NAME: &str = "rten";

#[derive(Debug)]
pub(crate) struct RtenEngine {
    model: Model,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
    threads: Option<Arc<ThreadPool>>,
}

impl RtenEngine {
    /// Loads from the bytes that the signature was read from, unless rten would compute the model wrongly. Its weights
    /// in other files lie beside the path that it has here, which may be a link: rten itself looks beside the link's
    /// target.
    pub(crate) fn load(
        path: &Path,
        file: Vec<u8>,
        header: &ModelHeader,
        threads: Option<NonZeroUsize>,
    ) -> Result<Self, EngineError> {
        let signature = &header.signature;
        rten_unsupported::check(path, &file, signature.opset()).map_err(|error| EngineError::new(NAME, error))?;
        let mut options = ModelOptions::with_all_ops();
        for name in &header.external_files {
            let weights = read_beside(path, name);
            let weights = weights.map_err(|error| EngineError::new(NAME, format_args!("weights `{name}`: {error}")))?;
            options.external_data(name, weights);
        }
        let model = options.load(file).map_err(|error| EngineError::new(NAME, error))?;
        let node = |spec: &TensorSpec| model.node_id(spec.name()).map_err(|error| EngineError::new(NAME, error));
        let inputs = signature.inputs().iter().map(node).collect::<Result<_, _>>()?;
        let outputs = signature.outputs().iter().map(node).collect::<Result<_, _>>()?;
        let threads = threads.map(|threads| Arc::new(ThreadPool::with_num_threads(threads.get())));
        Ok(Self { model, inputs, outputs, threads })
    }
}

/// A file of weights. rten takes no name that leads elsewhere; it is not opened either.
fn read_beside(model: &Path, name: &str) -> io::Result<Vec<u8>> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not beside the model"));
    }
    let path = model.parent().unwrap_or_else(|| Path::new("")).join(name);
    // A pipe would never end, and a device has no end.
    if !fs::metadata(&path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    fs::read(path)
}

impl Engine for RtenEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        format!("{NAME}, on the processor; ONNX Runtime is two to five times as fast if it is installed")
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        match declared {
            DType::F32 | DType::F64 | DType::F16 => Some(DType::F32),
            DType::I32 | DType::I64 | DType::Bool => Some(DType::I32),
            DType::I8 => Some(DType::I8),
            DType::U8 => Some(DType::U8),
            _ => None,
        }
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let views = inputs.iter().map(|input| lend(input).map(Into::into)).collect::<Result<Vec<_>, _>>()?;
        let inputs = self.inputs.iter().copied().zip(views).collect();
        let options = RunOptions::default().with_thread_pool(self.threads.clone());
        let outputs = self.model.run(inputs, &self.outputs, Some(options));
        outputs.map_err(|error| EngineError::new(NAME, error))?.into_iter().map(take).collect()
    }
}

fn lend(input: &Value) -> Result<ValueView<'_>, EngineError> {
    let Value::Tensor(tensor) = input else {
        return Err(EngineError::new(NAME, format_args!("cannot be given a {}", input.kind())));
    };
    match tensor.dtype() {
        DType::F32 => view::<f32>(tensor),
        DType::I32 => view::<i32>(tensor),
        DType::I8 => view::<i8>(tensor),
        DType::U8 => view::<u8>(tensor),
        other => Err(EngineError::new(NAME, format_args!("cannot be given a tensor of {other}"))),
    }
}

fn view<'a, T: Element>(tensor: &'a Tensor) -> Result<ValueView<'a>, EngineError>
where
    ValueView<'a>: From<TensorView<'a, T>>,
{
    let elements = tensor.as_slice::<T>().map_err(|error| EngineError::new(NAME, error))?;
    ValueView::from_shape(tensor.shape(), elements).map_err(|error| EngineError::new(NAME, error))
}

fn take(value: RtenValue) -> Result<Value, EngineError> {
    match value {
        RtenValue::FloatTensor(tensor) => own(tensor),
        RtenValue::Int32Tensor(tensor) => own(tensor),
        RtenValue::Int8Tensor(tensor) => own(tensor),
        RtenValue::UInt8Tensor(tensor) => own(tensor),
        other => Err(EngineError::new(NAME, format_args!("gave a {}, which is not a tensor", other.dtype()))),
    }
}

fn own<T: Element>(tensor: RtenTensor<T>) -> Result<Value, EngineError> {
    let shape = tensor.shape().to_vec();
    // Row-major, copied only if the last operator left a transposed view.
    let tensor = Tensor::from_vec(&shape, tensor.into_data());
    tensor.map(Value::Tensor).map_err(|error| EngineError::new(NAME, error))
}
