//! A route's input or output as arrays by name.
//!
//! A model's own signature is used if the route has one. Otherwise the JSON Schema is read: each property of an object
//! is one array, and any other type is one array by itself. A number, bool or text is an array of one element; nested
//! lists are arrays with as many axes; texts are `BYTES`. Any other value (a map, a union, a list of maps) is one
//! element of `BYTES` with its JSON. So every route is a model, with all of its fields.

mod field;
mod schema;

use callboard_codec::{DataType, DecodeLimits, Map, TensorFields, Value};
use serde_json::Value as Json;

pub(crate) use self::field::{Field, OutputError};
use self::field::{FieldKind, only_element};
use self::schema::resolved;
use crate::array::Array;
use crate::datatype::Datatype;
use crate::error::Refusal;

/// Arrays by name, and how they make up a value.
#[derive(Debug, PartialEq)]
pub(crate) struct Signature {
    pub(crate) fields: Vec<Field>,
    /// The value is the only field, not a map of fields.
    is_bare: bool,
    /// Many items may come as one array with a first axis.
    pub(crate) stackable: bool,
}

/// The name of the only array of a value that is not a map.
pub(crate) const BARE_INPUT: &str = "input";
pub(crate) const BARE_OUTPUT: &str = "output";

impl Signature {
    /// The signature of `data_type`, with this name for its only array if it has no names.
    pub(crate) fn new(data_type: &DataType, bare_name: &str) -> Self {
        match data_type.tensors() {
            Some(tensors) => Self::from_tensors(tensors).unwrap_or_else(|| Self::from_schema(data_type, bare_name)),
            None => Self::from_schema(data_type, bare_name),
        }
    }

    /// `None` if an element type does not exist in the protocol.
    fn from_tensors(tensors: &TensorFields) -> Option<Self> {
        let fields = tensors.fields.iter().map(|field| {
            Some(Field {
                name: field.name.clone(),
                datatype: field.dtype.map_or(Some(Datatype::Bytes), Datatype::from_dtype)?,
                shape: field.shape.clone(),
                kind: FieldKind::Array,
                is_required: field.is_required,
            })
        });
        Some(Self { fields: fields.collect::<Option<_>>()?, is_bare: false, stackable: tensors.stackable })
    }

    fn from_schema(data_type: &DataType, bare_name: &str) -> Self {
        let root = data_type.schema();
        let raw_field = data_type.raw_body().map(|raw| raw.field.as_str());
        let schema = resolved(root, root).0;
        let (fields, is_bare) = match schema.get("properties").and_then(Json::as_object) {
            Some(properties) => {
                let required = schema.get("required").and_then(Json::as_array);
                let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|other| other == name));
                let fields = properties.iter().map(|(name, property)| {
                    let mut field = Field::from_schema(name, root, property);
                    field.is_required &= is_required(name);
                    if raw_field == Some(name.as_str()) {
                        field.kind = FieldKind::Blob;
                    }
                    field
                });
                (fields.collect(), false)
            }
            None => (vec![Field::from_schema(bare_name, root, schema)], true),
        };
        Self { fields, is_bare, stackable: false }
    }

    /// Whether any of them is of `BYTES`, whose elements each are a value of their own.
    pub(crate) fn has_elements(&self) -> bool {
        self.fields.iter().any(|field| field.datatype == Datatype::Bytes)
    }

    pub(crate) fn field(&self, name: &str) -> Option<(usize, &Field)> {
        self.fields.iter().enumerate().find(|(_, field)| field.name == name)
    }

    /// The names, for messages.
    pub(crate) fn names(&self) -> String {
        if self.fields.is_empty() {
            "none".to_owned()
        } else {
            self.fields.iter().map(|field| format!("'{}'", field.name)).collect::<Vec<_>>().join(", ")
        }
    }

    /// One item of its arrays: one for each field, as far as they are there.
    pub(crate) fn value(&self, arrays: Vec<Option<Array>>, limits: &DecodeLimits) -> Result<Value, Refusal> {
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
    pub(crate) fn item(&self, mut values: Map) -> Result<Value, Refusal> {
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
    pub(crate) fn arrays(&self, value: &Value) -> Result<Vec<Array>, OutputError> {
        self.fields.iter().map(|field| field.array(self.part(value, field).unwrap_or(&Value::Null))).collect()
    }

    /// The value of each field in one item; an array of one element as that element.
    pub(crate) fn named<'a>(&'a self, value: &Value) -> Vec<(&'a str, Value)> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use callboard_codec::{DType, Tensor, TensorField};
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

    fn described(field: &Field) -> String {
        let shape = field.shape.as_ref().unwrap();
        let shape: Vec<i64> = shape.iter().map(|axis| axis.map_or(-1, |axis| axis as i64)).collect();
        let needed = if field.is_required { "" } else { "?" };
        format!("{}{needed}: {} {shape:?}", field.name, field.datatype.name())
    }

    #[test]
    fn every_property_of_a_type_is_an_array() {
        let signature = Signature::new(&DataType::for_type::<Patient>(), "input");
        let described: Vec<String> = signature.fields.iter().map(described).collect();
        assert_eq!(
            described,
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
    fn a_type_that_is_not_an_object_is_one_array() {
        let of = |data_type: DataType| described(&Signature::new(&data_type, "input").fields[0]);
        assert_eq!(of(DataType::for_type::<f64>()), "input: FP64 [1]");
        assert_eq!(of(DataType::for_type::<Vec<u16>>()), "input: UINT16 [-1]");
        assert_eq!(of(DataType::value()), "input: BYTES [1]");
    }

    /// There and back again: a value of a type is its arrays.
    #[test]
    fn a_typed_value_round_trips_through_arrays() {
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
        let data_type = DataType::for_type::<Patient>();
        let signature = Signature::new(&data_type, "input");
        let arrays = signature.arrays(&Value::from_serialize(&patient).unwrap()).unwrap();
        assert_eq!(arrays[2].shape, [0], "nothing is an array of no elements");
        // Inputs are left out instead.
        let arrays = arrays.into_iter().map(|array| Some(array).filter(|array| array.shape != [0])).collect();
        let value = signature.value(arrays, &DecodeLimits::default()).unwrap();
        let payload = data_type.from_value(value).unwrap();
        assert_eq!(payload.downcast_ref::<Patient>(), Some(&patient));
    }

    #[test]
    fn a_single_output_needs_no_map() {
        let field = TensorField { name: "y".to_owned(), dtype: Some(DType::F32), shape: None, is_required: true };
        let tensors = TensorFields { fields: vec![field], stackable: true };
        let signature = Signature::new(&DataType::value().with_tensors(tensors), "output");
        let tensor = Tensor::from_vec(&[2], vec![1.0_f32, 2.0]).unwrap();
        let bare = signature.arrays(&Value::Tensor(tensor.clone())).unwrap();
        let named = signature.arrays(&Value::from(Map::from_iter([("y", Value::Tensor(tensor))]))).unwrap();
        assert_eq!(bare, named);
        assert!(signature.arrays(&Value::from(Map::new())).unwrap_err().to_string().contains("'y'"));
    }
}
