//! An envelope in chunks, against the same in one buffer.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("envelope_chunks", input));
