//! The properties of the decoder of requests, for any bytes. The fuzz target runs it on generated inputs, the tests on
//! all kept inputs.
//!
//! Besides "no panic": a decoded request accounts for its whole body and points into it, converts to values, and
//! encodes to a response that reads back; an error has one line.

use std::sync::Weak;

use bytes::Bytes;
use callboard_codec::{DType, DataType, DecodeLimits, TensorField, TensorFields};
use serde_json::json;

use super::array::Array;
use super::datatype::Datatype;
use super::model::Model;
use super::request::{BodyLayout, InferRequest};
use super::response::InferResponse;

/// An input begins with the length in the header, or with one of these.
const JSON_ALONE: u32 = u32::MAX;
const RAW: u32 = 0;

/// Checks the properties. `input` begins with the header's number as a little-endian `u32`; the body follows.
///
/// # Panics
///
/// If a property does not hold.
#[allow(unreachable_pub, reason = "reachable with the feature `fuzz`")]
pub fn decode_inference_request(input: &[u8]) {
    let Some((header, body)) = input.split_first_chunk::<4>() else { return };
    let form = match u32::from_le_bytes(*header) {
        JSON_ALONE => BodyLayout::Json,
        RAW => BodyLayout::Raw,
        length => BodyLayout::Binary(length as usize),
    };
    let body = Bytes::copy_from_slice(body);
    for model in models() {
        match InferRequest::read(&model, form, &body, &DecodeLimits::default()) {
            Ok(request) => taken(&model, form, &body, &request),
            Err(refusal) => assert!(refusal.to_string().len() < 4096, "{refusal}"),
        }
    }
}

fn taken(model: &Model, form: BodyLayout, body: &Bytes, request: &InferRequest) {
    assert_eq!(request.inputs.len(), model.inputs.fields.len());
    assert!(request.rows >= 1 && (model.is_batched() || request.rows == 1));
    let sent: Vec<&Array> = request.inputs.iter().flatten().collect();
    for array in &sent {
        // Two bytes of JSON make at most eight bytes.
        assert!(array.data.len() <= 4 * body.len() + 8, "{} bytes of {}", array.data.len(), body.len());
        let again = Array::try_new("x", array.datatype, array.shape.clone(), array.data.clone(), usize::MAX);
        assert_eq!(again.as_ref(), Ok(*array), "what was settled stays so");
        if model.is_batched() {
            let rows = array.rows();
            assert_eq!(rows.len(), request.rows);
            assert_eq!(Array::stack(&rows).as_ref(), Some(*array));
        }
    }
    if let BodyLayout::Binary(length) = form {
        let range = body.as_ptr_range();
        let bytes = |arrays: &[&Array]| arrays.iter().map(|array| array.data.len()).sum::<usize>();
        let (within, others): (Vec<&Array>, _) = sent.iter().partition(|array| range.contains(&array.data.as_ptr()));
        let bools: Vec<&Array> =
            others.into_iter().filter(|array: &&Array| array.datatype == Datatype::Number(DType::Bool)).collect();
        let (parts, shared) = (body.len() - length, bytes(&within));
        assert!(shared <= parts, "the parts are the body: {shared} of {parts}");
        // A byte that is no 0 is written as 1, in a copy.
        assert!(shared + bytes(&bools) >= parts, "nothing else was copied: {shared} of {parts}");
    }
    // An array with an empty axis may be refused, because empty rows cost time.
    let _ = model.inputs.value(request.inputs.clone(), &DecodeLimits::default());

    if request.inputs.iter().all(Option::is_some) && model.outputs.fields.len() == request.inputs.len() {
        let outputs: Vec<Array> = request.inputs.iter().flatten().cloned().collect();
        match InferResponse::try_new(model, request.id.as_deref(), &outputs, &request.outputs) {
            Ok(written) => written.is_whole(),
            // The outputs have a text that is not UTF-8, or a number that is not JSON.
            Err(refusal) => {
                assert!(refusal.to_string().contains("binary_data") || refusal.to_string().contains("BYTES"))
            }
        }
    }
}

/// The models of the properties, also for other transports.
#[allow(unreachable_pub, reason = "reachable with the feature `fuzz`")]
#[must_use]
pub fn models() -> [Model; 4] {
    [every(false), every(true), one(), typed()]
}

/// A model that takes and gives an array of each datatype, in any shape.
fn every(stackable: bool) -> Model {
    let fields = DType::all().filter(|dtype| !dtype.is_complex()).map(Some).chain([None]);
    let field = |dtype: Option<DType>| TensorField {
        name: dtype.map_or("bytes", DType::name).to_owned(),
        dtype,
        shape: if stackable { Some(vec![None]) } else { None },
        is_required: true,
    };
    let tensors = TensorFields { fields: fields.map(field).collect(), stackable };
    let data_type = DataType::value().with_tensors(tensors);
    Model::new("every", 1, &data_type, &data_type, Weak::new())
}

/// A model with one input, as raw requests need.
fn one() -> Model {
    let field = TensorField {
        name: "x".to_owned(),
        dtype: Some(DType::F32),
        shape: Some(vec![None, Some(2)]),
        is_required: true,
    };
    let data_type = DataType::value().with_tensors(TensorFields { fields: vec![field], stackable: false });
    Model::new("one", 1, &data_type, &data_type, Weak::new())
}

/// The parts of a Rust type: texts, lists, optional fields, and a part that is no array.
fn typed() -> Model {
    let data_type = DataType::value().with_schema(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "age": { "type": ["integer", "null"], "format": "uint8" },
            "tags": { "type": "array", "items": { "type": "string" } },
            "more": { "type": "object" },
        },
        "required": ["name", "tags"],
    }));
    Model::new("typed", 1, &data_type, &data_type, Weak::new())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn seeds() -> Vec<(String, Vec<u8>)> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/oip");
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap());
        let mut seeds: Vec<_> = entries
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap()))
            .collect();
        seeds.sort();
        seeds
    }

    /// Every kept input, also without its end, with one byte more, and with other headers.
    #[test]
    fn the_decoder_withstands_every_stored_input() {
        let seeds = seeds();
        assert!(seeds.len() >= 10, "{}", seeds.len());
        for (name, seed) in seeds {
            let outcome = std::panic::catch_unwind(|| {
                decode_inference_request(&seed);
                for end in 0..seed.len() {
                    decode_inference_request(&seed[..end]);
                }
                decode_inference_request(&[seed.as_slice(), b"\0"].concat());
                for length in [JSON_ALONE, RAW, 1, 2, seed.len() as u32, u32::MAX - 1] {
                    decode_inference_request(&[&length.to_le_bytes()[..], &seed[4.min(seed.len())..]].concat());
                }
            });
            assert!(outcome.is_ok(), "{name}");
        }
    }

    /// Seeds that are all refused at their first byte would test nothing.
    #[test]
    fn some_stored_inputs_are_accepted() {
        let is_taken = |(_, seed): &(String, Vec<u8>)| {
            let (header, body) = seed.split_first_chunk::<4>().unwrap();
            let form = match u32::from_le_bytes(*header) {
                JSON_ALONE => BodyLayout::Json,
                RAW => BodyLayout::Raw,
                length => BodyLayout::Binary(length as usize),
            };
            let body = Bytes::copy_from_slice(body);
            models().iter().any(|m| InferRequest::read(m, form, &body, &DecodeLimits::default()).is_ok())
        };
        assert!(seeds().iter().filter(|seed| is_taken(seed)).count() >= 6);
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
            decode_inference_request(&input);
        }

        #[test]
        fn the_decoder_withstands_random_inputs(input in vec(any::<u8>(), 0..300)) {
            decode_inference_request(&input);
        }
    }
}
