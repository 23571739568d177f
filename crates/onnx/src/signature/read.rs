//! Reads a signature from the bytes of an ONNX file by skipping what it does not need. Every count and length is
//! checked against a bound first, so that it costs a walk over the file, and less memory than the file has bytes.
//!
//! Numbers of fields are those of `onnx.proto` (IR version 10,
//! <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>).

use std::collections::{BTreeSet, HashSet};

use callboard_codec::{DType, MAX_RANK};

use super::{Axis, Kind, Signature, TensorSpec};
use crate::foreign;
use crate::proto::ElementType;
use crate::wire::{Field, Fields, WireError, last};

/// Inputs or outputs of one model: transformers with a cache per layer have hundreds.
const MAX_TENSORS: usize = 1024;

/// Inputs of one model with the weights that old files list among them.
const MAX_LISTED: usize = 1 << 14;

/// Files beside a model: exporters that write one for each weight write thousands.
const MAX_EXTERNAL_FILES: usize = 1 << 14;

/// Fields of a header: a model of ten thousand operators and weights has a few hundred thousand. Two bytes are enough
/// for a field, and each is looked at a few times.
const MAX_FIELDS: u32 = 1 << 22;

/// How deep the message of an input is: its type, in sequences and maps, its shape and its axes.
const MAX_MESSAGE_DEPTH: u32 = 16;

/// Bytes of a name: it ends up in error messages, schemas and OpenAPI documents.
const MAX_NAME_BYTES: usize = 512;

/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: u64 = 1;

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
    /// A file of another kind that is often found under the name of a model.
    #[error("not an ONNX file, but {what}")]
    Foreign {
        /// The kind of the file, and the remedy.
        what: &'static str,
    },
    /// More fields than any model has.
    #[error("it has more than {MAX_FIELDS} fields")]
    TooManyFields,
    /// Weights in more files than a model has.
    #[error("its weights are in more than {MAX_EXTERNAL_FILES} files")]
    TooManyFiles,
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
#[derive(Debug)]
pub(crate) struct ModelHeader {
    pub(crate) signature: Signature,
    /// The files beside the model that have weights, relative to it.
    pub(crate) external_files: BTreeSet<String>,
}

pub(crate) fn read(file: &[u8]) -> Result<ModelHeader, SignatureError> {
    let mut left = MAX_FIELDS;
    let checked = check_fields(file, Message::Model, &mut left);
    let (graph, opset) = checked.and_then(|()| model(file)).map_err(|error| match foreign::recognize(file) {
        Some(what) => SignatureError::Foreign { what },
        None => error,
    })?;
    let tensors = tensors(graph)?;
    let weights = weights(graph, &tensors.inputs)?;
    let callers = tensors.inputs.iter().filter(|info| !weights.are_listed.contains(name_of(info)));
    let count = callers.clone().count() + tensors.more_inputs;
    if count > MAX_TENSORS {
        return Err(SignatureError::TooManyTensors { role: "input", count });
    }
    let inputs = callers.map(|info| read_one("input", info)).collect::<Result<_, _>>()?;
    let outputs: Vec<_> = tensors.outputs.iter().map(|info| read_one("output", info)).collect::<Result<_, _>>()?;
    if outputs.is_empty() {
        return Err(SignatureError::NoOutputs);
    }
    let signature = Signature::new(inputs, outputs, opset);
    Ok(ModelHeader { signature, external_files: weights.files })
}

impl From<WireError> for SignatureError {
    fn from(error: WireError) -> Self {
        not_onnx(error.to_string())
    }
}

fn not_onnx(reason: impl Into<String>) -> SignatureError {
    SignatureError::NotOnnx { reason: reason.into() }
}

/// The messages of a header.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Weight,
    /// The description of an input or output, and what is in it, down to this depth.
    Described(u32),
}

impl Message {
    /// The message in this field, if a signature needs it.
    fn inner(self, number: u32) -> Option<Self> {
        match (self, number) {
            (Self::Model, 7) => Some(Self::Graph),
            (Self::Graph, 5) => Some(Self::Weight),
            (Self::Model, 8) | (Self::Weight, 13) => Some(Self::Described(0)),
            (Self::Graph, 11 | 12) => Some(Self::Described(MAX_MESSAGE_DEPTH)),
            (Self::Described(depth), _) => depth.checked_sub(1).map(Self::Described),
            _ => None,
        }
    }
}

/// Refuses what would take long: `left` is the number of fields that may come. What is wrong with them is found later.
fn check_fields(bytes: &[u8], message: Message, left: &mut u32) -> Result<(), SignatureError> {
    for (number, field) in Fields::new(bytes).map_while(Result::ok) {
        *left = left.checked_sub(1).ok_or(SignatureError::TooManyFields)?;
        if let (Field::Bytes(bytes), Some(inner)) = (field, message.inner(number)) {
            check_fields(bytes, inner, left)?;
        }
    }
    Ok(())
}

/// The graph of a model, and the version of its operators.
pub(crate) fn model(file: &[u8]) -> Result<(&[u8], Option<i64>), SignatureError> {
    let (mut graph, mut opset) = (None, None);
    for field in Fields::new(file) {
        match field? {
            (7, Field::Bytes(_)) if graph.is_some() => return Err(not_onnx("it has several graphs")),
            (7, Field::Bytes(bytes)) => graph = Some(bytes),
            (8, Field::Bytes(set)) if opset.is_none() => opset = main_opset(set)?,
            _ => {}
        }
    }
    Ok((graph.ok_or_else(|| not_onnx("it has no graph"))?, opset))
}

/// The version, if these are the operators of the standard.
fn main_opset(set: &[u8]) -> Result<Option<i64>, WireError> {
    let (mut is_main, mut version) = (true, None);
    for field in Fields::new(set) {
        match field? {
            (1, Field::Bytes(domain)) => is_main = matches!(domain, b"" | b"ai.onnx"),
            (2, Field::Number(number)) => version = Some(number as i64),
            _ => {}
        }
    }
    Ok(version.filter(|_| is_main))
}

/// The inputs and outputs that a graph declares, unread.
struct Declared<'a> {
    inputs: Vec<&'a [u8]>,
    /// Inputs beyond [`MAX_LISTED`].
    more_inputs: usize,
    outputs: Vec<&'a [u8]>,
}

fn tensors(graph: &[u8]) -> Result<Declared<'_>, SignatureError> {
    let (mut inputs, mut more_inputs, mut outputs, mut output_count) = (Vec::new(), 0, Vec::new(), 0);
    for field in Fields::new(graph) {
        match field? {
            (11, Field::Bytes(info)) if inputs.len() < MAX_LISTED => inputs.push(info),
            (11, Field::Bytes(_)) => more_inputs += 1,
            (12, Field::Bytes(info)) => {
                output_count += 1;
                if output_count <= MAX_TENSORS {
                    outputs.push(info);
                }
            }
            _ => {}
        }
    }
    if output_count > MAX_TENSORS {
        return Err(SignatureError::TooManyTensors { role: "output", count: output_count });
    }
    Ok(Declared { inputs, more_inputs, outputs })
}

/// The facts about the weights that a signature needs.
struct Weights<'a> {
    /// Before IR version 4 every weight was listed as an input, too. Callers do not send those.
    are_listed: HashSet<&'a [u8]>,
    files: BTreeSet<String>,
}

fn weights<'a>(graph: &'a [u8], inputs: &[&'a [u8]]) -> Result<Weights<'a>, SignatureError> {
    let names: HashSet<&[u8]> = inputs.iter().map(|info| name_of(info)).collect();
    let mut weights = Weights { are_listed: HashSet::new(), files: BTreeSet::new() };
    for field in Fields::new(graph) {
        let (5, Field::Bytes(weight)) = field? else { continue };
        let is_external = is_external(weight)?;
        for field in Fields::new(weight) {
            match field? {
                (8, Field::Bytes(name)) if names.contains(name) => _ = weights.are_listed.insert(name),
                (13, Field::Bytes(entry)) if is_external => weights.files.extend(location(entry)?),
                _ => {}
            }
        }
        if weights.files.len() > MAX_EXTERNAL_FILES {
            return Err(SignatureError::TooManyFiles);
        }
    }
    Ok(weights)
}

fn is_external(weight: &[u8]) -> Result<bool, WireError> {
    let mut place = None;
    for field in Fields::new(weight) {
        if let (14, Field::Number(number)) = field? {
            place = Some(number);
        }
    }
    Ok(place == Some(EXTERNAL))
}

/// The file that an entry of `external_data` names.
fn location(entry: &[u8]) -> Result<Option<String>, SignatureError> {
    let (mut is_location, mut value) = (false, None);
    for field in Fields::new(entry) {
        match field? {
            (1, Field::Bytes(key)) => is_location = key == b"location",
            (2, Field::Bytes(text)) => value = Some(text),
            _ => {}
        }
    }
    value.filter(|_| is_location).map(|file| text(file).map(str::to_owned)).transpose()
}

fn text(bytes: &[u8]) -> Result<&str, SignatureError> {
    str::from_utf8(bytes).map_err(|_| not_onnx("a name is not UTF-8"))
}

/// The name of an input or output; `read_one` reports a name that cannot be read.
fn name_of(info: &[u8]) -> &[u8] {
    let fields = Fields::new(info).map_while(Result::ok);
    fields.filter_map(|field| if let (1, Field::Bytes(name)) = field { Some(name) } else { None }).last().unwrap_or(b"")
}

fn read_one(role: &'static str, info: &[u8]) -> Result<TensorSpec, SignatureError> {
    let mut declared = None;
    for field in Fields::new(info) {
        if let (2, Field::Bytes(bytes)) = field? {
            declared = Some(bytes);
        }
    }
    let name = text(name_of(info))?.to_owned();
    if !is_usable(&name) {
        return Err(SignatureError::BadName { role });
    }
    let read = declared.map(|bytes| Type::read(bytes).and_then(Type::without_optional)).transpose()?;
    let Some(read) = read else { return Err(SignatureError::NotATensor { role, name }) };
    let kind = match read.kind(MAX_DEPTH)? {
        Ok(kind) => kind,
        Err(Some(code)) => return Err(SignatureError::UnsupportedElements { role, name, code }),
        Err(None) => return Err(SignatureError::NotATensor { role, name }),
    };
    let shape = if let Type::Tensor { shape, .. } = read { shape } else { None };
    let axes = shape.map(read_axes).transpose()?;
    if let Some(rank) = axes.as_ref().map(|(rank, _)| *rank).filter(|rank| *rank > MAX_RANK) {
        return Err(SignatureError::TooManyAxes { role, name, rank });
    }
    Ok(TensorSpec { name, kind, shape: axes.map(|(_, axes)| axes) })
}

/// A `TypeProto`, one level of it. Opaque values and sparse tensors are `Other`.
#[derive(Clone, Copy)]
enum Type<'a> {
    Tensor { elements: i32, shape: Option<&'a [u8]> },
    Sequence(Option<&'a [u8]>),
    Map(Option<&'a [u8]>),
    Optional(Option<&'a [u8]>),
    Other,
}

impl<'a> Type<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, SignatureError> {
        let mut read = Self::Other;
        for field in Fields::new(bytes) {
            match field? {
                (1, Field::Bytes(tensor)) => read = Self::tensor(tensor)?,
                (4, Field::Bytes(sequence)) => read = Self::Sequence(last(sequence, 1)?),
                (5, Field::Bytes(map)) => read = Self::Map(last(map, 2)?),
                (9, Field::Bytes(optional)) => read = Self::Optional(last(optional, 1)?),
                _ => {}
            }
        }
        Ok(read)
    }

    fn tensor(bytes: &'a [u8]) -> Result<Self, SignatureError> {
        let (mut elements, mut shape) = (0, None);
        for field in Fields::new(bytes) {
            match field? {
                (1, Field::Number(number)) => elements = number as i32,
                (2, Field::Bytes(bytes)) => shape = Some(bytes),
                _ => {}
            }
        }
        Ok(Self::Tensor { elements, shape })
    }

    /// The kind of an optional value that is present.
    fn without_optional(self) -> Result<Self, SignatureError> {
        match self {
            Self::Optional(Some(element)) => Self::read(element),
            other => Ok(other),
        }
    }

    /// The kind; an inner error has the code of elements that no tensor of ours has.
    fn kind(self, depth: usize) -> Result<Result<Kind, Option<i32>>, SignatureError> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(Err(None)) };
        let (element, wrap): (_, fn(Box<Kind>) -> Kind) = match self {
            Self::Tensor { elements, .. } => {
                return Ok(match ElementType::try_from(elements) {
                    Ok(ElementType::String) => Ok(Kind::Texts),
                    _ => dtype_of(elements).map(Kind::Numbers).ok_or(Some(elements)),
                });
            }
            Self::Sequence(Some(element)) => (Self::read(element)?.without_optional()?, Kind::Sequence),
            Self::Map(Some(value)) => (Self::read(value)?, Kind::Map),
            Self::Sequence(None) | Self::Map(None) | Self::Optional(_) | Self::Other => return Ok(Err(None)),
        };
        Ok(element.kind(depth)?.map(|kind| wrap(Box::new(kind))))
    }
}

/// A sequence of maps of tensors is 3 deep.
const MAX_DEPTH: usize = 4;

/// The count of axes, and the axes, up to the most that a tensor may have.
fn read_axes(shape: &[u8]) -> Result<(usize, Vec<Axis>), SignatureError> {
    let (mut rank, mut axes) = (0, Vec::new());
    for field in Fields::new(shape) {
        let (1, Field::Bytes(dimension)) = field? else { continue };
        rank += 1;
        if rank <= MAX_RANK {
            axes.push(read_axis(dimension)?);
        }
    }
    Ok((rank, axes))
}

fn read_axis(dimension: &[u8]) -> Result<Axis, SignatureError> {
    let mut axis = Axis::Any;
    for field in Fields::new(dimension) {
        axis = match field? {
            (1, Field::Number(length)) => usize::try_from(length as i64).map_or(Axis::Any, Axis::Fixed),
            (2, Field::Bytes(name)) => {
                let name = text(name)?;
                if is_usable(name) { Axis::Named(name.to_owned()) } else { Axis::Any }
            }
            _ => axis,
        };
    }
    Ok(axis)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, content.len() as u8], content].concat()
    }

    /// What a signature reads of a file costs a field each, and no other message is looked into.
    #[test]
    fn the_fields_of_all_messages_that_are_read_are_counted() {
        let count = |file: &[u8]| {
            let mut left = 100;
            check_fields(file, Message::Model, &mut left).unwrap();
            100 - left
        };
        let nested = |levels: usize| (0..levels).fold(Vec::new(), |inner, _| field(2, &inner));
        let graph = |message: Vec<u8>| field(7, &message);
        assert_eq!(count(&[nested(3), field(8, &nested(3))].concat()), 1 + 1 + 1, "the versions of operators");
        assert_eq!(count(&graph(field(1, &nested(3)))), 1 + 1, "a node");
        assert_eq!(count(&graph(field(5, &[nested(3), field(13, &nested(3))].concat()))), 1 + 1 + 2 + 1, "a weight");
        for described in [11, 12] {
            assert_eq!(count(&graph(field(described, &nested(3)))), 1 + 1 + 3);
            let deepest = MAX_MESSAGE_DEPTH + 1;
            assert_eq!(count(&graph(field(described, &nested(30)))), 1 + 1 + deepest);
        }
        let file = graph(field(11, &nested(3)));
        assert!(check_fields(&file, Message::Model, &mut 5).is_ok());
        assert_eq!(check_fields(&file, Message::Model, &mut 4), Err(SignatureError::TooManyFields));
    }
}
