//! Converts one item to the tensors of the engine, and outputs to an item.
//!
//! A wrong input is refused with its name, its expected and its actual type. All wrong inputs are named at once, with
//! their paths. This code sees one item at a time, so a refused item does not affect other items.

use callboard_codec::{DType, DecodeError, Map, StrTensor, Tensor, Value};
use callboard_core::Failure;

use crate::cast::{CastError, cast};
use crate::config::PadAxis;
use crate::model::Model;
use crate::signature::{Axis, BatchAxis, Kind, Padding, Signature, TensorSpec, shape_of};

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
    #[error("input `{name}`: axis `{axis}` is {length}, at most {limit} is allowed")]
    TooLong { name: String, axis: PadAxis, length: usize, limit: usize },
}

impl InputError {
    fn error_type(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing_input",
            Self::Unknown { .. } => "unknown_input",
            Self::NotAMap { .. } | Self::Wrong { .. } | Self::AxesDiffer { .. } => "wrong_input",
            Self::OutOfRange { .. } => "out_of_range",
            Self::TooLong { .. } => "too_long",
        }
    }

    /// The name of the wrong input, if there is one.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Missing { name, .. }
            | Self::Unknown { name, .. }
            | Self::Wrong { name, .. }
            | Self::AxesDiffer { name, .. }
            | Self::TooLong { name, .. }
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

/// The inputs of one item in the signature's order, without the batch axis, numbers of the engine's dtype.
pub(crate) fn read_item(model: &Model, item: &Value) -> Result<Vec<Value>, Refusal> {
    let signature = model.signature();
    let mut refusal = Refusal { errors: Vec::new(), by_name: false };
    let values = values_of(signature, item, &mut refusal);
    let mut inputs = Vec::with_capacity(values.len());
    for ((spec, dtype), value) in model.inputs().zip(values) {
        let Some(value) = value else {
            // The mask is made below; any other missing input has its error.
            inputs.push(Value::Null);
            continue;
        };
        let input = read_input(signature, spec, value).and_then(|input| to_engine(spec, input, dtype));
        match input {
            Ok(input) => inputs.push(input),
            Err(error) => refusal.errors.push(error),
        }
    }
    // Axes can only be compared where all inputs are there.
    if refusal.errors.is_empty() {
        let padding = signature.padding();
        let checked = check_named_axes(signature, &inputs);
        let checked =
            checked.and_then(|()| padding.map_or(Ok(()), |padding| check_length(signature, padding, &inputs)));
        refusal.errors.extend(checked.err());
    }
    if refusal.errors.is_empty() {
        refusal.errors.extend(add_mask(model, &mut inputs).err());
    }
    if refusal.errors.is_empty() { Ok(inputs) } else { Err(refusal) }
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
            let missing = inputs.iter().filter(|spec| !map.contains_key(spec.name()) && !signature.is_optional(spec));
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

fn read_input(signature: &Signature, spec: &TensorSpec, value: &Value) -> Result<Value, InputError> {
    let wrong =
        |got: String| InputError::Wrong { name: spec.name().to_owned(), expected: signature.describe_item(spec), got };
    let input = read_kind(spec.kind(), value).map_err(wrong)?;
    let nested = || if matches!(value, Value::List(_)) { fit_empty(signature, spec, &input) } else { None };
    fit(signature, spec, &input).or_else(nested).ok_or_else(|| wrong(describe(&input)))
}

/// An input of nested lists that end at an empty axis: they cannot say how long the axes behind it are, so these are as
/// long as the model declares; one of any length is empty, too.
fn fit_empty(signature: &Signature, spec: &TensorSpec, input: &Value) -> Option<Value> {
    let (axes, shape) = (signature.item_axes(spec)?, shape_of(input)?);
    let fitted = |said: &[usize]| {
        let behind = axes.get(said.len()..).filter(|_| said.last() == Some(&0))?;
        let length = |axis: &Axis| if let Axis::Fixed(length) = axis { *length } else { 0 };
        let shape: Vec<usize> = said.iter().copied().chain(behind.iter().map(length)).collect();
        fits(&shape, axes).then_some(shape)
    };
    let has_batch_axis = signature.batch_axis() != BatchAxis::Absent;
    let shape = fitted(shape).or_else(|| match shape {
        [1, sample @ ..] if has_batch_axis => fitted(sample),
        _ => None,
    })?;
    match input {
        Value::Tensor(tensor) => tensor.reshape(&shape).ok().map(Value::Tensor),
        Value::StrTensor(_) => StrTensor::from_texts(&shape, std::iter::empty::<&str>()).ok().map(Value::StrTensor),
        _ => None,
    }
}

/// The value as the declared kind, or what it is instead.
fn read_kind(kind: &Kind, value: &Value) -> Result<Value, String> {
    let unreadable = |error: DecodeError| format!("{}: {error}", value.kind());
    match kind {
        Kind::Numbers(dtype) => match value {
            Value::Tensor(tensor) if tensor.dtype() != *dtype => Err(describe(value)),
            other => read_tensor(*dtype, other).map(Value::Tensor).map_err(unreadable),
        },
        Kind::Texts => StrTensor::from_value(value).map(Value::StrTensor).map_err(unreadable),
        Kind::Sequence(of) => match value {
            Value::List(parts) => {
                parts.iter().map(|part| read_kind(of, part)).collect::<Result<_, _>>().map(Value::List)
            }
            other => Err(other.kind().to_owned()),
        },
        Kind::Map(_) => Err(format!("{}: this node gives no maps to models", value.kind())),
    }
}

fn read_tensor(dtype: DType, value: &Value) -> Result<Tensor, DecodeError> {
    Tensor::from_value(value, Some(dtype)).or_else(|error| {
        // `1.0` may be an integer of a sender with one type of numbers. Tried only if the item would be refused.
        match is_integer(dtype).then(|| with_whole_numbers(value)).flatten() {
            Some(whole) => Tensor::from_value(&whole, Some(dtype)),
            None => Err(error),
        }
    })
}

/// The input if it has the shape of one item. A batch axis of length 1 is removed: the rank shows that it is one.
fn fit(signature: &Signature, spec: &TensorSpec, input: &Value) -> Option<Value> {
    let (Some(axes), Some(shape)) = (signature.item_axes(spec), shape_of(input)) else {
        return Some(input.clone());
    };
    match shape {
        shape if fits(shape, axes) => Some(input.clone()),
        [1, sample @ ..] if signature.batch_axis() != BatchAxis::Absent && fits(sample, axes) => match input {
            Value::Tensor(tensor) => tensor.reshape(sample).ok().map(Value::Tensor),
            Value::StrTensor(texts) => texts.split().ok()?.pop().map(Value::StrTensor),
            _ => None,
        },
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
fn check_named_axes(signature: &Signature, inputs: &[Value]) -> Result<(), InputError> {
    let mut seen: Vec<(&str, usize, &str)> = Vec::new();
    for (spec, input) in signature.inputs().iter().zip(inputs) {
        let axes = signature.item_axes(spec).unwrap_or_default();
        for (axis, &length) in axes.iter().zip(shape_of(input).unwrap_or_default()) {
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

/// Checks that the padded axis has one length, which fits a bucket.
fn check_length(signature: &Signature, padding: &Padding, inputs: &[Value]) -> Result<(), InputError> {
    let name = |input: usize| signature.inputs()[input].name().to_owned();
    let mut lengths = padding.lengths(inputs);
    let Some((first, length)) = lengths.next() else { return Ok(()) };
    if let Some((other, other_length)) = lengths.find(|(_, other)| *other != length) {
        let axis = padding.axis().to_string();
        return Err(InputError::AxesDiffer {
            name: name(other),
            axis,
            length: other_length,
            other: name(first),
            other_length: length,
        });
    }
    match padding.max_length() {
        Some(limit) if length > limit => {
            Err(InputError::TooLong { name: name(first), axis: padding.axis().clone(), length, limit })
        }
        _ => Ok(()),
    }
}

/// Makes the mask of an item that came without it.
fn add_mask(model: &Model, inputs: &mut [Value]) -> Result<(), InputError> {
    let signature = model.signature();
    let Some(padding) = signature.padding() else { return Ok(()) };
    let Some((index, mask)) = padding
        .mask()
        .filter(|mask| inputs[*mask] == Value::Null)
        .and_then(|index| padding.make_mask(padding.length(inputs)).map(|mask| (index, mask)))
    else {
        return Ok(());
    };
    let (spec, dtype) = (&signature.inputs()[index], model.inputs().nth(index).and_then(|(_, dtype)| dtype));
    inputs[index] = to_engine(spec, Value::Tensor(mask), dtype)?;
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

fn to_engine(spec: &TensorSpec, input: Value, dtype: Option<DType>) -> Result<Value, InputError> {
    match (&input, dtype) {
        (Value::Tensor(tensor), Some(dtype)) => cast(tensor, dtype)
            .map(Value::Tensor)
            .map_err(|source| InputError::OutOfRange { name: spec.name().to_owned(), source }),
        _ => Ok(input),
    }
}

fn describe(input: &Value) -> String {
    match input {
        Value::Tensor(tensor) => format!("{} {:?}", tensor.dtype(), tensor.shape()),
        Value::StrTensor(texts) => format!("text {:?}", texts.shape()),
        other => other.kind().to_owned(),
    }
}

/// The outputs of an item: that of a model with one output, otherwise a map by name.
pub(crate) fn write_item(signature: &Signature, outputs: Vec<Value>) -> Value {
    let named = |outputs: Vec<Value>| {
        let names = signature.outputs().iter().map(TensorSpec::name);
        names.zip(outputs).collect::<Map>()
    };
    match <[Value; 1]>::try_from(outputs) {
        Ok([only]) => only,
        Err(several) => Value::Map(named(several)),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::{
        DimensionProto, DimensionValue, ElementType, GraphProto, ModelProto, TensorShapeProto, TensorTypeProto,
        TypeProto, ValueInfoProto,
    };

    /// A model of one input and one output, whose axes are numbers or names.
    fn signature(elements: ElementType, input: &[&str], output: &[&str]) -> Signature {
        let tensor = |name: &str, elements: ElementType, axes: &[&str]| {
            let value = |axis: &str| {
                axis.parse().map_or_else(|_| DimensionValue::Param(axis.to_owned()), DimensionValue::Value)
            };
            let dim = axes.iter().map(|axis| DimensionProto { value: Some(value(axis)) }).collect();
            let tensor = TensorTypeProto { elem_type: Some(elements as i32), shape: Some(TensorShapeProto { dim }) };
            let r#type = Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() });
            ValueInfoProto { name: Some(name.to_owned()), r#type }
        };
        let (input, output) = (vec![tensor("x", elements, input)], vec![tensor("y", ElementType::Float, output)]);
        let graph = Some(GraphProto { input, output, ..GraphProto::default() });
        let model = ModelProto { graph, ir_version: Some(8), ..ModelProto::default() };
        Signature::try_from_onnx(&model.encode_to_vec()).unwrap()
    }

    fn shape_as_read(signature: &Signature, value: &Value) -> Result<Vec<usize>, String> {
        let read = read_input(signature, &signature.inputs()[0], value).map_err(|error| error.to_string())?;
        Ok(shape_of(&read).unwrap().to_vec())
    }

    fn list(items: impl IntoIterator<Item = Value>) -> Value {
        Value::List(items.into_iter().collect())
    }

    #[test]
    fn texts_have_the_shape_of_one_item() {
        let signature = signature(ElementType::String, &["N", "width", "2"], &["N"]);
        let row = || list(["a", "b"].map(Value::from));
        let read = |value| shape_as_read(&signature, &value);
        assert_eq!(read(list([row()])), Ok(vec![1, 2]));
        assert_eq!(read(list([list([row(), row()])])), Ok(vec![2, 2]), "a batch axis of one is removed");
        assert_eq!(read(list([])), Ok(vec![0, 2]), "an empty axis says nothing of those behind it");
        let error = read(list([list([Value::from("a")])])).unwrap_err();
        assert_eq!(error, "input `x`: expected text [width, 2], got text [1, 1]");
    }

    #[test]
    fn an_axis_of_one_before_an_empty_one_is_that_of_a_batch_only_if_there_is_one() {
        let nested = || list([list([])]);
        let batched = signature(ElementType::Float, &["N", "width", "2"], &["N"]);
        assert_eq!(shape_as_read(&batched, &nested()), Ok(vec![0, 2]));
        let whole = signature(ElementType::Float, &["N", "2"], &["3"]);
        assert!(shape_as_read(&whole, &nested()).is_err());
        assert_eq!(shape_as_read(&whole, &list([])), Ok(vec![0, 2]));
    }

    #[test]
    fn whole_floats_are_integers_up_to_those_that_are_exact() {
        let whole = |number: f64| with_whole_numbers(&Value::Float(number));
        assert_eq!(whole(-7.0), Some(Value::Int(-7)));
        assert_eq!(
            [whole(EXACT - 1.0), whole(1.0 - EXACT)],
            [Some(Value::Int((1 << 53) - 1)), Some(Value::Int(1 - (1 << 53)))]
        );
        assert_eq!([whole(EXACT), whole(-EXACT), whole(0.5), whole(f64::NAN)], [None, None, None, None]);
        let mixed = list([Value::Float(2.0), list([Value::Int(3), Value::UInt(u64::MAX)])]);
        assert_eq!(
            with_whole_numbers(&mixed),
            Some(list([Value::Int(2), list([Value::Int(3), Value::UInt(u64::MAX)])]))
        );
        assert_eq!(with_whole_numbers(&list([Value::Null])), None);
    }

    #[test]
    fn a_float_is_no_bool_and_the_error_says_what_was_sent() {
        let error = |dtype, value| read_tensor(dtype, &value).unwrap_err().to_string();
        let sent = Tensor::from_value(&Value::Float(1.0), Some(DType::Bool)).unwrap_err().to_string();
        assert_eq!(error(DType::Bool, Value::Float(1.0)), sent);
        assert!(error(DType::U8, Value::Float(300.0)).contains("300"));
        assert_eq!(read_tensor(DType::U8, &Value::Float(3.0)).unwrap().data()[..], [3]);
    }
}
