//! From the arrays of an answer to a `ModelInferResponse`.
//!
//! Clients of the protocol read raw bytes alone. Typed contents answer only a request that had no raw bytes itself, and
//! never beside an output of FP16 or BF16, which has none. Raw bytes are shared with the outcome.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_oip::parts::{Array, Datatype, Model, Refusal, RequestedOutput};
use prost::Message;
use prost::encoding::encode_varint;

use super::contents;
use crate::proto::inference::{InferParameter, InferTensor, ModelInferResponse, ParameterChoice};

/// The key of `raw_output_contents`.
const RAW_KEY: u8 = 6 << 3 | 2;

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
    let tensor = |(requested, array): (&RequestedOutput, &Array)| InferTensor {
        name: model.output_name(requested.index).to_owned(),
        datatype: array.datatype.name().to_owned(),
        shape: array.shape.iter().map(|axis| i64::try_from(*axis).unwrap_or(i64::MAX)).collect(),
        parameters: HashMap::new(),
        contents: is_typed.then(|| contents::typed(array)),
    };
    let front = ModelInferResponse {
        parameters: form.parameters(),
        outputs: requested.iter().zip(&arrays).map(tensor).collect(),
        ..head_of(model, id.as_deref())
    };
    let mut pieces = vec![Bytes::from(front.encode_to_vec())];
    if !is_typed {
        for array in arrays {
            let mut key = BytesMut::with_capacity(11);
            key.put_u8(RAW_KEY);
            encode_varint(array.data.len() as u64, &mut key);
            pieces.extend([key.freeze(), array.data]);
        }
    }
    Ok(form.wrapped(pieces))
}

/// The last answer of a stream whose last output has left: it has no outputs.
pub(crate) fn empty_final(model: &Model, id: Option<&str>) -> Vec<Bytes> {
    let form = AnswerForm::InStream { is_last: true };
    let answer = ModelInferResponse { parameters: form.parameters(), ..head_of(model, id) };
    form.wrapped(vec![answer.encode_to_vec().into()])
}

fn head_of(model: &Model, id: Option<&str>) -> ModelInferResponse {
    ModelInferResponse {
        model_name: model.name().to_owned(),
        model_version: model.version().to_string(),
        id: id.unwrap_or_default().to_owned(),
        ..ModelInferResponse::default()
    }
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
