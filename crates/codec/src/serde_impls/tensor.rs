//! A tensor inside a user's type: nested lists to people, exact bytes to programs.
//!
//! Formats for people (JSON) get nested lists; [`Value`] and binary formats get dtype, shape and bytes, see [`exact`].
//! Reading accepts everything that [`Tensor::from_value`] does.

use std::borrow::Cow;

use ::serde::ser::SerializeSeq;
use ::serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::msgpack::ext;
use crate::serde_impls::exact;
use crate::serde_impls::scalar::PlainScalar;
use crate::value::Value;
use crate::value::tensor::{DType, Element, StrTensor, Tensor, with_element};

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact::serialize(
            serializer,
            exact::Forms {
                plain: &NestedElements(self),
                code: ext::TENSOR,
                payload: || ext::tensor_payload(self),
                shared: || Value::Tensor(self.clone()),
                bytes: self.data().len(),
            },
        )
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        Self::from_value(&value, None).map_err(de::Error::custom)
    }
}

impl JsonSchema for Tensor {
    fn schema_name() -> Cow<'static, str> {
        "Tensor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let dtypes: Vec<&str> = DType::all().map(DType::name).collect();
        json_schema!({
            "description": "an n-dimensional array: nested lists of numbers, or dtype, shape and data",
            "anyOf": [
                { "type": "array" },
                { "type": "number" },
                { "type": "boolean" },
                {
                    "type": "object",
                    "required": ["dtype", "shape", "data"],
                    "properties": {
                        "dtype": { "type": "string", "enum": dtypes },
                        "shape": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
                        "data": {
                            "type": ["array", "string", "number", "boolean"],
                            "description": "numbers, as nested lists or without axes alone, or base64 of little-endian bytes"
                        }
                    }
                }
            ]
        })
    }
}

/// The elements as nested lists; a tensor without axes is its one element.
struct NestedElements<'a>(&'a Tensor);

impl Serialize for NestedElements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        with_element!(self.0.dtype(), T => {
            let elements = self.0.as_slice::<T>().expect("asked for the tensor's own dtype");
            NestedAxis { shape: self.0.shape(), elements }.serialize(serializer)
        })
    }
}

/// One row at some level: recurses once per axis, of which there are at most [`MAX_RANK`](crate::MAX_RANK).
struct NestedAxis<'a, T> {
    shape: &'a [usize],
    elements: &'a [T],
}

impl<T: Element> Serialize for NestedAxis<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((len, shape)) = self.shape.split_first() else {
            return PlainScalar(self.elements[0].to_scalar()).serialize(serializer);
        };
        let row = self.elements.len().checked_div(*len).unwrap_or(0);
        let mut rows = serializer.serialize_seq(Some(*len))?;
        for index in 0..*len {
            rows.serialize_element(&NestedAxis { shape, elements: &self.elements[index * row..][..row] })?;
        }
        rows.end()
    }
}

impl Serialize for StrTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let forms = exact::Forms {
            plain: &NestedTexts(self.shape(), self, 0),
            code: ext::STR_TENSOR,
            payload: || ext::str_tensor_payload(self),
            shared: || Value::StrTensor(self.clone()),
            bytes: self.data().len(),
        };
        exact::serialize(serializer, forms)
    }
}

impl<'de> Deserialize<'de> for StrTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        Self::from_value(&value).map_err(de::Error::custom)
    }
}

impl JsonSchema for StrTensor {
    fn schema_name() -> Cow<'static, str> {
        "StrTensor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "an n-dimensional array of texts: nested lists",
            "anyOf": [{ "type": "array" }, { "type": "string" }]
        })
    }
}

/// Texts as nested lists, from the index of the first; recurses once per axis.
struct NestedTexts<'a>(&'a [usize], &'a StrTensor, usize);

impl Serialize for NestedTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((len, shape)) = self.0.split_first() else {
            return serializer.serialize_str(self.1.get(self.2).expect("as many texts as the shape says"));
        };
        let row: usize = shape.iter().product();
        let mut rows = serializer.serialize_seq(Some(*len))?;
        (0..*len).try_for_each(|index| rows.serialize_element(&NestedTexts(shape, self.1, self.2 + index * row)))?;
        rows.end()
    }
}
