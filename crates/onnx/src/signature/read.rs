//! Reads a signature from the bytes of an ONNX file. Every count and length is checked against a bound first.

use std::collections::{BTreeSet, HashSet};

use callboard_codec::{DType, MAX_RANK};
use prost::Message as _;

use super::{Axis, Kind, Signature, TensorSpec};
use crate::proto::{DimensionValue, ElementType, GraphProto, ModelProto, TensorShapeProto, TypeProto, ValueInfoProto};

/// Inputs or outputs of one model: transformers with a cache per layer have hundreds.
const MAX_TENSORS: usize = 1024;

/// Bytes of a name: it ends up in error messages, schemas and OpenAPI documents.
const MAX_NAME_BYTES: usize = 512;

/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: i32 = 1;

/// Why the signature of a model could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The bytes are no protobuf message of the ONNX kind. Remedy: export the model again; a download may be cut short.
    #[error("not an ONNX file: {reason}")]
    NotOnnx {
        /// The error of the decoder.
        reason: String,
    },
    /// An input or output without a name, or one whose name is too long to be repeated.
    #[error("an {role} has no usable name")]
    BadName {
        /// `input` or `output`.
        role: &'static str,
    },
    /// An input or output that is neither a tensor nor a sequence or map of tensors, such as a sparse tensor.
    #[error("{role} `{name}` is no tensor, sequence or map")]
    NotATensor {
        /// `input` or `output`.
        role: &'static str,
        /// Its name.
        name: String,
    },
    /// Elements that are no numbers, bools or texts (complex numbers, floats of 8 bits), or of an unknown type.
    #[error("{role} `{name}` has elements of an unsupported type (ONNX code {code})")]
    UnsupportedElements {
        /// `input` or `output`.
        role: &'static str,
        /// Its name.
        name: String,
        /// `TensorProto.DataType` as the file has it.
        code: i32,
    },
    /// More axes than a tensor may have.
    #[error("{role} `{name}` has {rank} axes, more than {MAX_RANK}")]
    TooManyAxes {
        /// `input` or `output`.
        role: &'static str,
        /// Its name.
        name: String,
        /// How many.
        rank: usize,
    },
    /// More inputs or outputs than any model has.
    #[error("{count} {role}s are more than {MAX_TENSORS}")]
    TooManyTensors {
        /// `input` or `output`.
        role: &'static str,
        /// How many.
        count: usize,
    },
    /// A model without outputs.
    #[error("the model has no outputs")]
    NoOutputs,
}

/// The results of one pass over the file.
pub(crate) struct ModelHeader {
    pub(crate) signature: Signature,
    /// Weights lie in files next to the model.
    pub(crate) has_external_data: bool,
    /// These files, relative to the model.
    pub(crate) external_files: BTreeSet<String>,
}

pub(crate) fn read(file: &[u8]) -> Result<ModelHeader, SignatureError> {
    let not_onnx = |reason: String| SignatureError::NotOnnx { reason };
    let model = ModelProto::decode(file).map_err(|error| not_onnx(error.to_string()))?;
    let graph = model.graph.ok_or_else(|| not_onnx("it has no graph".to_owned()))?;
    let has_external_data = graph.initializer.iter().any(|tensor| tensor.data_location == Some(EXTERNAL));
    let external_files = external_files(&graph);
    let (inputs, outputs) = (read_inputs(&graph)?, read_all("output", graph.output.iter())?);
    if outputs.is_empty() {
        return Err(SignatureError::NoOutputs);
    }
    let main = |domain: Option<&str>| matches!(domain.unwrap_or_default(), "" | "ai.onnx");
    let opset = model.opset_import.iter().find(|set| main(set.domain.as_deref())).and_then(|set| set.version);
    Ok(ModelHeader { signature: Signature::new(inputs, outputs, opset), has_external_data, external_files })
}

fn external_files(graph: &GraphProto) -> BTreeSet<String> {
    let external = graph.initializer.iter().filter(|tensor| tensor.data_location == Some(EXTERNAL));
    let entries = external.flat_map(|tensor| &tensor.external_data);
    let locations = entries.filter(|entry| entry.key.as_deref() == Some("location"));
    locations.filter_map(|entry| entry.value.clone()).collect()
}

/// Before IR version 4 every weight was listed as an input, too. Callers do not send those.
fn read_inputs(graph: &GraphProto) -> Result<Vec<TensorSpec>, SignatureError> {
    let weights: HashSet<&str> = graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
    let is_weight = |info: &&ValueInfoProto| info.name.as_deref().is_some_and(|name| weights.contains(name));
    read_all("input", graph.input.iter().filter(|info| !is_weight(info)))
}

fn read_all<'a>(
    role: &'static str,
    infos: impl Iterator<Item = &'a ValueInfoProto> + Clone,
) -> Result<Vec<TensorSpec>, SignatureError> {
    let count = infos.clone().count();
    if count > MAX_TENSORS {
        return Err(SignatureError::TooManyTensors { role, count });
    }
    infos.map(|info| read_one(role, info)).collect()
}

fn read_one(role: &'static str, info: &ValueInfoProto) -> Result<TensorSpec, SignatureError> {
    let name = info.name.clone().filter(|name| is_usable(name)).ok_or(SignatureError::BadName { role })?;
    let declared = info.r#type.as_ref().map(without_optional);
    let kind = match declared.map(|declared| read_kind(declared, MAX_DEPTH)) {
        Some(Ok(kind)) => kind,
        Some(Err(Some(code))) => return Err(SignatureError::UnsupportedElements { role, name, code }),
        Some(Err(None)) | None => return Err(SignatureError::NotATensor { role, name }),
    };
    let shape = declared.and_then(|declared| declared.tensor_type.as_ref()?.shape.as_ref());
    if let Some(rank) = shape.map(|shape| shape.dim.len()).filter(|rank| *rank > MAX_RANK) {
        return Err(SignatureError::TooManyAxes { role, name, rank });
    }
    Ok(TensorSpec { name, kind, shape: shape.map(read_axes) })
}

/// What an optional value is if it is there.
fn without_optional(declared: &TypeProto) -> &TypeProto {
    declared.optional_type.as_ref().and_then(|optional| optional.elem_type.as_deref()).unwrap_or(declared)
}

/// A sequence of maps of tensors is 3 deep.
const MAX_DEPTH: usize = 4;

/// The kind; an error has the code of elements that no tensor of ours has.
fn read_kind(declared: &TypeProto, depth: usize) -> Result<Kind, Option<i32>> {
    let depth = depth.checked_sub(1).ok_or(None)?;
    let boxed = |inner: Option<&TypeProto>| read_kind(inner.ok_or(None)?, depth).map(Box::new);
    match declared {
        TypeProto { tensor_type: Some(tensor), .. } => {
            let code = tensor.elem_type.unwrap_or_default();
            match ElementType::try_from(code) {
                Ok(ElementType::String) => Ok(Kind::Texts),
                _ => dtype_of(code).map(Kind::Numbers).ok_or(Some(code)),
            }
        }
        TypeProto { sequence_type: Some(sequence), .. } => {
            boxed(sequence.elem_type.as_deref().map(without_optional)).map(Kind::Sequence)
        }
        TypeProto { map_type: Some(map), .. } => boxed(map.value_type.as_deref()).map(Kind::Map),
        _ => Err(None),
    }
}

fn read_axes(shape: &TensorShapeProto) -> Vec<Axis> {
    let axis = |value: &Option<DimensionValue>| match value {
        Some(DimensionValue::Value(length)) => usize::try_from(*length).map_or(Axis::Any, Axis::Fixed),
        Some(DimensionValue::Param(name)) if is_usable(name) => Axis::Named(name.clone()),
        Some(DimensionValue::Param(_)) | None => Axis::Any,
    };
    shape.dim.iter().map(|dim| axis(&dim.value)).collect()
}

fn is_usable(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES
}

fn dtype_of(code: i32) -> Option<DType> {
    match ElementType::try_from(code).ok()? {
        ElementType::Float => Some(DType::F32),
        ElementType::Uint8 => Some(DType::U8),
        ElementType::Int8 => Some(DType::I8),
        ElementType::Uint16 => Some(DType::U16),
        ElementType::Int16 => Some(DType::I16),
        ElementType::Int32 => Some(DType::I32),
        ElementType::Int64 => Some(DType::I64),
        ElementType::Bool => Some(DType::Bool),
        ElementType::Float16 => Some(DType::F16),
        ElementType::Double => Some(DType::F64),
        ElementType::Uint32 => Some(DType::U32),
        ElementType::Uint64 => Some(DType::U64),
        ElementType::Bfloat16 => Some(DType::BF16),
        ElementType::Undefined | ElementType::String => None,
    }
}
