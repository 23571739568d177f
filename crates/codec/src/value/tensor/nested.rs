//! Reads a tensor from a dynamic value: nested lists of numbers, as in JSON, or `{dtype, shape, data}`.
//!
//! Decides the shape from the first element of each level and the dtype from all of them, unless the caller knows it. A
//! ragged row or a number out of range is a mismatch that names its place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use crate::account::{ChargeError, charge};
use crate::error::DecodeError;
use crate::out;
use crate::value::tensor::{DType, Element, MAX_RANK, Tensor, TensorError, size_of_shape, view, with_element};
use crate::value::{Map, Value};

impl Tensor {
    /// Makes a tensor from a value: a tensor, a scalar, a number, nested lists of numbers, or a map of `dtype`, `shape`
    /// and `data` (nested or flat numbers, bytes, or base64 of little-endian bytes).
    ///
    /// With a `dtype`, numbers are read as that type and must be in its range, and a tensor of another dtype is
    /// refused. Without one, bools make a bool tensor, integers an i64 (or u64 when one needs it), anything with a
    /// float an f64. A complex number in a list is a pair of its parts, as JSON has it; a number by itself is a real
    /// one.
    ///
    /// ```
    /// use callboard_codec::{DType, DecodeLimits, Format, Tensor, Value};
    ///
    /// let value = Value::decode(Format::Json, &"[[1, 2], [3, 400]]".into(), &DecodeLimits::default())?;
    /// assert_eq!(Tensor::from_value(&value, None)?.dtype(), DType::I64);
    /// assert_eq!(Tensor::from_value(&value, Some(DType::F32))?.shape(), [2, 2]);
    ///
    /// let error = Tensor::from_value(&value, Some(DType::U8)).unwrap_err();
    /// assert_eq!(error.to_string(), "400 does not fit u8 at $[1][1]");
    ///
    /// let error = Tensor::from_value(&Value::Float(1e300), Some(DType::F32)).unwrap_err();
    /// assert_eq!(error.to_string(), "1e300 does not fit f32");
    /// # Ok::<(), callboard_codec::DecodeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A mismatch that names the element or row at fault.
    pub fn from_value(value: &Value, dtype: Option<DType>) -> Result<Self, DecodeError> {
        match value {
            Value::Tensor(tensor) => expect_dtype(tensor, dtype).map(|()| tensor.clone()),
            Value::Map(map) => from_map(map, dtype),
            Value::Scalar(scalar) if dtype.is_none() => from_nested(value, scalar.dtype()),
            _ => from_nested(value, dtype.map_or_else(|| infer(value, 0), Ok)?),
        }
    }
}

fn expect_dtype(tensor: &Tensor, dtype: Option<DType>) -> Result<(), DecodeError> {
    match dtype {
        Some(requested) if requested != tensor.dtype() => {
            Err(refused(&TensorError::WrongDType { requested, actual: tensor.dtype() }))
        }
        _ => Ok(()),
    }
}

fn from_map(map: &Map, requested: Option<DType>) -> Result<Tensor, DecodeError> {
    let data = map.get("data").ok_or_else(|| DecodeError::mismatch("a tensor as a map needs dtype, shape and data"))?;
    let named = map.get("dtype").map(dtype_of).transpose().map_err(|error| error.in_key("dtype"))?;
    let shape = map.get("shape").map(shape_of).transpose().map_err(|error| error.in_key("shape"))?;
    let tensor = match (data, named, &shape) {
        (Value::Bytes(bytes), Some(dtype), Some(shape)) => from_bytes(bytes.clone(), dtype, shape),
        (Value::Str(text), Some(dtype), Some(shape)) => from_base64(text, dtype, shape),
        (Value::Bytes(_) | Value::Str(_), _, _) => {
            Err(DecodeError::mismatch("a tensor of raw data needs dtype and shape"))
        }
        (Value::Map(_), _, _) => Err(DecodeError::mismatch("a map is not tensor data")),
        _ => Tensor::from_value(data, named.or(requested)),
    };
    let tensor = tensor.map_err(|error| error.in_key("data"))?;
    expect_dtype(&tensor, requested).map_err(|error| error.in_key("dtype"))?;
    match shape {
        Some(shape) => tensor.reshape(&shape).map_err(|error| refused(&error).in_key("shape")),
        None => Ok(tensor),
    }
}

fn from_base64(text: &str, dtype: DType, shape: &[usize]) -> Result<Tensor, DecodeError> {
    charge(base64::decoded_len_estimate(text.len()))?;
    let bytes = BASE64.decode(text).map_err(|error| DecodeError::mismatch(format!("not base64: {error}")))?;
    from_bytes(bytes.into(), dtype, shape)
}

fn from_bytes(bytes: Bytes, dtype: DType, shape: &[usize]) -> Result<Tensor, DecodeError> {
    view::charge_aligned(&bytes, dtype.size_bytes())?;
    Tensor::try_new(dtype, shape, bytes).map_err(|error| refused(&error))
}

fn dtype_of(value: &Value) -> Result<DType, DecodeError> {
    let name = value.as_str().ok_or_else(|| DecodeError::mismatch(format!("{} is not a dtype", value.kind())))?;
    name.parse().map_err(|error| refused(&error))
}

fn shape_of(value: &Value) -> Result<Vec<usize>, DecodeError> {
    let axes = value.as_list().ok_or_else(|| DecodeError::mismatch(format!("{} is not a shape", value.kind())))?;
    let axis = |value: &Value| value.as_u64().and_then(|axis| usize::try_from(axis).ok());
    let checked = |(index, value)| axis(value).ok_or_else(|| DecodeError::mismatch("not a length").in_index(index));
    axes.iter().enumerate().map(checked).collect()
}

fn from_nested(value: &Value, dtype: DType) -> Result<Tensor, DecodeError> {
    if let Some(part) = part_of_complex(dtype)
        && value.as_list().is_some()
        && first_leaf(value).is_some_and(|leaf| !matches!(leaf, Value::Scalar(scalar) if scalar.dtype().is_complex()))
    {
        return from_pairs(&from_nested(value, part)?, dtype);
    }
    let shape = first_shape(value)?;
    // The elements are in memory already as values, so the product must only not overflow. Nothing is reserved for it,
    // because a ragged list may have fewer elements.
    let len = size_of_shape(dtype, &shape).map_err(|error| refused(&error))? / dtype.size_bytes();
    with_element!(dtype, T => {
        let mut elements = ChargedList { list: Vec::<T>::new(), at_most: len };
        fill(value, &shape, &mut elements)?;
        let elements = elements.list;
        Tensor::from_vec(&shape, elements).map_err(|error| refused(&error))
    })
}

fn part_of_complex(dtype: DType) -> Option<DType> {
    match dtype {
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        _ => None,
    }
}

/// Complex numbers from real ones whose last axis has the two parts of each.
fn from_pairs(parts: &Tensor, dtype: DType) -> Result<Tensor, DecodeError> {
    match parts.shape().split_last() {
        Some((2, shape)) => from_bytes(parts.data().clone(), dtype, shape),
        _ => Err(DecodeError::mismatch(format!("{dtype} in lists is pairs of a real and an imaginary part"))),
    }
}

/// The first element, found along the first of each level.
fn first_leaf(value: &Value) -> Option<&Value> {
    let mut level = value;
    for _ in 0..=MAX_RANK {
        match level.as_list() {
            Some(items) => level = items.first()?,
            None => return Some(level),
        }
    }
    None
}

/// The lengths along the first element of each level.
fn first_shape(value: &Value) -> Result<Vec<usize>, DecodeError> {
    let mut shape = Vec::new();
    let mut level = value;
    while let Some(items) = level.as_list() {
        if shape.len() == MAX_RANK {
            return Err(refused(&TensorError::TooManyAxes { rank: MAX_RANK + 1 }));
        }
        shape.push(items.len());
        match items.first() {
            Some(first) => level = first,
            None => break,
        }
    }
    Ok(shape)
}

/// A list that is charged as it grows.
struct ChargedList<T> {
    list: Vec<T>,
    /// The expected final length.
    at_most: usize,
}

impl<T> ChargedList<T> {
    fn push(&mut self, element: T) -> Result<(), ChargeError> {
        out::make_room(&mut self.list, self.at_most)?;
        self.list.push(element);
        Ok(())
    }
}

/// Appends the elements of `value`, which must have exactly `shape`. Recurses at most [`MAX_RANK`] levels.
fn fill<T: Element>(value: &Value, shape: &[usize], elements: &mut ChargedList<T>) -> Result<(), DecodeError> {
    match (shape.split_first(), value.as_list()) {
        (None, None) => Ok(elements.push(T::from_value(value).ok_or_else(|| not_an_element::<T>(value))?)?),
        (Some((len, inner)), Some(items)) if items.len() == *len => {
            let step = |(index, item)| fill(item, inner, elements).map_err(|error| error.in_index(index));
            items.iter().enumerate().try_for_each(step)
        }
        (Some((len, _)), Some(items)) => {
            Err(DecodeError::mismatch(format!("a row of {} where others have {len}", items.len())))
        }
        (Some((len, _)), None) => {
            Err(DecodeError::mismatch(format!("{} where others have a row of {len}", value.kind())))
        }
        (None, Some(_)) => Err(DecodeError::mismatch("a list where others have a number")),
    }
}

/// The shape and leaves of nested lists of texts. The leaves are charged, for the caller to release.
pub(crate) fn texts(value: &Value) -> Result<(Vec<usize>, Vec<&str>), DecodeError> {
    let shape = first_shape(value)?;
    let at_most = size_of_shape(DType::U8, &shape).map_err(|error| refused(&error))?;
    let mut texts = ChargedList { list: Vec::new(), at_most };
    fill_texts(value, &shape, &mut texts)?;
    Ok((shape, texts.list))
}

fn fill_texts<'v>(value: &'v Value, shape: &[usize], texts: &mut ChargedList<&'v str>) -> Result<(), DecodeError> {
    match (shape.split_first(), value.as_list()) {
        (None, None) => {
            let text =
                value.as_str().ok_or_else(|| DecodeError::mismatch(format!("{} is not a string", value.kind())))?;
            Ok(texts.push(text)?)
        }
        (Some((len, inner)), Some(items)) if items.len() == *len => {
            let step = |(index, item)| fill_texts(item, inner, texts).map_err(|error| error.in_index(index));
            items.iter().enumerate().try_for_each(step)
        }
        _ => Err(DecodeError::mismatch("a row of another shape than the first")),
    }
}

fn not_an_element<T: Element>(value: &Value) -> DecodeError {
    let shown = match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        // Not all 301 digits of 1e300.
        Value::Float(number) => format!("{number:?}"),
        other => other.kind().to_owned(),
    };
    DecodeError::mismatch(format!("{shown} does not fit {}", T::DTYPE))
}

/// The narrowest of bool, i64, u64 and f64 that holds every leaf.
fn infer(value: &Value, depth: usize) -> Result<DType, DecodeError> {
    let Some(items) = value.as_list() else {
        return infer_leaf(value);
    };
    if depth == MAX_RANK {
        return Err(refused(&TensorError::TooManyAxes { rank: MAX_RANK + 1 }));
    }
    let mut found = None;
    for (index, item) in items.iter().enumerate() {
        let next = infer(item, depth + 1).map_err(|error| error.in_index(index))?;
        found = Some(found.map_or(next, |before| join(before, next)));
    }
    Ok(found.unwrap_or(DType::F64))
}

fn infer_leaf(value: &Value) -> Result<DType, DecodeError> {
    match value {
        Value::Bool(_) => Ok(DType::Bool),
        Value::Int(_) => Ok(DType::I64),
        Value::UInt(_) => Ok(DType::U64),
        Value::Float(_) => Ok(DType::F64),
        Value::Scalar(scalar) => Ok(scalar.dtype()),
        other => Err(DecodeError::mismatch(format!("{} is not a number", other.kind()))),
    }
}

/// The common dtype of two leaves. A u64 and an i64 become u64, which refuses negative numbers; other pairs become f64.
fn join(a: DType, b: DType) -> DType {
    match (a, b) {
        (a, b) if a == b => a,
        (DType::I64, DType::U64) | (DType::U64, DType::I64) => DType::U64,
        _ => DType::F64,
    }
}

fn refused(error: &TensorError) -> DecodeError {
    DecodeError::mismatch(error.to_string())
}
