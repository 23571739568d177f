//! The answer to an inference request: JSON, or JSON with the bytes of those outputs behind it that were asked for in binary.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use super::array::Array;
use super::classes;
use super::data;
use super::error::Refusal;
use super::model::Model;
use super::request::{INFERENCE_HEADER_CONTENT_LENGTH, Wanted};

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
    pub(super) fn into_response(self, is_binary: bool) -> Response {
        let json_bytes = self.json.len();
        let mut response = Response::new(Pieces::body(self.json.into(), self.binary));
        let headers = response.headers_mut();
        if is_binary {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(INFERENCE_HEADER_CONTENT_LENGTH, HeaderValue::from(json_bytes));
        } else {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        response
    }
}

/// An object without its last brace, so that more can be written into it.
fn open(object: &impl Serialize) -> Vec<u8> {
    // Objects of texts and numbers cannot fail.
    let mut json = serde_json::to_vec(object).unwrap_or_default();
    json.pop();
    json
}

/// A body of several pieces, which are not copied into one. It knows its length.
#[derive(Debug)]
struct Pieces {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

/// Below this one buffer is written faster than several.
const SMALL_BYTES: usize = 16 * 1024;

impl Pieces {
    fn body(first: Bytes, rest: Vec<Bytes>) -> Body {
        let len = first.len() + rest.iter().map(Bytes::len).sum::<usize>();
        if rest.is_empty() {
            return Body::from(first);
        }
        if len <= SMALL_BYTES {
            let mut whole = BytesMut::with_capacity(len);
            whole.extend_from_slice(&first);
            rest.iter().for_each(|piece| whole.extend_from_slice(piece));
            return Body::from(whole.freeze());
        }
        let pieces: Vec<Bytes> = std::iter::once(first).chain(rest).collect();
        Body::new(Self { pieces: pieces.into_iter(), left: len as u64 })
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
