//! A request of a relay to the arguments of a function.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_grpc::decode_relay_request(input));
