//! The answer to an inference request: JSON, or JSON with the bytes of those outputs behind it that were asked for in binary.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::array::Array;
use super::classes;
use super::data;
use super::error::Refusal;
use super::model::Model;
use super::request::{INFERENCE_HEADER_CONTENT_LENGTH, Wanted};
use crate::error::ApiError;
use crate::request::coding::Density;
use crate::request::payload::{self, Expense};
use crate::respond::{Packing, body_of_parts};

/// An answer that is written and not sent.
#[derive(Debug)]
pub(super) struct Written {
    json: Vec<u8>,
    binary: Vec<Bytes>,
}

/// All of it but the list of outputs, which is written by hand because `data` is.
#[derive(Serialize)]
struct Front<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

#[derive(Serialize)]
struct Output<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryDataSize>,
}

#[derive(Serialize)]
struct BinaryDataSize {
    binary_data_size: usize,
}

impl Written {
    /// Writes those of the model's `outputs` that are wanted.
    pub(super) fn of(model: &Model, id: Option<&str>, outputs: &[Array], wanted: &[Wanted]) -> Result<Self, Refusal> {
        let front = Front { model_name: &model.name, model_version: model.version.to_string(), id };
        let mut written = Self { json: open(&front), binary: Vec::new() };
        written.json.extend_from_slice(b",\"outputs\":[");
        for (position, wanted) in wanted.iter().enumerate() {
            if position > 0 {
                written.json.push(b',');
            }
            let array = &outputs[wanted.index];
            let name = &model.outputs.fields[wanted.index].name;
            match wanted.classes {
                Some(classes) => {
                    let classified = classes::of(name, array, classes, model.is_batched())?;
                    written.push(name, &classified, wanted.is_binary)?;
                }
                None => written.push(name, array, wanted.is_binary)?,
            }
        }
        written.json.extend_from_slice(b"]}");
        Ok(written)
    }

    /// For the properties in `fuzz.rs`: the JSON is JSON, and its sizes are those of the bytes behind it.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn is_whole(&self) {
        let json: serde_json::Value = serde_json::from_slice(&self.json).expect("what is written is JSON");
        let outputs = json["outputs"].as_array().expect("a list of outputs");
        let sizes = outputs.iter().filter_map(|output| output["parameters"]["binary_data_size"].as_u64());
        assert_eq!(sizes.sum::<u64>(), self.binary.iter().map(|piece| piece.len() as u64).sum::<u64>());
    }

    fn push(&mut self, name: &str, array: &Array, is_binary: bool) -> Result<(), Refusal> {
        let size = array.data.len();
        let parameters = is_binary.then_some(BinaryDataSize { binary_data_size: size });
        let output = Output { name, datatype: array.datatype.name(), shape: &array.shape, parameters };
        self.json.extend_from_slice(&open(&output));
        if is_binary {
            self.binary.extend((size > 0).then(|| array.data.clone()));
        } else {
            self.json.extend_from_slice(b",\"data\":");
            data::write(name, array, &mut self.json)?;
        }
        self.json.push(b'}');
        Ok(())
    }

    /// `is_binary`: whether anything was asked for in binary, although it may have no bytes.
    pub(super) async fn into_response(
        self,
        is_binary: bool,
        packing: &Packing,
        expense: &Expense<'_>,
    ) -> Result<Response, ApiError> {
        let json_bytes = self.json.len();
        let binary_bytes: usize = self.binary.iter().map(Bytes::len).sum();
        expense.settle(json_bytes + binary_bytes)?;
        let parts: Vec<Bytes> =
            std::iter::once(Bytes::from(self.json)).chain(self.binary).map(|part| expense.held(part)).collect();
        let density = if binary_bytes > json_bytes { Density::Dense } else { Density::Text };
        let coding = packing.of_bytes(density, json_bytes + binary_bytes);
        let coding = coding.filter(|coding| expense.may_pack(*coding, json_bytes + binary_bytes));
        let body = match coding {
            // Below this one buffer is written faster than several.
            None if json_bytes + binary_bytes > SMALL_BYTES => body_of_parts(parts),
            None => Body::from(joined(parts)),
            Some(coding) => {
                let packed = payload::pack(expense, joined(parts), coding).await?;
                expense.settle(packed.len())?;
                Body::from(expense.held(packed))
            }
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        if is_binary {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(INFERENCE_HEADER_CONTENT_LENGTH, HeaderValue::from(json_bytes));
        } else {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        packing.mark(coding, json_bytes + binary_bytes, headers);
        Ok(response)
    }
}

const SMALL_BYTES: usize = 16 * 1024;

fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.concat().into(),
    }
}

/// An object without its last brace, so that more can be written into it.
fn open(object: &impl Serialize) -> Vec<u8> {
    // Objects of texts and numbers cannot fail.
    let mut json = serde_json::to_vec(object).unwrap_or_default();
    json.pop();
    json
}
