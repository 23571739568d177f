//! The arrays in a JSON Schema: their axes, their elements, and whether they are optional.
//!
//! A type without an array is one element of `BYTES`. References are followed to a limited depth, so that cycles end.

use callboard_codec::DType;
use serde_json::Value as Json;

use super::field::{Field, FieldKind};
use crate::datatype::Datatype;

/// References are followed no deeper: a schema may lead back to itself.
const MAX_REFERENCES: usize = 16;

impl Field {
    /// A property of a schema as an array.
    pub(crate) fn from_schema(name: &str, root: &Json, schema: &Json) -> Self {
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
                field(datatype, vec![Some(1)], if is_blob { FieldKind::Blob } else { FieldKind::Element })
            }
            Some(datatype) => field(datatype, axes, FieldKind::Array),
            None if axes.is_empty() && may_be_text(element) => {
                field(Datatype::Bytes, vec![Some(1)], FieldKind::DocumentOrText)
            }
            None => field(Datatype::Bytes, vec![Some(1)], FieldKind::Document),
        }
    }
}

/// The schema behind references, and whether it allows null.
pub(crate) fn resolved<'a>(root: &'a Json, schema: &'a Json) -> (&'a Json, bool) {
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

/// The axes of nested lists, and the schema of the innermost elements.
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

/// Whether this is the type, with or without null.
fn is_of(schema: &Json, name: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(kind)) => kind == name,
        Some(Json::Array(kinds)) => kinds.iter().all(|kind| kind == name || kind == "null") && kinds.len() <= 2,
        _ => false,
    }
}

/// Whether a schema without a type lets a text be: it says nothing, or lists one.
fn may_be_text(schema: &Json) -> bool {
    let Some(keywords) = schema.as_object() else { return *schema == Json::Bool(true) };
    match keywords.get("enum").and_then(Json::as_array) {
        Some(values) => values.iter().any(Json::is_string),
        None => keywords.keys().all(|keyword| matches!(keyword.as_str(), "title" | "description" | "examples")),
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
            "float16" => DType::F16,
            "bfloat16" => DType::BF16,
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
    Datatype::from_dtype(dtype)
}
