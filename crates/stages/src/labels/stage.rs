//! The stage around the ranking, and the types of its items for routes.

use callboard_codec::{DType, DataType, DecodeError, Element, Map, Tensor, TensorError, Value};
use callboard_core::{Failure, Stage};
use serde_json::json;

use super::config::LabelsConfig;
use super::rank::{RankError, rank};
use crate::error::StageConfigError;
use crate::mismatch::mismatch;

/// A stage that names scores.
///
/// # Errors
///
/// When the file with the names cannot be read, or stands beside a list.
pub fn stage(name: &str, config: &LabelsConfig) -> Result<Stage<Value, Value>, StageConfigError> {
    let namer = LabelLookup::try_new(config)?;
    Ok(Stage::each(name, move |item: &Value| namer.run(item)))
}

struct LabelLookup {
    names: Vec<String>,
    top_k: usize,
    softmax: bool,
    field: Option<String>,
}

impl LabelLookup {
    fn try_new(config: &LabelsConfig) -> Result<Self, StageConfigError> {
        Ok(Self {
            names: config.read_names()?,
            top_k: config.top_k.get(),
            softmax: config.softmax,
            field: config.field.clone(),
        })
    }

    fn run(&self, item: &Value) -> Result<Value, Failure> {
        let path = self.path_in(item);
        let scores = self.value_of(item).and_then(scores_of).map_err(|what| wrong(what, path))?;
        if !self.names.is_empty() && self.names.len() != scores.len() {
            let message = format!("{} names for {} scores", self.names.len(), scores.len());
            return Err(Failure::new(message).with_type("wrong_names"));
        }
        let unrankable = |error: RankError| {
            Failure::new(format!("the scores cannot be ranked: {error}")).with_type("unrankable_scores")
        };
        let ranked = rank(&scores, self.softmax, self.top_k).map_err(unrankable)?;
        let entry = |(index, score): &(usize, f64)| -> Map {
            [("label", Value::from(self.name(*index))), ("score", Value::from(*score))].into_iter().collect()
        };
        let mut answer = ranked.first().map(entry).unwrap_or_default();
        answer.insert("top", ranked.iter().map(entry).collect::<Value>());
        Ok(answer.into())
    }

    /// The place of the scores in an item.
    fn path_in(&self, item: &Value) -> String {
        match (&self.field, item.as_map()) {
            (Some(field), Some(_)) => format!("$.{field}"),
            _ => "$".to_owned(),
        }
    }

    fn value_of<'a>(&self, item: &'a Value) -> Result<&'a Value, String> {
        match (&self.field, item.as_map()) {
            (Some(field), Some(map)) => map.get(field).ok_or_else(|| format!("there is no `{field}`")),
            (None, Some(map)) if map.is_empty() => Err("there are none, the map is empty".to_owned()),
            (None, Some(map)) if map.len() == 1 => Ok(map.values().next().unwrap_or(item)),
            (None, Some(map)) if !map.contains_key("data") => {
                let keys: Vec<&str> = map.keys().take(8).collect();
                Err(format!(
                    "expected one entry; where there are {}, the stage's `field` has to name one",
                    keys.join(", ")
                ))
            }
            _ => Ok(item),
        }
    }

    fn name(&self, index: usize) -> String {
        self.names.get(index).cloned().unwrap_or_else(|| index.to_string())
    }
}

fn wrong(what: String, path: String) -> Failure {
    let message = format!("scores: {what}");
    mismatch(Failure::invalid_input(&message).with_type("wrong_input"), path, message)
}

fn scores_of(value: &Value) -> Result<Vec<f64>, String> {
    let unreadable = |error: DecodeError| format!("expected numbers, got {}: {error}", value.kind());
    let tensor = match value {
        Value::Tensor(tensor) => tensor.clone(),
        other => Tensor::from_value(other, None).map_err(unreadable)?,
    };
    match tensor.shape() {
        [_] | [1, _] => numbers(&tensor).map_err(|_| format!("{} cannot be ranked", tensor.dtype())),
        shape => Err(format!("expected [n] or [1, n], got {} {shape:?}", tensor.dtype())),
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TensorError> {
    match tensor.dtype() {
        DType::F16 => convert::<half::f16>(tensor),
        DType::BF16 => convert::<half::bf16>(tensor),
        DType::F32 => convert::<f32>(tensor),
        DType::F64 => convert::<f64>(tensor),
        DType::I8 => convert::<i8>(tensor),
        DType::I16 => convert::<i16>(tensor),
        DType::I32 => convert::<i32>(tensor),
        DType::I64 => convert::<i64>(tensor),
        DType::U8 => convert::<u8>(tensor),
        DType::U16 => convert::<u16>(tensor),
        DType::U32 => convert::<u32>(tensor),
        DType::U64 => convert::<u64>(tensor),
        // A yes or no is no score; neither is what later dtypes may hold.
        other => Err(TensorError::UnknownDType { name: other.to_string() }),
    }
}

fn convert<T: Element>(tensor: &Tensor) -> Result<Vec<f64>, TensorError> {
    let number = |element: &T| element.to_scalar().as_f64().unwrap_or(f64::NAN);
    Ok(tensor.as_slice::<T>()?.iter().map(number).collect())
}

/// The input of a route that begins with this stage: a score for each name.
#[must_use]
pub fn input_type(config: &LabelsConfig) -> DataType {
    let scores = match config.names.len() {
        0 => json!({ "type": "array", "items": { "type": "number" }, "minItems": 1 }),
        names => json!({ "type": "array", "items": { "type": "number" }, "minItems": names, "maxItems": names }),
    };
    DataType::value().with_name("Scores").with_schema(scores)
}

/// The output of a route that ends with this stage.
#[must_use]
pub fn output_type(config: &LabelsConfig) -> DataType {
    let label = if config.names.is_empty() {
        json!({ "type": "string" })
    } else {
        json!({ "type": "string", "enum": config.names })
    };
    let score = if config.softmax {
        json!({ "type": "number", "minimum": 0, "maximum": 1 })
    } else {
        json!({ "type": "number" })
    };
    let entry = json!({
        "type": "object",
        "properties": { "label": label, "score": score },
        "required": ["label", "score"],
    });
    let schema = json!({
        "type": "object",
        "properties": {
            "label": label,
            "score": score,
            "top": { "type": "array", "items": entry, "minItems": 1, "maxItems": config.top_k },
        },
        "required": ["label", "score", "top"],
    });
    DataType::value().with_name("Labels").with_schema(schema)
}
