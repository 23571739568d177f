//! From the arrays of an answer to a `ModelInferResponse`.
//!
//! Clients of the protocol read raw bytes alone. Typed contents answer only a request that had no raw bytes itself, and
//! never beside an output of FP16 or BF16, which has none. Raw bytes are shared with the outcome, if there are many.
//! The message is written field by field: its declaration would need a copy of every name.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_oip::parts::{Array, Datatype, Model, Refusal, RequestedOutput};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use super::contents;
use crate::framing::SMALL_BYTES;
use crate::proto::inference::{InferParameter, ModelInferResponse, ParameterChoice};

/// The key of `infer_response` in an answer of a stream.
const IN_STREAM_KEY: u8 = 2 << 3 | 2;

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// As the only one.
    Only,
    /// In a stream, and whether it is the last one of its request.
    InStream { is_last: bool },
}

/// What an answer has beside its arrays.
#[derive(Clone, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) id: Option<String>,
    pub(crate) requested: Vec<RequestedOutput>,
    pub(crate) is_typed: bool,
    pub(crate) form: AnswerForm,
}

/// The pieces of a message that answers with these outputs.
pub(crate) fn pieces(model: &Model, answer: &AnswerHead, outputs: &[Array]) -> Result<Vec<Bytes>, Refusal> {
    let AnswerHead { id, requested, is_typed, form } = answer;
    let arrays = requested.iter().map(|requested| requested.array(model, outputs));
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    let is_typed = *is_typed && arrays.iter().all(|array| contents::has_contents(array.datatype));
    let mut front = Vec::with_capacity(FRONT_BYTES);
    put_head(model, id.as_deref(), *form, &mut front);
    for (requested, array) in requested.iter().zip(&arrays) {
        put_tensor(model.output_name(requested.index), array, is_typed, &mut front);
    }
    if is_typed {
        return Ok(form.wrapped(vec![front.into()]));
    }
    // A small message becomes one piece anyway.
    let is_small = arrays.iter().map(|array| array.data.len()).sum::<usize>() <= SMALL_BYTES;
    let mut pieces = Vec::with_capacity(if is_small { 1 } else { 2 * arrays.len() });
    for array in arrays {
        put_key(field::RAW, array.data.len(), &mut front);
        if is_small {
            front.extend_from_slice(&array.data);
        } else {
            pieces.extend([std::mem::take(&mut front).into(), array.data]);
        }
    }
    if !front.is_empty() {
        pieces.push(front.into());
    }
    Ok(form.wrapped(pieces))
}

/// The fields of the message, in the order in which they are written.
mod field {
    pub(super) const MODEL_NAME: u8 = 1;
    pub(super) const MODEL_VERSION: u8 = 2;
    pub(super) const ID: u8 = 3;
    pub(super) const OUTPUTS: u8 = 5;
    pub(super) const RAW: u8 = 6;
}

/// Room for the message without the arrays of one output.
const FRONT_BYTES: usize = 192;

/// All but the outputs. As everywhere, an empty text is left out.
fn put_head(model: &Model, id: Option<&str>, form: AnswerForm, to: &mut Vec<u8>) {
    put_text(field::MODEL_NAME, model.name(), to);
    put_text(field::MODEL_VERSION, &model.version().to_string(), to);
    put_text(field::ID, id.unwrap_or_default(), to);
    if form != AnswerForm::Only {
        let parameters = ModelInferResponse { parameters: form.parameters(), ..ModelInferResponse::default() };
        to.extend_from_slice(&parameters.encode_to_vec());
    }
}

/// One `InferTensor`: its name, type and shape, and its contents where they are typed. Raw ones follow the tensors.
fn put_tensor(name: &str, array: &Array, is_typed: bool, to: &mut Vec<u8>) {
    const NAME: u8 = 1;
    const DATATYPE: u8 = 2;
    const SHAPE: u8 = 3;
    const CONTENTS: u8 = 5;
    let axes: usize = array.shape.iter().map(|axis| encoded_len_varint(*axis as u64)).sum();
    let contents = is_typed.then(|| contents::typed(array));
    let contents_length = contents.as_ref().map_or(0, |contents| field_length(contents.encoded_len()));
    let datatype = array.datatype.name();
    let text_length = |text: &str| if text.is_empty() { 0 } else { field_length(text.len()) };
    let shape_length = if axes == 0 { 0 } else { field_length(axes) };
    put_key(field::OUTPUTS, text_length(name) + text_length(datatype) + shape_length + contents_length, to);
    put_text(NAME, name, to);
    put_text(DATATYPE, datatype, to);
    if axes > 0 {
        put_key(SHAPE, axes, to);
        array.shape.iter().for_each(|axis| encode_varint(*axis as u64, to));
    }
    if let Some(contents) = contents {
        put_key(CONTENTS, contents.encoded_len(), to);
        // A vector has room for any message.
        let _ = contents.encode(to);
    }
}

/// The key and the length of a field of bytes; all numbers here are below 16.
fn put_key(number: u8, length: usize, to: &mut Vec<u8>) {
    to.push(number << 3 | 2);
    encode_varint(length as u64, to);
}

/// The bytes of such a field of this length.
fn field_length(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

fn put_text(number: u8, text: &str, to: &mut Vec<u8>) {
    if !text.is_empty() {
        put_key(number, text.len(), to);
        to.extend_from_slice(text.as_bytes());
    }
}

/// The last answer of a stream whose last output has left: it has no outputs.
pub(crate) fn empty_final(model: &Model, id: Option<&str>) -> Vec<Bytes> {
    let (form, mut front) = (AnswerForm::InStream { is_last: true }, Vec::with_capacity(FRONT_BYTES));
    put_head(model, id, form, &mut front);
    form.wrapped(vec![front.into()])
}

impl AnswerForm {
    fn parameters(self) -> HashMap<String, InferParameter> {
        match self {
            Self::Only => HashMap::new(),
            Self::InStream { is_last } => {
                let choice = ParameterChoice::BoolParam(is_last);
                let parameter = InferParameter { parameter_choice: Some(choice) };
                HashMap::from([("triton_final_response".to_owned(), parameter)])
            }
        }
    }

    /// The message itself, or one of a stream around it.
    fn wrapped(self, mut pieces: Vec<Bytes>) -> Vec<Bytes> {
        if self != Self::Only {
            let mut key = BytesMut::with_capacity(11);
            key.put_u8(IN_STREAM_KEY);
            encode_varint(pieces.iter().map(|piece| piece.len() as u64).sum(), &mut key);
            pieces.insert(0, key.freeze());
        }
        pieces
    }
}

/// The bytes that an answer costs beside the outcome: numbers are longer with their type.
pub(crate) fn cost(outputs: &[Array], requested: &[RequestedOutput], is_typed: bool) -> usize {
    let of = |requested: &RequestedOutput| {
        let array = &outputs[requested.index];
        match array.datatype {
            Datatype::Number(_) if is_typed => array.data.len().saturating_mul(TYPED_PER_BYTE),
            Datatype::Bytes if is_typed => array.data.len().saturating_mul(BYTES_PER_BYTE),
            _ if requested.classes.is_some() => array.data.len(),
            _ => 0,
        }
    };
    requested.iter().map(of).fold(0, usize::saturating_add)
}

/// The most memory for each byte of a number: a negative INT8 has four bytes in a list, and ten in the message.
const TYPED_PER_BYTE: usize = 14;

/// The most for each byte of `BYTES`, whose elements have four bytes at least: 32 in a list.
const BYTES_PER_BYTE: usize = 9;
