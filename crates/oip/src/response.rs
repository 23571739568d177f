//! The response to an inference request: JSON, followed by the bytes of binary outputs.

use bytes::Bytes;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, CodecBudget, Compressibility, ResponseCompression, body_of_parts, compress_off_thread,
};
use serde::Serialize;

use super::array::Array;
use super::data;
use super::error::Refusal;
use super::model::Model;
use super::request::{INFERENCE_HEADER_CONTENT_LENGTH, RequestedOutput};

/// An encoded response.
#[derive(Debug)]
pub(crate) struct InferResponse {
    json: Vec<u8>,
    binary: Vec<Bytes>,
}

/// All members but the outputs, which are written by hand because `data` is.
#[derive(Serialize)]
struct ResponseFront<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

#[derive(Serialize)]
struct OutputJson<'a> {
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

impl InferResponse {
    /// Encodes the requested outputs.
    pub(crate) fn try_new(
        model: &Model,
        id: Option<&str>,
        outputs: &[Array],
        requested: &[RequestedOutput],
    ) -> Result<Self, Refusal> {
        let front = ResponseFront { model_name: &model.name, model_version: model.version.to_string(), id };
        let mut written = Self { json: open(&front), binary: Vec::new() };
        written.json.extend_from_slice(b",\"outputs\":[");
        for (position, requested) in requested.iter().enumerate() {
            if position > 0 {
                written.json.push(b',');
            }
            let array = requested.array(model, outputs)?;
            written.push(model.output_name(requested.index), &array, requested.is_binary)?;
        }
        written.json.extend_from_slice(b"]}");
        Ok(written)
    }

    /// For the properties in `fuzz.rs`: the JSON is valid, and its sizes are those of the bytes after it.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn is_whole(&self) {
        let json: serde_json::Value = serde_json::from_slice(&self.json).expect("what is written is JSON");
        let outputs = json["outputs"].as_array().expect("a list of outputs");
        let sizes = outputs.iter().filter_map(|output| output["parameters"]["binary_data_size"].as_u64());
        assert_eq!(sizes.sum::<u64>(), self.binary.iter().map(|piece| piece.len() as u64).sum::<u64>());
    }

    fn push(&mut self, name: &str, array: &Array, is_binary: bool) -> Result<(), Refusal> {
        let size = array.data.len();
        let parameters = is_binary.then_some(BinaryDataSize { binary_data_size: size });
        let output = OutputJson { name, datatype: array.datatype.name(), shape: &array.shape, parameters };
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

    /// `is_binary`: whether an output was requested in binary, although it may have no bytes.
    pub(crate) async fn into_response(
        self,
        is_binary: bool,
        compression: &ResponseCompression,
        budget: &CodecBudget<'_>,
    ) -> Result<Response, ApiError> {
        let json_bytes = self.json.len();
        let binary_bytes: usize = self.binary.iter().map(Bytes::len).sum();
        budget.settle(json_bytes + binary_bytes)?;
        let parts: Vec<Bytes> =
            std::iter::once(Bytes::from(self.json)).chain(self.binary).map(|part| budget.charged(part)).collect();
        let compressibility = if binary_bytes > json_bytes { Compressibility::Dense } else { Compressibility::Text };
        let coding = compression.for_bytes(compressibility, json_bytes + binary_bytes);
        let coding = coding.filter(|coding| budget.can_compress(coding.compressor_bytes(), json_bytes + binary_bytes));
        let body = match coding {
            // One small buffer is written faster than several.
            None if json_bytes + binary_bytes > SMALL_BYTES => body_of_parts(parts),
            None => Body::from(joined(parts)),
            Some(coding) => {
                let compressed = compress_off_thread(budget, joined(parts), coding).await?;
                budget.settle(compressed.len())?;
                Body::from(budget.charged(compressed))
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
        compression.mark(coding, json_bytes + binary_bytes, headers);
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

/// An object without its last brace, to be continued.
fn open(object: &impl Serialize) -> Vec<u8> {
    // Texts and numbers serialize without errors.
    let mut json = serde_json::to_vec(object).unwrap_or_default();
    json.pop();
    json
}
