//! JSON, MessagePack and envelopes to a Rust type.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("typed", input));
