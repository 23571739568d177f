//! The properties of the decoder of requests, for any bytes. The fuzz target runs it on generated inputs, the tests on
//! all kept inputs.
//!
//! Besides "no panic": what prost reads is read here as well, with the same names; arrays are not much larger than the
//! message and have the sizes of their shapes; an answer with them is what prost reads back; an error has one line.

use bytes::Bytes;
use callboard_codec::DecodeLimits;
use callboard_oip::parts::{Array, Datatype, MAX_TENSORS, Model};
use prost::Message;

use crate::inference::request::{ReadRequest, RequestMessage};
use crate::inference::response::{AnswerForm, AnswerHead, pieces};
use crate::proto::inference::{InferTensor, ModelInferResponse, ModelStreamInferResponse};

/// The names of a request and its inputs, as prost reads them.
#[derive(Clone, PartialEq, Message)]
struct PlainRequest {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "2")]
    model_version: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<InferTensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    raw: Vec<Bytes>,
}

/// Checks the properties.
///
/// # Panics
///
/// If a property does not hold.
#[allow(unreachable_pub, reason = "reachable with the feature `fuzz`")]
pub fn decode_infer_request(input: &[u8]) {
    let message = Bytes::copy_from_slice(input);
    let plain = PlainRequest::decode(message.clone());
    match RequestMessage::read(message) {
        Ok(read) => {
            if let Ok(plain) = plain {
                assert_eq!(
                    (&read.model, &read.version, &read.id),
                    (&plain.model_name, &plain.model_version, &plain.id)
                );
            }
            for model in callboard_oip::models() {
                match read.arrays(&model, &DecodeLimits::default()) {
                    Ok(request) => taken(&model, input.len(), request),
                    Err(refusal) => assert!(refusal.to_string().len() < 4096, "{refusal}"),
                }
            }
        }
        Err(refusal) => {
            assert!(refusal.to_string().len() < 4096, "{refusal}");
            // Groups, and more arrays than a request may have.
            if let Ok(plain) = plain {
                let is_refused = refusal.to_string().contains("group") || refusal.to_string().contains("at most");
                let is_large = plain.inputs.len() > MAX_TENSORS || plain.raw.len() > MAX_TENSORS;
                assert!(is_refused || is_large || is_odd(&refusal.to_string()), "{refusal}");
            }
        }
    }
}

/// A field that the declaration above leaves out may have another type.
fn is_odd(refusal: &str) -> bool {
    refusal.contains("another type")
}

fn taken(model: &Model, length: usize, request: ReadRequest) {
    let ReadRequest { request, is_typed } = request;
    let sent: Vec<&Array> = request.inputs.iter().flatten().collect();
    let bytes: usize = sent.iter().map(|array| array.data.len()).sum();
    assert!(bytes <= 8 * length, "{bytes} bytes of {length}");
    for array in &sent {
        let count: usize = array.shape.iter().product();
        let size = array.datatype.size_bytes().map(|size| size * count);
        assert!(size.is_none_or(|size| size == array.data.len()), "{array:?}");
        assert!(array.datatype != Datatype::Bytes || array.elements().count() == count, "{array:?}");
    }
    if request.inputs.iter().any(Option::is_none) || request.inputs.is_empty() {
        return;
    }
    let outputs: Vec<Array> = request.inputs.into_iter().flatten().collect();
    for form in [AnswerForm::Only, AnswerForm::InStream { is_last: true }] {
        let answer = AnswerHead { id: request.id.clone(), requested: request.outputs.clone(), is_typed, form };
        // Classes of texts are refused.
        let Ok(pieces) = pieces(model, &answer, &outputs) else { continue };
        let whole = Bytes::from(pieces.concat());
        let response = match form {
            AnswerForm::Only => ModelInferResponse::decode(whole).expect("an answer can be read"),
            AnswerForm::InStream { .. } => {
                let response = ModelStreamInferResponse::decode(whole).expect("an answer can be read");
                response.infer_response.expect("an answer of a stream")
            }
        };
        assert_eq!(response.outputs.len(), answer.requested.len());
        assert!(
            response.raw_output_contents.is_empty() || response.raw_output_contents.len() == response.outputs.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn seeds() -> Vec<(String, Vec<u8>)> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/grpc");
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
        let mut seeds: Vec<_> = entries
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap()))
            .collect();
        seeds.sort();
        seeds
    }

    /// Every kept input, also without its end, and with one byte more.
    #[test]
    fn the_decoder_withstands_every_stored_input() {
        let seeds = seeds();
        assert!(seeds.len() >= 8, "{}", seeds.len());
        for (name, seed) in seeds {
            let outcome = std::panic::catch_unwind(|| {
                for end in 0..=seed.len() {
                    decode_infer_request(&seed[..end]);
                }
                decode_infer_request(&[seed.as_slice(), b"\0"].concat());
            });
            assert!(outcome.is_ok(), "{name}");
        }
    }

    /// Seeds that are all refused at their first byte would test nothing.
    #[test]
    fn some_stored_inputs_are_accepted() {
        let is_taken = |(_, seed): &&(String, Vec<u8>)| {
            let read = RequestMessage::read(seed.clone().into());
            let takes = |model: &Model, read: &RequestMessage| read.arrays(model, &DecodeLimits::default()).is_ok();
            read.is_ok_and(|read| callboard_oip::models().iter().any(|model| takes(model, &read)))
        };
        let taken = seeds();
        let taken: Vec<&String> = taken.iter().filter(is_taken).map(|(name, _)| name).collect();
        assert!(taken.len() >= 5, "{taken:?}");
    }

    proptest! {
        /// Seeds with random changes: closer to valid inputs than random bytes.
        #[test]
        fn the_decoder_withstands_mutated_inputs(which: usize, changes in vec((any::<usize>(), any::<u8>()), 1..8)) {
            let seeds = seeds();
            let mut input = seeds[which % seeds.len()].1.clone();
            for (at, byte) in changes {
                let at = at % input.len();
                input[at] = byte;
            }
            decode_infer_request(&input);
        }

        #[test]
        fn the_decoder_withstands_random_inputs(input in vec(any::<u8>(), 0..300)) {
            decode_infer_request(&input);
        }
    }
}
