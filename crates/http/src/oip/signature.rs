//! A route's input or output as arrays by name.
//!
//! Where the route itself says that it is such (a model's signature), that is what counts. Else its JSON Schema is read: each
//! property of an object is one array, anything but an object is one array by itself. A number, a bool or a text is an array of
//! one element; lists of them, also nested, are arrays with as many axes; texts are `BYTES`. What is none of these (a map, a
//! union, a list of maps) is one element of `BYTES` that holds its JSON. So every route is a model, and nothing of it is hidden.

use callboard_codec::{
    DType, DataType, DecodeError, DecodeLimits, EncodeError, Format, Map, StrTensor, Tensor, TensorFields, Value,
};
use serde_json::Value as Json;

use super::array::Array;
use super::datatype::Datatype;
use super::error::Refusal;

/// Arrays by name, and how they make up a value.
#[derive(Debug, PartialEq)]
pub(super) struct Signature {
    pub(super) fields: Vec<Field>,
    /// The value is not a map of its fields but its only field.
    is_bare: bool,
    /// Many items may come as one array with an axis in front.
    pub(super) stackable: bool,
}

/// One of them.
#[derive(Debug, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) datatype: Datatype,
    /// The length of each axis, without the one of many items. `None`: any shape.
    pub(super) shape: Option<Vec<Option<usize>>>,
    kind: Kind,
    pub(super) is_required: bool,
}

/// What stands for the array in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A tensor.
    Array,
    /// Its only element.
    Element,
    /// Its only element, as bytes whatever they are.
    Blob,
    /// What its only element means as JSON.
    Document,
}

/// The name of the only array of a value that is no map.
pub(super) const BARE_INPUT: &str = "input";
pub(super) const BARE_OUTPUT: &str = "output";

/// References are followed no deeper: a schema may lead back to itself.
const MAX_REFERENCES: usize = 16;

impl Signature {
    /// What `data_type` is, with this name for its only array if it has no names.
    pub(super) fn of(data_type: &DataType, bare_name: &str) -> Self {
        match data_type.tensors() {
            Some(tensors) => Self::of_tensors(tensors).unwrap_or_else(|| Self::of_schema(data_type, bare_name)),
            None => Self::of_schema(data_type, bare_name),
        }
    }

    /// `None` where one of them has elements that the protocol has not.
    fn of_tensors(tensors: &TensorFields) -> Option<Self> {
        let fields = tensors.fields.iter().map(|field| {
            Some(Field {
                name: field.name.clone(),
                datatype: field.dtype.map_or(Some(Datatype::Bytes), Datatype::of)?,
                shape: field.shape.clone(),
                kind: Kind::Array,
                is_required: true,
            })
        });
        Some(Self { fields: fields.collect::<Option<_>>()?, is_bare: false, stackable: tensors.stackable })
    }

    fn of_schema(data_type: &DataType, bare_name: &str) -> Self {
        let root = data_type.schema();
        let raw_field = data_type.raw_body().map(|raw| raw.field.as_str());
        let schema = resolved(root, root).0;
        let (fields, is_bare) = match schema.get("properties").and_then(Json::as_object) {
            Some(properties) => {
                let required = schema.get("required").and_then(Json::as_array);
                let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|other| other == name));
                let fields = properties.iter().map(|(name, property)| {
                    let mut field = Field::of_schema(name, root, property);
                    field.is_required &= is_required(name);
                    if raw_field == Some(name.as_str()) {
                        field.kind = Kind::Blob;
                    }
                    field
                });
                (fields.collect(), false)
            }
            None => (vec![Field::of_schema(bare_name, root, schema)], true),
        };
        Self { fields, is_bare, stackable: false }
    }

    /// Whether any of them is of `BYTES`, whose elements each are a value of their own.
    pub(super) fn has_elements(&self) -> bool {
        self.fields.iter().any(|field| field.datatype == Datatype::Bytes)
    }

    pub(super) fn field(&self, name: &str) -> Option<(usize, &Field)> {
        self.fields.iter().enumerate().find(|(_, field)| field.name == name)
    }

    /// The names, for messages.
    pub(super) fn names(&self) -> String {
        match self.fields.is_empty() {
            true => "none".to_owned(),
            false => self.fields.iter().map(|field| format!("'{}'", field.name)).collect::<Vec<_>>().join(", "),
        }
    }

    /// One item of its arrays: one for each field, as far as they are there.
    pub(super) fn value(&self, arrays: Vec<Option<Array>>, limits: &DecodeLimits) -> Result<Value, Refusal> {
        let mut map = Map::new();
        for (field, array) in self.fields.iter().zip(arrays) {
            let Some(array) = array else { continue };
            let value = field.value(&array, limits)?;
            if self.is_bare {
                return Ok(value);
            }
            map.insert(field.name.clone(), value);
        }
        Ok(Value::Map(map))
    }

    /// One item of the values of its fields, as JSON has them: nested lists become the arrays that they stand for.
    pub(super) fn item(&self, mut values: Map) -> Result<Value, Refusal> {
        for field in &self.fields {
            if let Some(value) = values.get_mut(&field.name) {
                *value = field.item(std::mem::take(value))?;
            }
        }
        if !self.is_bare {
            return Ok(Value::Map(values));
        }
        let name = &self.fields[0].name;
        values.remove(name).ok_or_else(|| Refusal::new(format!("input '{name}' is missing")))
    }

    /// The arrays of one item, one for each field.
    pub(super) fn arrays(&self, value: &Value) -> Result<Vec<Array>, OutputError> {
        self.fields.iter().map(|field| field.array(self.part(value, field).unwrap_or(&Value::Null))).collect()
    }

    /// What each field has in one item; an array of one element as that element.
    pub(super) fn named<'a>(&'a self, value: &Value) -> Vec<(&'a str, Value)> {
        let named = |field: &'a Field| {
            let part = self.part(value, field)?;
            let only = part.as_tensor().and_then(only_element);
            Some((field.name.as_str(), only.unwrap_or_else(|| part.clone())))
        };
        self.fields.iter().filter_map(named).collect()
    }

    fn part<'a>(&self, value: &'a Value, field: &Field) -> Option<&'a Value> {
        match value {
            Value::Map(map) if !self.is_bare => map.get(&field.name),
            // A model with one output gives it without a map around it.
            _ => (self.is_bare || self.fields.len() == 1).then_some(value),
        }
    }
}

/// A value that is not what its route said it would be.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutputError {
    #[error("output `{name}` is not an array of {datatype}: {reason}")]
    Mismatch { name: String, datatype: &'static str, reason: String },
    #[error("output `{name}` cannot be written as JSON")]
    Document { name: String, source: EncodeError },
}

impl Field {
    fn of_schema(name: &str, root: &Json, schema: &Json) -> Self {
        let (schema, is_nullable) = resolved(root, schema);
        let field = |datatype, shape, kind| Self {
            name: name.to_owned(),
            datatype,
            shape: Some(shape),
            kind,
            is_required: !is_nullable,
        };
        let (axes, element) = axes_of(root, schema);
        match element_of(element) {
            Some(datatype) if axes.is_empty() => {
                let is_blob = datatype == Datatype::Bytes && element.get("contentEncoding").is_some();
                field(datatype, vec![Some(1)], if is_blob { Kind::Blob } else { Kind::Element })
            }
            Some(datatype) => field(datatype, axes, Kind::Array),
            None => field(Datatype::Bytes, vec![Some(1)], Kind::Document),
        }
    }

    /// Whether an array of this shape is one item.
    pub(super) fn fits(&self, shape: &[usize]) -> bool {
        match (&self.shape, self.kind) {
            (_, Kind::Element | Kind::Blob | Kind::Document) => shape.iter().all(|axis| *axis == 1),
            (None, Kind::Array) => true,
            (Some(axes), Kind::Array) => {
                let fits = |(length, axis): (&usize, &Option<usize>)| axis.is_none_or(|axis| axis == *length);
                axes.len() == shape.len() && shape.iter().zip(axes).all(fits)
            }
        }
    }

    fn item(&self, value: Value) -> Result<Value, Refusal> {
        if self.kind != Kind::Array || value.is_null() {
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
        match self.fits(&shape) {
            true => Ok(value),
            false => Err(Refusal::new(format!("unexpected shape {shape:?} for input '{}'", self.name))),
        }
    }

    fn value(&self, array: &Array, limits: &DecodeLimits) -> Result<Value, Refusal> {
        let refused = |error: &dyn std::error::Error| Refusal::new(format!("input '{}': {error}", self.name));
        let elements = || array.elements().next().unwrap_or_default();
        match self.kind {
            Kind::Array => array.to_value().map_err(|error| refused(&error)),
            Kind::Blob => Ok(Value::Bytes(elements())),
            Kind::Document => Value::decode(Format::Json, &elements(), limits).map_err(|error| refused(&error)),
            Kind::Element if array.datatype == Datatype::Bytes => {
                let bytes = elements();
                Ok(match std::str::from_utf8(&bytes) {
                    Ok(text) => Value::from(text),
                    Err(_) => Value::Bytes(bytes),
                })
            }
            Kind::Element => match array.to_value().map_err(|error| refused(&error))? {
                Value::Tensor(tensor) => {
                    only_element(&tensor).ok_or_else(|| Refusal::wrong_count(&self.name, 1, tensor.len()))
                }
                other => Ok(other),
            },
        }
    }

    fn array(&self, value: &Value) -> Result<Array, OutputError> {
        let mismatch =
            |reason: String| OutputError::Mismatch { name: self.name.clone(), datatype: self.datatype.name(), reason };
        // What an optional field has when it has nothing.
        if value.is_null() && self.kind != Kind::Document {
            return match self.is_required {
                true => Err(mismatch("there is none".to_owned())),
                false => Ok(Array { datatype: self.datatype, shape: vec![0], data: bytes::Bytes::new() }),
            };
        }
        let mut array = match (self.kind, self.datatype, value) {
            (Kind::Document, ..) => {
                let source = |source| OutputError::Document { name: self.name.clone(), source };
                Array::of_elements(vec![1], [value.encode(Format::Json).map_err(source)?])
            }
            (_, Datatype::Bytes, Value::Bytes(bytes)) => Array::of_elements(vec![1], [bytes]),
            (_, Datatype::Bytes, Value::List(items)) if items.iter().any(|item| item.as_bytes().is_some()) => {
                let bytes: Option<Vec<_>> = items.iter().map(Value::as_bytes).collect();
                let bytes = bytes.ok_or_else(|| mismatch("texts beside bytes".to_owned()))?;
                Array::of_elements(vec![bytes.len()], bytes)
            }
            (_, Datatype::Bytes, value) => {
                Array::of_texts(&StrTensor::from_value(value).map_err(|error| mismatch(error.to_string()))?)
            }
            // A tensor says itself what it is, and its datatype goes with it.
            (_, Datatype::Number(_), Value::Tensor(tensor)) => {
                Array::of_tensor(tensor).ok_or_else(|| mismatch(format!("it is of {}", tensor.dtype())))?
            }
            (_, Datatype::Number(dtype), value) => {
                let tensor = Tensor::from_value(value, Some(dtype)).map_err(|error| mismatch(error.to_string()))?;
                Array::of_tensor(&tensor).ok_or_else(|| mismatch(format!("it is of {dtype}")))?
            }
        };
        if array.shape.is_empty() && self.shape.as_ref().is_none_or(|shape| !shape.is_empty()) {
            array.shape.push(1);
        }
        Ok(array)
    }
}

/// The only element of a tensor, as a plain value.
fn only_element(tensor: &Tensor) -> Option<Value> {
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

/// The schema behind references, and whether null will do as well.
fn resolved<'a>(root: &'a Json, schema: &'a Json) -> (&'a Json, bool) {
    let (mut schema, mut is_nullable) = (schema, false);
    for _ in 0..MAX_REFERENCES {
        if let Some(target) = schema.get("$ref").and_then(Json::as_str).and_then(|path| path.strip_prefix("#/$defs/")) {
            let Some(target) = root.get("$defs").and_then(|defs| defs.get(target)) else { break };
            schema = target;
        } else if let Some([one, other]) = schema.get("anyOf").and_then(Json::as_array).map(Vec::as_slice) {
            let is_null = |schema: &Json| schema.get("type").is_some_and(|kind| kind == "null");
            schema = match (is_null(one), is_null(other)) {
                (false, true) => one,
                (true, false) => other,
                _ => break,
            };
            is_nullable = true;
        } else {
            break;
        }
    }
    let kinds = schema.get("type").and_then(Json::as_array);
    (schema, is_nullable || kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "null")))
}

/// The axes of nested lists, and the schema of what is in the innermost one.
fn axes_of<'a>(root: &'a Json, schema: &'a Json) -> (Vec<Option<usize>>, &'a Json) {
    let (mut schema, mut axes) = (schema, Vec::new());
    while let (true, Some(items)) = (is_of(schema, "array"), schema.get("items")) {
        if axes.len() == callboard_codec::MAX_RANK {
            break;
        }
        let bound = |key: &str| schema.get(key).and_then(Json::as_u64);
        let length = bound("minItems").filter(|least| bound("maxItems") == Some(*least));
        axes.push(length.and_then(|length| usize::try_from(length).ok()));
        schema = resolved(root, items).0;
    }
    (axes, schema)
}

/// Whether this is the type, with or without null beside it.
fn is_of(schema: &Json, name: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(kind)) => kind == name,
        Some(Json::Array(kinds)) => kinds.iter().all(|kind| kind == name || kind == "null") && kinds.len() <= 2,
        _ => false,
    }
}

/// The datatype of a single number, bool or text.
fn element_of(schema: &Json) -> Option<Datatype> {
    let format = schema.get("format").and_then(Json::as_str).unwrap_or_default();
    let dtype = match () {
        () if is_of(schema, "boolean") => DType::Bool,
        () if is_of(schema, "string") => return Some(Datatype::Bytes),
        () if is_of(schema, "number") => match format {
            "float" => DType::F32,
            _ => DType::F64,
        },
        () if is_of(schema, "integer") => match format {
            "int8" => DType::I8,
            "int16" => DType::I16,
            "int32" => DType::I32,
            "uint8" => DType::U8,
            "uint16" => DType::U16,
            "uint32" => DType::U32,
            "uint64" | "uint" => DType::U64,
            _ => DType::I64,
        },
        () => return None,
    };
    Datatype::of(dtype)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use callboard_codec::TensorField;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Patient {
        name: String,
        age: u8,
        weight: Option<f32>,
        pulse: Vec<Vec<f64>>,
        corners: [i32; 4],
        tags: Vec<String>,
        is_new: bool,
        doses: BTreeMap<String, f64>,
        next: Option<Box<Self>>,
    }

    fn told(field: &Field) -> String {
        let shape = field.shape.as_ref().unwrap();
        let shape: Vec<i64> = shape.iter().map(|axis| axis.map_or(-1, |axis| axis as i64)).collect();
        let needed = if field.is_required { "" } else { "?" };
        format!("{}{needed}: {} {shape:?}", field.name, field.datatype.name())
    }

    #[test]
    fn every_property_of_a_type_is_an_array() {
        let signature = Signature::of(&DataType::of::<Patient>(), "input");
        let told: Vec<String> = signature.fields.iter().map(told).collect();
        assert_eq!(
            told,
            [
                "name: BYTES [1]",
                "age: UINT8 [1]",
                "weight?: FP32 [1]",
                "pulse: FP64 [-1, -1]",
                "corners: INT32 [4]",
                "tags: BYTES [-1]",
                "is_new: BOOL [1]",
                "doses: BYTES [1]",
                "next?: BYTES [1]",
            ]
        );
    }

    #[test]
    fn what_is_no_object_is_one_array() {
        let of = |data_type: DataType| told(&Signature::of(&data_type, "input").fields[0]);
        assert_eq!(of(DataType::of::<f64>()), "input: FP64 [1]");
        assert_eq!(of(DataType::of::<Vec<u16>>()), "input: UINT16 [-1]");
        assert_eq!(of(DataType::value()), "input: BYTES [1]");
    }

    /// There and back again: a value of a type is its arrays.
    #[test]
    fn a_typed_value_survives_as_arrays() {
        let patient = Patient {
            name: "Ada".to_owned(),
            age: 36,
            weight: None,
            pulse: vec![vec![1.0, 2.0], vec![3.0, 4.0]],
            corners: [1, 2, 3, 4],
            tags: vec!["a".to_owned(), String::new()],
            is_new: true,
            doses: BTreeMap::from([("x".to_owned(), 0.5)]),
            next: None,
        };
        let data_type = DataType::of::<Patient>();
        let signature = Signature::of(&data_type, "input");
        let arrays = signature.arrays(&Value::from_serialize(&patient).unwrap()).unwrap();
        assert_eq!(arrays[2].shape, [0], "nothing is an array of no elements");
        // Inputs are left out instead.
        let arrays = arrays.into_iter().map(|array| Some(array).filter(|array| array.shape != [0])).collect();
        let value = signature.value(arrays, &DecodeLimits::default()).unwrap();
        let payload = data_type.from_value(value).unwrap();
        assert_eq!(payload.downcast_ref::<Patient>(), Some(&patient));
    }

    #[test]
    fn an_only_output_may_stand_without_a_map() {
        let field = TensorField { name: "y".to_owned(), dtype: Some(DType::F32), shape: None };
        let tensors = TensorFields { fields: vec![field], stackable: true };
        let signature = Signature::of(&DataType::value().with_tensors(tensors), "output");
        let tensor = Tensor::from_vec(&[2], vec![1.0_f32, 2.0]).unwrap();
        let bare = signature.arrays(&Value::Tensor(tensor.clone())).unwrap();
        let named = signature.arrays(&Value::from(Map::from_iter([("y", Value::Tensor(tensor))]))).unwrap();
        assert_eq!(bare, named);
        assert!(signature.arrays(&Value::from(Map::new())).unwrap_err().to_string().contains("`y`"));
    }
}
