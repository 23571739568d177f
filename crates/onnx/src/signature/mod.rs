//! The inputs and outputs of a model: names, types and shapes, read from the ONNX file itself.
//!
//! Engines convert types inside (rten keeps an i64 as an i32, ONNX Runtime shows a tensor of any shape as one without
//! axes), so their own metadata does not tell what the model's author declared; the protobuf does. A route has the same
//! types on every machine, whichever engine is found.
//!
//! Decides which inputs are the callers' to give (weights that old files list among the inputs are not) and whether the
//! first axis is the batch: see [`BatchAxis`]. A file that declares what no tensor can be is refused with a reason.

mod padding;
mod read;
mod schema;

use std::fmt;

use callboard_codec::{DType, DataType, TensorField, TensorFields, Value};

use crate::config::PadConfig;

pub use padding::PadError;
pub(crate) use padding::{Padding, PaddingError};
pub use read::SignatureError;
pub(crate) use read::{ModelHeader, model, read};

/// The inputs and outputs of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    opset: Option<i64>,
    batch_axis: BatchAxis,
    padding: Option<Padding>,
}

/// One input or output as the file declares it, batch axis included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    name: String,
    kind: Kind,
    shape: Option<Vec<Axis>>,
}

/// The kind of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A tensor of numbers or bools.
    Numbers(DType),
    /// A tensor of texts.
    Texts,
    /// A list.
    Sequence(Box<Self>),
    /// A map to these. Integer keys are written as texts.
    Map(Box<Self>),
}

/// One axis of a declared shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Always this long.
    Fixed(usize),
    /// Any length, but the same wherever the name stands: `batch`, `sequence`.
    Named(String),
    /// Any length.
    Any,
}

/// The meaning of the first axis of a model's tensors, which defines one item.
///
/// The file does not say; this is what the declared shapes allow. [`OnnxConfig::batched`](crate::OnnxConfig::batched)
/// overrules the first case, which is a guess for models whose only axis is, say, the length of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchAxis {
    /// Every input and output begins with an axis of any length, inputs with the same one: items are samples without
    /// that axis and are stacked along it.
    Stacked,
    /// Every input and output begins with an axis of length 1, as many exports have: items are samples without it, run
    /// one at a time.
    One,
    /// Anything else: items are whole tensors, run one at a time.
    Absent,
}

impl Signature {
    /// The items that a stage over a model with a batch axis runs together by default. Small models gain most of what
    /// batching gives by then, and a batch of 32 pictures of 224 × 224 pixels is 19 MB.
    pub const DEFAULT_MAX_BATCH_SIZE: usize = 32;

    /// Reads the signature of an ONNX file.
    ///
    /// # Errors
    ///
    /// When the bytes are no ONNX model, or one whose inputs or outputs are not all tensors of numbers.
    pub fn try_from_onnx(file: &[u8]) -> Result<Self, SignatureError> {
        Ok(read(file)?.signature)
    }

    fn new(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>, opset: Option<i64>) -> Self {
        let batch_axis = BatchAxis::infer(&inputs, &outputs);
        Self { inputs, outputs, opset, batch_axis, padding: None }
    }

    /// The inputs, in the file's order.
    #[must_use]
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The outputs, in the file's order.
    #[must_use]
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// The version of the `ai.onnx` operators, if the file says.
    #[must_use]
    pub fn opset(&self) -> Option<i64> {
        self.opset
    }

    /// The meaning of the first axis.
    #[must_use]
    pub fn batch_axis(&self) -> BatchAxis {
        self.batch_axis
    }

    /// The default number of waiting items that a stage with this model runs together:
    /// [`DEFAULT_MAX_BATCH_SIZE`](Self::DEFAULT_MAX_BATCH_SIZE), or 1 where items cannot be stacked.
    #[must_use]
    pub fn default_max_batch_size(&self) -> usize {
        match self.batch_axis {
            BatchAxis::Stacked => Self::DEFAULT_MAX_BATCH_SIZE,
            BatchAxis::One | BatchAxis::Absent => 1,
        }
    }

    /// Whether one item may be longer than another: an axis of an input has no fixed length, or no axes are declared.
    #[must_use]
    pub fn items_vary(&self) -> bool {
        let varies = |spec: &TensorSpec| match self.item_axes(spec) {
            Some(axes) => axes.iter().any(|axis| !matches!(axis, Axis::Fixed(_))),
            None => true,
        };
        self.inputs.iter().any(varies)
    }

    /// The same tensors, taken as whole ones: one item, one run.
    #[must_use]
    pub fn without_batch_axis(self) -> Self {
        Self { batch_axis: BatchAxis::Absent, padding: None, ..self }
    }

    /// The same tensors, with items of different lengths padded so that they share a run.
    ///
    /// # Errors
    ///
    /// When there is no batch axis, or what the configuration names is not in the signature.
    pub fn with_padding(mut self, config: &PadConfig) -> Result<Self, PadError> {
        self.padding = Some(Padding::try_new(&self, config)?);
        Ok(self)
    }

    pub(crate) fn padding(&self) -> Option<&Padding> {
        self.padding.as_ref()
    }

    /// Whether an item may come without this input: the node makes the mask of an item.
    pub(crate) fn is_optional(&self, spec: &TensorSpec) -> bool {
        let mask = self.padding.as_ref().and_then(Padding::mask);
        mask.is_some_and(|mask| self.inputs[mask].name == spec.name)
    }

    /// The axes of one item of an input or output: the declared ones without the batch.
    pub(crate) fn item_axes<'a>(&self, spec: &'a TensorSpec) -> Option<&'a [Axis]> {
        let axes = spec.shape.as_deref()?;
        match self.batch_axis {
            BatchAxis::Stacked | BatchAxis::One => axes.get(1..),
            BatchAxis::Absent => Some(axes),
        }
    }

    /// One item of an input or output in words: `f32 [1, 8, 8]`.
    pub(crate) fn describe_item(&self, spec: &TensorSpec) -> String {
        ItemShape { kind: &spec.kind, axes: self.item_axes(spec) }.to_string()
    }

    /// The type of one item: what a route of this stage alone takes.
    #[must_use]
    pub fn input_type(&self) -> DataType {
        let input = DataType::value().with_name("ModelInput").with_schema(schema::input(self));
        self.with_fields(input, &self.inputs)
    }

    /// The type of what becomes of one item.
    #[must_use]
    pub fn output_type(&self) -> DataType {
        let output = DataType::value().with_name("ModelOutput").with_schema(schema::output(self));
        self.with_fields(output, &self.outputs)
    }

    /// The tensors by name, for protocols of tensors, if all of them are.
    fn with_fields(&self, described: DataType, specs: &[TensorSpec]) -> DataType {
        let all_tensors = specs.iter().all(|spec| spec.kind.is_tensor());
        if all_tensors { described.with_tensors(self.fields(specs)) } else { described }
    }

    fn fields(&self, specs: &[TensorSpec]) -> TensorFields {
        let length = |axis: &Axis| match axis {
            Axis::Fixed(length) => Some(*length),
            Axis::Named(_) | Axis::Any => None,
        };
        let field = |spec: &TensorSpec| TensorField {
            name: spec.name.clone(),
            dtype: spec.dtype(),
            shape: self.item_axes(spec).map(|axes| axes.iter().map(length).collect()),
            is_required: !self.is_optional(spec),
        };
        let stackable = self.batch_axis != BatchAxis::Absent;
        TensorFields { fields: specs.iter().map(field).collect(), stackable }
    }
}

impl TensorSpec {
    /// The name in the graph.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind that the file declares.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The element type that the file declares, of a tensor of numbers.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self.kind {
            Kind::Numbers(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// The axes, batch included. `None` when the file leaves the shape open.
    #[must_use]
    pub fn shape(&self) -> Option<&[Axis]> {
        self.shape.as_deref()
    }

    fn first_axis(&self) -> Option<&Axis> {
        self.shape.as_ref()?.first()
    }
}

impl Kind {
    fn is_tensor(&self) -> bool {
        matches!(self, Self::Numbers(_) | Self::Texts)
    }

    /// Whether an output of a batch can have one part per item: tensors by their first axis, and the list of maps that
    /// exporters of classifiers give. A list of tensors is one result.
    fn may_be_batch(&self) -> bool {
        match self {
            Self::Numbers(_) | Self::Texts => true,
            Self::Sequence(element) => matches!(**element, Self::Map(_)),
            Self::Map(_) => false,
        }
    }
}

impl BatchAxis {
    fn infer(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Self {
        let all = |fits: fn(&Axis) -> bool| {
            let input_fits = |spec: &TensorSpec| spec.first_axis().is_some_and(fits);
            // An output of unknown shape gets the benefit of the doubt: warm-up sees what really comes.
            let output_fits = |spec: &TensorSpec| match spec.shape {
                None => spec.kind.may_be_batch(),
                Some(_) => input_fits(spec),
            };
            !inputs.is_empty() && inputs.iter().all(input_fits) && outputs.iter().all(output_fits)
        };
        // Exporters invent names for the first axis of outputs, so only those of the inputs have to agree.
        let names = || inputs.iter().filter_map(|spec| spec.first_axis()?.name());
        let one_name = || names().all(|name| Some(name) == names().next());
        if all(|axis| !matches!(axis, Axis::Fixed(_))) && one_name() {
            Self::Stacked
        } else if all(|axis| *axis == Axis::Fixed(1)) {
            Self::One
        } else {
            Self::Absent
        }
    }
}

impl Axis {
    /// The name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Fixed(_) | Self::Any => None,
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => length.fmt(f),
            Self::Named(name) => f.write_str(name),
            Self::Any => f.write_str("?"),
        }
    }
}

/// `f32 [batch, 1, 8, 8]`.
impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ItemShape { kind: &self.kind, axes: self.shape() }.fmt(f)
    }
}

/// `image: f32 [batch, 1, 8, 8] → logits: f32 [batch, 10]`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |specs: &[TensorSpec]| {
            let specs: Vec<_> = specs.iter().map(|spec| format!("{}: {spec}", spec.name)).collect();
            specs.join(", ")
        };
        write!(f, "{} → {}", list(&self.inputs), list(&self.outputs))
    }
}

/// `f32`, `text`, `list of map to f32`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(dtype) => dtype.fmt(f),
            Self::Texts => f.write_str("text"),
            Self::Sequence(element) => write!(f, "list of {element}"),
            Self::Map(value) => write!(f, "map to {value}"),
        }
    }
}

/// The axes of a tensor of numbers or texts.
pub(crate) fn shape_of(value: &Value) -> Option<&[usize]> {
    match value {
        Value::Tensor(tensor) => Some(tensor.shape()),
        Value::StrTensor(texts) => Some(texts.shape()),
        _ => None,
    }
}

struct ItemShape<'a> {
    kind: &'a Kind,
    axes: Option<&'a [Axis]>,
}

impl fmt::Display for ItemShape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(axes) = self.axes else {
            let any_shape = if self.kind.is_tensor() { " of any shape" } else { "" };
            return write!(f, "{}{any_shape}", self.kind);
        };
        let axes: Vec<_> = axes.iter().map(Axis::to_string).collect();
        write!(f, "{} [{}]", self.kind, axes.join(", "))
    }
}

#[cfg(test)]
mod tests;
