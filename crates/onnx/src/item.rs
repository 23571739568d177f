//! Converts one item to the tensors of the engine, and outputs to an item.
//!
//! A wrong input is refused with its name, its expected and its actual type. All wrong inputs are named at once, with
//! their paths. This code sees one item at a time, so a refused item does not affect other items.

use callboard_codec::{DType, DecodeError, Map, Tensor, Value};
use callboard_core::Failure;

use crate::cast::{CastError, cast};
use crate::model::Model;
use crate::signature::{Axis, BatchAxis, Signature, TensorSpec};

/// An error in an item.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("input `{name}` is missing, expected {expected}")]
    Missing { name: String, expected: String },
    #[error("there is no input `{name}`, the model takes {inputs}")]
    Unknown { name: String, inputs: String },
    #[error("expected a map of the inputs {inputs}, got {got}")]
    NotAMap { inputs: String, got: &'static str },
    #[error("input `{name}`: expected {expected}, got {got}")]
    Wrong { name: String, expected: String, got: String },
    #[error("input `{name}`: axis `{axis}` is {length}, but {other_length} in `{other}`")]
    AxesDiffer { name: String, axis: String, length: usize, other: String, other_length: usize },
    #[error("input `{name}`: {source}")]
    OutOfRange { name: String, source: CastError },
}

impl InputError {
    fn error_type(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing_input",
            Self::Unknown { .. } => "unknown_input",
            Self::NotAMap { .. } | Self::Wrong { .. } | Self::AxesDiffer { .. } => "wrong_input",
            Self::OutOfRange { .. } => "out_of_range",
        }
    }

    /// The name of the wrong input, if there is one.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Missing { name, .. }
            | Self::Unknown { name, .. }
            | Self::Wrong { name, .. }
            | Self::AxesDiffer { name, .. }
            | Self::OutOfRange { name, .. } => Some(name),
            Self::NotAMap { .. } => None,
        }
    }
}

/// Everything that is wrong with an item: one error at least.
#[derive(Debug)]
pub(crate) struct Refusal {
    errors: Vec<InputError>,
    /// Whether the inputs came by name; otherwise the item is the only input.
    by_name: bool,
}

/// The most errors in one answer: a map may have a million unknown names.
const MAX_LISTED: usize = 16;

/// The status of a well-formed item that does not fit the model.
const SCHEMA_MISMATCH: u16 = 422;

impl Refusal {
    /// The answer to this item's caller: all errors as text, and under `fields` for programs.
    pub(crate) fn into_failure(self) -> Failure {
        let listed = &self.errors[..self.errors.len().min(MAX_LISTED)];
        let message = listed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let path = |error: &InputError| match error.name().filter(|_| self.by_name) {
            Some(name) => format!("$.{name}"),
            None => "$".to_owned(),
        };
        let field = |error: &InputError| {
            Value::Map(Map::from_iter([
                ("path", Value::from(path(error))),
                ("message", Value::from(error.to_string())),
            ]))
        };
        let fields = Value::List(listed.iter().map(field).collect());
        let error_type = self.errors.first().map_or("wrong_input", InputError::error_type);
        Failure::invalid_input(message)
            .with_type(error_type)
            .with_status(SCHEMA_MISMATCH)
            .with_details(Map::from_iter([("fields", fields)]))
    }
}

/// The tensors of one item in the signature's order, without the batch axis, each of the engine's dtype.
pub(crate) fn read_item(model: &Model, item: &Value) -> Result<Vec<Tensor>, Refusal> {
    let signature = model.signature();
    let mut refusal = Refusal { errors: Vec::new(), by_name: false };
    let values = values_of(signature, item, &mut refusal);
    let mut tensors = Vec::with_capacity(values.len());
    for ((spec, dtype), value) in model.inputs().zip(values) {
        let Some(value) = value else { continue };
        let tensor = read_tensor(signature, spec, value).and_then(|tensor| to_engine(spec, &tensor, dtype));
        match tensor {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => refusal.errors.push(error),
        }
    }
    // Axes can only be compared where all inputs are there.
    if refusal.errors.is_empty() {
        refusal.errors.extend(check_named_axes(signature, &tensors).err());
    }
    if refusal.errors.is_empty() { Ok(tensors) } else { Err(refusal) }
}

/// One value per input, or `None` for a missing one: the item itself for a model with one input, or the entries of a
/// map.
fn values_of<'a>(signature: &Signature, item: &'a Value, refusal: &mut Refusal) -> Vec<Option<&'a Value>> {
    match (signature.inputs(), item) {
        // `{"dtype": ..., "shape": ..., "data": ...}` is a tensor, unless the model calls its input that.
        ([only], Value::Map(map)) if map.contains_key("data") && !map.contains_key(only.name()) => vec![Some(item)],
        (inputs, Value::Map(map)) => {
            refusal.by_name = true;
            refusal.errors.extend(unknown_names(signature, map));
            let missing = inputs.iter().filter(|spec| !map.contains_key(spec.name()));
            refusal.errors.extend(missing.map(|spec| missing_input(signature, spec)));
            inputs.iter().map(|spec| map.get(spec.name())).collect()
        }
        ([_], _) => vec![Some(item)],
        (inputs, other) => {
            refusal.errors.push(InputError::NotAMap { inputs: names(signature), got: other.kind() });
            vec![None; inputs.len()]
        }
    }
}

/// Refuses unknown names: most are misspelt.
fn unknown_names(signature: &Signature, map: &Map) -> impl Iterator<Item = InputError> {
    let unknown = map.keys().filter(|key| signature.inputs().iter().all(|spec| spec.name() != *key));
    unknown
        .take(MAX_LISTED)
        .map(|name| InputError::Unknown { name: name.chars().take(64).collect(), inputs: names(signature) })
}

fn missing_input(signature: &Signature, spec: &TensorSpec) -> InputError {
    InputError::Missing { name: spec.name().to_owned(), expected: signature.describe_item(spec) }
}

fn names(signature: &Signature) -> String {
    let names: Vec<_> = signature.inputs().iter().map(|spec| format!("`{}`", spec.name())).collect();
    if names.is_empty() { "no inputs".to_owned() } else { names.join(", ") }
}

fn read_tensor(signature: &Signature, spec: &TensorSpec, value: &Value) -> Result<Tensor, InputError> {
    let wrong =
        |got: String| InputError::Wrong { name: spec.name().to_owned(), expected: signature.describe_item(spec), got };
    let unreadable = |error: DecodeError| wrong(format!("{}: {error}", value.kind()));
    let tensor = match value {
        Value::Tensor(tensor) if tensor.dtype() != spec.dtype() => return Err(wrong(describe(tensor))),
        other => match Tensor::from_value(other, Some(spec.dtype())) {
            Ok(tensor) => tensor,
            // `1.0` may be an integer of a sender with one type of numbers. Tried only if the item would be refused.
            Err(error) => match is_integer(spec.dtype()).then(|| with_whole_numbers(other)).flatten() {
                Some(whole) => Tensor::from_value(&whole, Some(spec.dtype())).map_err(unreadable)?,
                None => return Err(unreadable(error)),
            },
        },
    };
    fit(signature, spec, &tensor).ok_or_else(|| wrong(describe(&tensor)))
}

/// The tensor if it has the shape of one item. A batch axis of length 1 is removed: the rank shows that it is one.
fn fit(signature: &Signature, spec: &TensorSpec, tensor: &Tensor) -> Option<Tensor> {
    let Some(axes) = signature.item_axes(spec) else {
        return Some(tensor.clone());
    };
    match tensor.shape() {
        shape if fits(shape, axes) => Some(tensor.clone()),
        [1, sample @ ..] if signature.batch_axis() != BatchAxis::Absent && fits(sample, axes) => {
            tensor.reshape(sample).ok()
        }
        _ => None,
    }
}

fn fits(shape: &[usize], axes: &[Axis]) -> bool {
    let fits_axis = |(length, axis): (&usize, &Axis)| match axis {
        Axis::Fixed(expected) => length == expected,
        Axis::Named(_) | Axis::Any => true,
    };
    shape.len() == axes.len() && shape.iter().zip(axes).all(fits_axis)
}

/// Checks that an axis name has one length in an item.
fn check_named_axes(signature: &Signature, tensors: &[Tensor]) -> Result<(), InputError> {
    let mut seen: Vec<(&str, usize, &str)> = Vec::new();
    for (spec, tensor) in signature.inputs().iter().zip(tensors) {
        let axes = signature.item_axes(spec).unwrap_or_default();
        for (axis, &length) in axes.iter().zip(tensor.shape()) {
            let Some(axis) = axis.name() else { continue };
            match seen.iter().find(|(name, _, _)| *name == axis) {
                None => seen.push((axis, length, spec.name())),
                Some((_, other_length, _)) if *other_length == length => {}
                Some((_, other_length, other)) => {
                    return Err(InputError::AxesDiffer {
                        name: spec.name().to_owned(),
                        axis: axis.to_owned(),
                        length,
                        other: (*other).to_owned(),
                        other_length: *other_length,
                    });
                }
            }
        }
    }
    Ok(())
}

fn is_integer(dtype: DType) -> bool {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// Floats above this stand for several whole numbers.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The same lists with whole floats as integers; `None` if there is another float or a value that is not a number.
fn with_whole_numbers(value: &Value) -> Option<Value> {
    match value {
        Value::Int(_) | Value::UInt(_) => Some(value.clone()),
        Value::Float(number) => (number.fract() == 0.0 && number.abs() < EXACT).then_some(Value::Int(*number as i64)),
        // The decoder bounds the depth.
        Value::List(items) => items.iter().map(with_whole_numbers).collect::<Option<Vec<Value>>>().map(Value::List),
        _ => None,
    }
}

fn to_engine(spec: &TensorSpec, tensor: &Tensor, dtype: DType) -> Result<Tensor, InputError> {
    cast(tensor, dtype).map_err(|source| InputError::OutOfRange { name: spec.name().to_owned(), source })
}

fn describe(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype(), tensor.shape())
}

/// The outputs of an item: the tensor of a model with one output, otherwise a map by name.
pub(crate) fn write_item(signature: &Signature, outputs: Vec<Tensor>) -> Value {
    let named = |outputs: Vec<Tensor>| {
        let names = signature.outputs().iter().map(TensorSpec::name);
        names.zip(outputs).collect::<Map>()
    };
    match <[Tensor; 1]>::try_from(outputs) {
        Ok([only]) => Value::Tensor(only),
        Err(several) => Value::Map(named(several)),
    }
}
