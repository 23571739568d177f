//! The body of an inference request to arrays.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_oip::decode_inference_request(input));
