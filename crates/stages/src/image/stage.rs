//! The stage around the pure steps, and the types of its items for routes.

use callboard_codec::{DataType, RawBody, Value};
use callboard_core::{Failure, Stage};
use serde_json::json;

use super::config::{ImageConfig, Layout, PixelType, Plan};
use super::decode::{InvalidImage, decode};
use super::input::bytes_of;
use super::pixels::to_tensor;
use crate::error::StageConfigError;
use crate::mismatch::mismatch;

/// A stage that turns pictures into tensors.
///
/// # Errors
///
/// When parts of the configuration contradict each other.
pub fn stage(name: &str, config: &ImageConfig) -> Result<Stage<Value, Value>, StageConfigError> {
    let plan = config.plan()?;
    Ok(Stage::each(name, move |item: &Value| run(item, &plan)).on_threads())
}

pub(super) fn run(item: &Value, plan: &Plan) -> Result<Value, Failure> {
    let refuse = |error: InvalidImage| {
        let message = format!("`{}` {error}", plan.field);
        let failure = Failure::invalid_input(&message).with_type(error.error_type());
        if !error.is_mismatch() {
            return failure;
        }
        let path = if item.as_map().is_some() { format!("$.{}", plan.field) } else { "$".to_owned() };
        mismatch(failure, path, message)
    };
    let bytes = bytes_of(item, &plan.field).map_err(refuse)?;
    let picture = decode(&bytes, plan).map_err(refuse)?;
    Ok(to_tensor(&picture, plan)?.into())
}

/// The input of a route that begins with this stage: the field of a JSON document (base64), of a form or of MessagePack
/// (bytes), or a body that is the picture itself.
#[must_use]
pub fn input_type(config: &ImageConfig) -> DataType {
    let picture = json!({
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "image/*",
        "description": format!("PNG, JPEG, GIF, BMP or WebP of at most {} pixels", config.max_pixels),
    });
    let schema = json!({
        "type": "object",
        "properties": { config.field.as_str(): picture },
        "required": [config.field],
    });
    let media_types = vec!["image/*".to_owned(), "application/octet-stream".to_owned()];
    let raw_body = RawBody { field: config.field.clone(), media_types };
    DataType::value().with_name("Image").with_schema(schema).with_raw_body(raw_body)
}

/// The output of a route that ends with this stage.
#[must_use]
pub fn output_type(config: &ImageConfig) -> DataType {
    let element = match config.dtype {
        PixelType::F32 => json!({ "type": "number", "format": "float" }),
        PixelType::U8 => json!({ "type": "integer", "format": "uint8", "minimum": 0, "maximum": 255 }),
    };
    let axis = |items: serde_json::Value, length: Option<usize>| match length {
        Some(length) => json!({ "type": "array", "items": items, "minItems": length, "maxItems": length }),
        None => json!({ "type": "array", "items": items }),
    };
    let channels = Some(config.color.channels());
    let width = config.width.map(|width| usize::from(width.get()));
    let height = config.height.map(|height| usize::from(height.get()));
    let axes = match config.layout {
        Layout::Chw => vec![channels, height, width],
        Layout::Hwc => vec![height, width, channels],
        Layout::Hw => vec![height, width],
        Layout::Flat => vec![width.zip(height).map(|(width, height)| width * height * config.color.channels())],
    };
    let schema = axes.into_iter().rev().fold(element, axis);
    DataType::value().with_name("Pixels").with_schema(schema)
}
