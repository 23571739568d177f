//! A `ModelInferRequest` to arrays.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_grpc::decode_infer_request(input));
