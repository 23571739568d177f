//! JSON Schemas (2020-12, as OpenAPI 3.1 has them) of one item, from a signature.

use callboard_codec::DType;
use serde_json::{Map, Value, json};

use super::{Axis, BatchAxis, Kind, Signature, TensorSpec};

/// One input: the tensor alone or under its name. Several: an object with all of them.
pub(super) fn input(signature: &Signature) -> Value {
    match signature.inputs() {
        [only] => json!({ "anyOf": [tensor(signature, only), object(signature, std::slice::from_ref(only))] }),
        several => object(signature, several),
    }
}

/// One output: the tensor. Several: an object with all of them.
pub(super) fn output(signature: &Signature) -> Value {
    match signature.outputs() {
        [only] => tensor(signature, only),
        several => object(signature, several),
    }
}

fn object(signature: &Signature, specs: &[TensorSpec]) -> Value {
    let properties: Map<String, Value> =
        specs.iter().map(|spec| (spec.name().to_owned(), tensor(signature, spec))).collect();
    let required = specs.iter().filter(|spec| !signature.is_optional(spec));
    let required: Vec<&str> = required.map(TensorSpec::name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Nested arrays with their lengths where the model fixes them.
fn tensor(signature: &Signature, spec: &TensorSpec) -> Value {
    let mut schema = match signature.item_axes(spec) {
        Some(axes) => axes.iter().rev().fold(kind(spec.kind()), array),
        None if spec.kind().is_tensor() => any_shape(),
        None => match (signature.batch_axis(), spec.kind()) {
            // An item of a batch has one of the list.
            (BatchAxis::Stacked | BatchAxis::One, Kind::Sequence(of)) => kind(of),
            (_, whole) => kind(whole),
        },
    };
    if let Some(fields) = schema.as_object_mut() {
        let words = format!("`{}`: {}", spec.name(), signature.describe_item(spec));
        fields.insert("description".to_owned(), words.into());
    }
    schema
}

/// Numbers nested to any depth have no schema of their own.
fn any_shape() -> Value {
    json!({})
}

fn kind(kind: &Kind) -> Value {
    match kind {
        Kind::Numbers(dtype) => element(*dtype),
        Kind::Texts => json!({ "type": "string" }),
        Kind::Sequence(of) if of.is_tensor() => json!({ "type": "array", "items": any_shape() }),
        Kind::Sequence(of) => json!({ "type": "array", "items": self::kind(of) }),
        Kind::Map(to) => json!({ "type": "object", "additionalProperties": self::kind(to) }),
    }
}

fn array(items: Value, axis: &Axis) -> Value {
    match axis {
        Axis::Fixed(length) => json!({ "type": "array", "items": items, "minItems": length, "maxItems": length }),
        Axis::Named(_) | Axis::Any => json!({ "type": "array", "items": items }),
    }
}

fn element(dtype: DType) -> Value {
    let integer = |format: &str, min: i64, max: u64| json!({ "type": "integer", "format": format, "minimum": min, "maximum": max });
    // The format is what tells one width from another where a tensor is known by its schema only, as a part of
    // something else.
    match dtype {
        DType::Bool => json!({ "type": "boolean" }),
        DType::I8 => integer("int8", i8::MIN.into(), i8::MAX as u64),
        DType::I16 => integer("int16", i16::MIN.into(), i16::MAX as u64),
        DType::I32 => integer("int32", i32::MIN.into(), i32::MAX as u64),
        DType::I64 => integer("int64", i64::MIN, i64::MAX as u64),
        DType::U8 => integer("uint8", 0, u8::MAX.into()),
        DType::U16 => integer("uint16", 0, u16::MAX.into()),
        DType::U32 => integer("uint32", 0, u32::MAX.into()),
        DType::U64 => integer("uint64", 0, u64::MAX),
        DType::F16 => json!({ "type": "number", "format": "float16" }),
        DType::BF16 => json!({ "type": "number", "format": "bfloat16" }),
        DType::F32 => json!({ "type": "number", "format": "float" }),
        DType::F64 => json!({ "type": "number", "format": "double" }),
        _ => json!({ "type": "number" }),
    }
}
