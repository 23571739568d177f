//! Items of different lengths in one run: which axis may differ, how long a run makes it, and what fills it.
//!
//! [`Padding::try_new`] compares the configuration with the signature at the start, so that later every question has an
//! answer: which inputs are padded along which axes, and which outputs are cropped back to the length of their item.

use callboard_codec::{DType, Tensor, TensorError, Value};
use serde_json::Number;

use crate::cast::{CastError, cast};
use crate::config::{PadAxis, PadConfig};
use crate::signature::{Axis, BatchAxis, Signature, TensorSpec, shape_of};

/// Why a model cannot be padded as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PadError {
    /// Items that are not stacked have no companions to be padded for.
    #[error("pad: {signature} has no batch axis, so its items run one by one")]
    NoBatchAxis {
        /// The inputs and outputs of the model.
        signature: String,
    },
    /// The axis whose length is the number of items.
    #[error("pad: axis `{axis}` is the batch axis")]
    BatchAxis {
        /// The configured axis.
        axis: PadAxis,
    },
    /// No input has it with a length that may vary.
    #[error("pad: no input has an axis `{axis}` of any length; the inputs are {inputs}")]
    UnknownAxis {
        /// The configured axis.
        axis: PadAxis,
        /// The inputs with their axes.
        inputs: String,
    },
    /// A name that no input has.
    #[error("pad: {key} `{name}` is no input of the model, which takes {inputs}")]
    UnknownInput {
        /// `mask` or `values`.
        key: &'static str,
        /// The configured name.
        name: String,
        /// The names of the inputs.
        inputs: String,
    },
    /// An input without the axis, to which the key does not apply.
    #[error("pad: {key} `{name}` has no axis `{axis}` to be padded")]
    NotPadded {
        /// `mask` or `values`.
        key: &'static str,
        /// The input.
        name: String,
        /// The configured axis.
        axis: PadAxis,
    },
    /// Texts, for which there is no number to pad with.
    #[error("pad: `{tensor}` has the axis, but no numbers: texts are not padded")]
    Texts {
        /// The input or output.
        tensor: String,
    },
    /// A mask that cannot be made from the length alone.
    #[error("pad: mask `{mask}` has an axis besides `{axis}` of any length")]
    MaskAxes {
        /// The input.
        mask: String,
        /// The configured axis.
        axis: PadAxis,
    },
    /// The number is none of the input's type.
    #[error("pad: {value} is no {dtype}, the type of input `{input}`")]
    WrongValue {
        /// The configured number.
        value: Number,
        /// The type of the input.
        dtype: DType,
        /// The input.
        input: String,
    },
}

/// Why the items of a run cannot be padded, or its output not be cropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PaddingError {
    /// The signature declares one length for both.
    #[error("axis `{axis}` of shape {shape:?} is not {run_length} long, as the padded inputs are")]
    OtherLength { axis: PadAxis, shape: Vec<usize>, run_length: usize },
    #[error(transparent)]
    Cast(#[from] CastError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// How the items of a model are made equally long. Inputs and outputs are in the order of the signature; axes are those
/// of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Padding {
    axis: PadAxis,
    inputs: Vec<Option<PaddedInput>>,
    outputs: Vec<Vec<usize>>,
    mask: Option<Mask>,
    /// Ascending; empty: a run is as long as its longest item.
    buckets: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PaddedInput {
    axes: Vec<usize>,
    /// The number of axes of one item.
    rank: usize,
    /// One element, of the declared dtype.
    fill: Tensor,
}

/// The input that tells the model what is padding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mask {
    input: usize,
    /// The lengths of one item, `None` where it is that of the padded axis.
    shape: Vec<Option<usize>>,
    one: Tensor,
}

impl Padding {
    pub(crate) fn try_new(signature: &Signature, config: &PadConfig) -> Result<Self, PadError> {
        let axis = &config.axis;
        if signature.batch_axis() != BatchAxis::Stacked {
            return Err(PadError::NoBatchAxis { signature: signature.to_string() });
        }
        if signature.inputs().iter().any(|spec| is_batch(spec, axis)) {
            return Err(PadError::BatchAxis { axis: axis.clone() });
        }
        let padded: Vec<Vec<usize>> = signature.inputs().iter().map(|spec| axes_of(signature, spec, axis)).collect();
        if padded.iter().all(Vec::is_empty) {
            let inputs = signature.inputs().iter().map(|spec| format!("{}: {spec}", spec.name())).collect::<Vec<_>>();
            return Err(PadError::UnknownAxis { axis: axis.clone(), inputs: inputs.join(", ") });
        }
        let find = |key, name| find_padded(signature, &padded, axis, key, name);
        config.values.keys().try_for_each(|name| find("values", name).map(drop))?;
        let mask = config.mask.as_deref().map(|name| find("mask", name)).transpose()?;
        let mask = mask.map(|input| Mask::try_new(signature, input, &padded[input], axis)).transpose()?;
        let is_mask = |input| mask.as_ref().is_some_and(|mask| mask.input == input);

        let outputs = signature.outputs().iter().map(|spec| cropped_axes(signature, spec, axis, &padded));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let mut inputs = Vec::with_capacity(padded.len());
        for (input, (spec, axes)) in signature.inputs().iter().zip(padded).enumerate() {
            let configured = config.values.get(spec.name()).unwrap_or(&config.value);
            let value = if is_mask(input) { &Number::from(0) } else { configured };
            let rank = signature.item_axes(spec).map_or(0, <[Axis]>::len);
            let padded = (!axes.is_empty()).then(|| Ok(PaddedInput { axes, rank, fill: element(spec, value)? }));
            inputs.push(padded.transpose()?);
        }
        Ok(Self { axis: axis.clone(), inputs, outputs, mask, buckets: config.buckets.clone() })
    }

    /// The padded axis, for messages.
    pub(crate) fn axis(&self) -> &PadAxis {
        &self.axis
    }

    /// The input that is made for an item that comes without it.
    pub(crate) fn mask(&self) -> Option<usize> {
        self.mask.as_ref().map(|mask| mask.input)
    }

    /// The mask of an item of this length: all of it is real.
    pub(crate) fn make_mask(&self, length: usize) -> Option<Tensor> {
        let mask = self.mask.as_ref()?;
        let shape: Vec<usize> = mask.shape.iter().map(|axis| axis.unwrap_or(length)).collect();
        Tensor::filled(&shape, &mask.one).ok()
    }

    /// The longest item that fits a bucket.
    pub(crate) fn max_length(&self) -> Option<usize> {
        self.buckets.last().copied()
    }

    /// The length to which an item of this length is padded at least: its bucket. A longer item has none.
    pub(crate) fn bucket(&self, length: usize) -> Option<usize> {
        if self.buckets.is_empty() {
            return Some(length);
        }
        self.buckets.iter().copied().find(|bucket| *bucket >= length)
    }

    /// The lengths of the axis in the inputs of an item, each with its input.
    pub(crate) fn lengths<'a>(&'a self, item: &'a [Value]) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.inputs.iter().zip(item).enumerate().flat_map(|(input, (padded, value))| {
            let shape = shape_of(value).unwrap_or_default();
            let axes = padded.iter().flat_map(|padded| &padded.axes);
            axes.filter_map(move |axis| shape.get(*axis).map(|length| (input, *length)))
        })
    }

    /// The length of an item, which is the same in all its inputs.
    pub(crate) fn length(&self, item: &[Value]) -> usize {
        self.lengths(item).next().map_or(0, |(_, length)| length)
    }

    /// The length of a run of these items.
    pub(crate) fn run_length(&self, items: &[&Vec<Value>]) -> usize {
        let longest = items.iter().map(|item| self.length(item)).max().unwrap_or(0);
        self.bucket(longest).unwrap_or(longest)
    }

    /// Whether two items share a run: of one bucket, and equally long in all axes that are not padded.
    pub(crate) fn share_run(&self, a: &[Value], b: &[Value]) -> bool {
        let one_bucket = self.buckets.is_empty() || self.bucket(self.length(a)) == self.bucket(self.length(b));
        let fits = |(padded, (a, b)): (&Option<PaddedInput>, (&Value, &Value))| match (shape_of(a), shape_of(b)) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                let is_padded = |axis| padded.as_ref().is_some_and(|padded| padded.axes.contains(&axis));
                (0..a.len()).all(|axis| a[axis] == b[axis] || is_padded(axis))
            }
            (a, b) => a == b,
        };
        one_bucket && self.inputs.iter().zip(a.iter().zip(b)).all(fits)
    }

    /// One input of all items of a run, or `None` if it is not padded.
    pub(crate) fn stack(&self, input: usize, items: &[&Tensor], length: usize) -> Option<Result<Tensor, PaddingError>> {
        let PaddedInput { axes, fill, .. } = self.inputs[input].as_ref()?;
        let first = items.first()?;
        let stack = || {
            let mut shape = first.shape().to_vec();
            axes.iter().for_each(|axis| shape[*axis] = length);
            Ok(Tensor::stack_padded(items, &shape, &cast(fill, first.dtype())?)?)
        };
        Some(stack())
    }

    /// Whether an output is cropped.
    pub(crate) fn crops(&self, output: usize) -> bool {
        !self.outputs[output].is_empty()
    }

    /// The output of one item, which was padded from `length` to `run_length`.
    pub(crate) fn crop(
        &self,
        output: usize,
        value: Value,
        length: usize,
        run_length: usize,
    ) -> Result<Value, PaddingError> {
        let (axes, Value::Tensor(tensor)) = (&self.outputs[output], &value) else { return Ok(value) };
        let mut shape = tensor.shape().to_vec();
        for axis in axes {
            match shape.get_mut(*axis) {
                Some(actual) if *actual == run_length => *actual = length,
                _ => return Err(PaddingError::OtherLength { axis: self.axis.clone(), shape, run_length }),
            }
        }
        Ok(Value::Tensor(tensor.cropped(&shape)?))
    }

    /// The length of an item that was not read yet, as its bucket has it: what it costs.
    pub(crate) fn cost(&self, signature: &Signature, item: &Value) -> u64 {
        let length_in = |(spec, padded): (&TensorSpec, &Option<PaddedInput>)| {
            let PaddedInput { axes, rank, .. } = padded.as_ref()?;
            let value = match item {
                Value::Map(map) if map.contains_key(spec.name()) => map.get(spec.name())?,
                whole if signature.inputs().len() == 1 => whole,
                _ => return None,
            };
            length_along(value, *axes.first()?, *rank)
        };
        let length = signature.inputs().iter().zip(&self.inputs).find_map(length_in).unwrap_or(1);
        self.bucket(length).unwrap_or(length).max(1) as u64
    }
}

impl Mask {
    fn try_new(signature: &Signature, input: usize, padded: &[usize], axis: &PadAxis) -> Result<Self, PadError> {
        let spec = &signature.inputs()[input];
        let length = |(index, declared): (usize, &Axis)| match declared {
            _ if padded.contains(&index) => Ok(None),
            Axis::Fixed(length) => Ok(Some(*length)),
            _ => Err(PadError::MaskAxes { mask: spec.name().to_owned(), axis: axis.clone() }),
        };
        let axes = signature.item_axes(spec).unwrap_or_default();
        let shape = axes.iter().enumerate().map(length).collect::<Result<_, _>>()?;
        Ok(Self { input, shape, one: element(spec, &Number::from(1))? })
    }
}

fn is_batch(spec: &TensorSpec, axis: &PadAxis) -> bool {
    match axis {
        PadAxis::Number(number) => *number == 0,
        PadAxis::Name(name) => spec.shape().and_then(<[Axis]>::first).and_then(Axis::name) == Some(name),
    }
}

/// The axes of an item of this input or output that are meant.
fn axes_of(signature: &Signature, spec: &TensorSpec, axis: &PadAxis) -> Vec<usize> {
    let is_meant = |(index, declared): (usize, &Axis)| match (axis, declared) {
        (PadAxis::Name(name), declared) => declared.name() == Some(name),
        (PadAxis::Number(_), Axis::Fixed(_)) => false,
        (PadAxis::Number(number), _) => index + 1 == *number,
    };
    let axes = signature.item_axes(spec).unwrap_or_default().iter().enumerate();
    axes.filter(|at| is_meant(*at)).map(|(index, _)| index).collect()
}

/// The axes of an output that are as long as the padded ones: those of the same name, or else of the configured number.
fn cropped_axes(
    signature: &Signature,
    spec: &TensorSpec,
    axis: &PadAxis,
    padded: &[Vec<usize>],
) -> Result<Vec<usize>, PadError> {
    let name_of = |(spec, axes): (&TensorSpec, &Vec<usize>)| {
        signature.item_axes(spec)?.get(*axes.first()?)?.name().map(str::to_owned)
    };
    let name = signature.inputs().iter().zip(padded).find_map(name_of);
    let by_name = name.map(|name| axes_of(signature, spec, &PadAxis::Name(name))).unwrap_or_default();
    let axes = if by_name.is_empty() { axes_of(signature, spec, axis) } else { by_name };
    match spec.dtype() {
        None if !axes.is_empty() => Err(PadError::Texts { tensor: spec.name().to_owned() }),
        _ => Ok(axes),
    }
}

fn find_padded(
    signature: &Signature,
    padded: &[Vec<usize>],
    axis: &PadAxis,
    key: &'static str,
    name: &str,
) -> Result<usize, PadError> {
    match signature.inputs().iter().position(|spec| spec.name() == name) {
        Some(input) if padded[input].is_empty() => {
            Err(PadError::NotPadded { key, name: name.to_owned(), axis: axis.clone() })
        }
        Some(input) => Ok(input),
        None => {
            let inputs = signature.inputs().iter().map(|spec| format!("`{}`", spec.name())).collect::<Vec<_>>();
            Err(PadError::UnknownInput { key, name: name.to_owned(), inputs: inputs.join(", ") })
        }
    }
}

/// A tensor of one element, of the declared dtype.
fn element(spec: &TensorSpec, value: &Number) -> Result<Tensor, PadError> {
    let dtype = spec.dtype().ok_or_else(|| PadError::Texts { tensor: spec.name().to_owned() })?;
    let number = match (dtype, value.as_i64(), value.as_u64(), value.as_f64()) {
        (DType::Bool, Some(number @ (0 | 1)), ..) => Value::Bool(number == 1),
        (_, Some(number), ..) => Value::Int(number),
        (_, _, Some(number), _) => Value::UInt(number),
        (_, _, _, number) => Value::Float(number.unwrap_or(f64::NAN)),
    };
    Tensor::from_value(&number, Some(dtype)).map_err(|_| PadError::WrongValue {
        value: value.clone(),
        dtype,
        input: spec.name().to_owned(),
    })
}

/// The length of an axis of a value that may become a tensor of this rank, or of one more with a batch axis of 1.
fn length_along(value: &Value, axis: usize, rank: usize) -> Option<usize> {
    let shape: Vec<usize> = match value {
        Value::Tensor(tensor) => tensor.shape().to_vec(),
        Value::Map(map) => {
            let axes = map.get("shape")?.as_list()?.iter();
            axes.map(|length| usize::try_from(length.as_i64()?).ok()).collect::<Option<_>>()?
        }
        nested => {
            let lists = std::iter::successors(nested.as_list(), |list| list.first()?.as_list());
            lists.take(rank + 1).map(<[Value]>::len).collect()
        }
    };
    let has_batch_axis = shape.len() == rank + 1 && shape[0] == 1;
    shape.get(axis + usize::from(has_batch_axis)).copied()
}
