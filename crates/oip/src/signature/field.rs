//! One array of a signature, and its place in a value.

use callboard_codec::{DType, DecodeError, DecodeLimits, EncodeError, Format, StrTensor, Tensor, Value};

use crate::array::Array;
use crate::datatype::Datatype;
use crate::error::Refusal;

/// One array of a route's input or output.
#[derive(Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) datatype: Datatype,
    /// The length of each axis, without the axis of items. `None`: any shape.
    pub(crate) shape: Option<Vec<Option<usize>>>,
    pub(crate) kind: FieldKind,
    pub(crate) is_required: bool,
}

/// The role of the array in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// A tensor.
    Array,
    /// The only element.
    Element,
    /// The only element as bytes.
    Blob,
    /// The only element, decoded as JSON.
    Document,
    /// The same, or a text if it is not JSON.
    DocumentOrText,
}

impl FieldKind {
    fn is_document(self) -> bool {
        matches!(self, Self::Document | Self::DocumentOrText)
    }
}

impl Field {
    /// Whether an array of this shape is one item.
    pub(crate) fn fits(&self, shape: &[usize]) -> bool {
        match (&self.shape, self.kind) {
            (_, FieldKind::Element | FieldKind::Blob | FieldKind::Document | FieldKind::DocumentOrText) => {
                shape.iter().all(|axis| *axis == 1)
            }
            (None, FieldKind::Array) => true,
            (Some(axes), FieldKind::Array) => {
                let fits = |(length, axis): (&usize, &Option<usize>)| axis.is_none_or(|axis| axis == *length);
                axes.len() == shape.len() && shape.iter().zip(axes).all(fits)
            }
        }
    }

    /// Whether it is an array without axes.
    pub(crate) fn is_scalar(&self) -> bool {
        self.kind == FieldKind::Array && self.shape.as_ref().is_some_and(Vec::is_empty)
    }

    pub(crate) fn item(&self, value: Value) -> Result<Value, Refusal> {
        if self.kind != FieldKind::Array || value.is_null() {
            return Ok(value);
        }
        let refused = |error: DecodeError| Refusal::unparsable(&self.name, error);
        let (value, shape) = match self.datatype {
            Datatype::Number(dtype) => {
                let tensor = Tensor::from_value(&value, Some(dtype)).map_err(refused)?;
                let shape = tensor.shape().to_vec();
                (Value::Tensor(tensor), shape)
            }
            Datatype::Bytes => {
                let texts = StrTensor::from_value(&value).map_err(refused)?;
                let shape = texts.shape().to_vec();
                (Value::StrTensor(texts), shape)
            }
        };
        if self.fits(&shape) {
            Ok(value)
        } else {
            Err(Refusal::new(format!("unexpected shape {shape:?} for input '{}'", self.name)))
        }
    }

    pub(crate) fn value(&self, array: &Array, limits: &DecodeLimits) -> Result<Value, Refusal> {
        let refused = |error: &dyn std::error::Error| Refusal::new(format!("input '{}': {error}", self.name));
        let elements = || array.elements().next().unwrap_or_default();
        match self.kind {
            FieldKind::Array => array.to_value().map_err(|error| refused(&error)),
            FieldKind::Blob => Ok(Value::Bytes(elements())),
            FieldKind::Document => Value::decode(Format::Json, &elements(), limits).map_err(|error| refused(&error)),
            FieldKind::DocumentOrText => {
                let element = elements();
                Value::decode(Format::Json, &element, limits).or_else(|error| match std::str::from_utf8(&element) {
                    Ok(text) => Ok(Value::from(text)),
                    Err(_) => Err(refused(&error)),
                })
            }
            FieldKind::Element if array.datatype == Datatype::Bytes => {
                let bytes = elements();
                Ok(match std::str::from_utf8(&bytes) {
                    Ok(text) => Value::from(text),
                    Err(_) => Value::Bytes(bytes),
                })
            }
            FieldKind::Element => match array.to_value().map_err(|error| refused(&error))? {
                Value::Tensor(tensor) => {
                    only_element(&tensor).ok_or_else(|| Refusal::wrong_count(&self.name, 1, tensor.len()))
                }
                other => Ok(other),
            },
        }
    }

    pub(crate) fn array(&self, value: &Value) -> Result<Array, OutputError> {
        let mismatch =
            |reason: String| OutputError::Mismatch { name: self.name.clone(), datatype: self.datatype.name(), reason };
        // The value of an empty optional field.
        if value.is_null() && !self.kind.is_document() {
            return if self.is_required {
                Err(mismatch("there is none".to_owned()))
            } else {
                Ok(Array { datatype: self.datatype, shape: vec![0], data: bytes::Bytes::new() })
            };
        }
        let mut array = match (self.kind, self.datatype, value) {
            (FieldKind::Document | FieldKind::DocumentOrText, ..) => {
                let source = |source| OutputError::Document { name: self.name.clone(), source };
                Array::from_elements(vec![1], [value.encode(Format::Json).map_err(source)?])
            }
            (_, Datatype::Bytes, Value::Bytes(bytes)) => Array::from_elements(vec![1], [bytes]),
            (_, Datatype::Bytes, Value::List(items)) if items.iter().any(|item| item.as_bytes().is_some()) => {
                let bytes: Option<Vec<_>> = items.iter().map(Value::as_bytes).collect();
                let bytes = bytes.ok_or_else(|| mismatch("texts beside bytes".to_owned()))?;
                Array::from_elements(vec![bytes.len()], bytes)
            }
            (_, Datatype::Bytes, value) => {
                Array::from_texts(&StrTensor::from_value(value).map_err(|error| mismatch(error.to_string()))?)
            }
            // A tensor has its own datatype.
            (_, Datatype::Number(_), Value::Tensor(tensor)) => {
                Array::from_tensor(tensor).ok_or_else(|| mismatch(format!("it is of {}", tensor.dtype())))?
            }
            (_, Datatype::Number(dtype), value) => {
                let tensor = Tensor::from_value(value, Some(dtype)).map_err(|error| mismatch(error.to_string()))?;
                Array::from_tensor(&tensor).ok_or_else(|| mismatch(format!("it is of {dtype}")))?
            }
        };
        if array.shape.is_empty() && self.shape.as_ref().is_none_or(|shape| !shape.is_empty()) {
            array.shape.push(1);
        }
        Ok(array)
    }
}

/// A value that is not of its route's type.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("output '{name}' is not an array of {datatype}: {reason}")]
    Mismatch { name: String, datatype: &'static str, reason: String },
    #[error("output '{name}' cannot be written as JSON")]
    Document { name: String, source: EncodeError },
}

/// The only element of a tensor, as a plain value.
pub(crate) fn only_element(tensor: &Tensor) -> Option<Value> {
    macro_rules! only {
        ($($dtype:ident => $rust:ty: $into:expr),* $(,)?) => {
            match tensor.dtype() {
                $(DType::$dtype => match tensor.as_slice::<$rust>().ok()? {
                    [only] => Some($into(*only)),
                    _ => None,
                },)*
                _ => None,
            }
        };
    }
    only!(
        Bool => bool: Value::from,
        I8 => i8: Value::from, I16 => i16: Value::from, I32 => i32: Value::from, I64 => i64: Value::from,
        U8 => u8: Value::from, U16 => u16: Value::from, U32 => u32: Value::from, U64 => u64: Value::from,
        F16 => half::f16: |value: half::f16| Value::Float(value.to_f64()),
        BF16 => half::bf16: |value: half::bf16| Value::Float(value.to_f64()),
        F32 => f32: |value: f32| Value::Float(value.into()), F64 => f64: Value::Float,
    )
}
