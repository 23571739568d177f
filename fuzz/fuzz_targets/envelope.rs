//! One buffer with an envelope to a value.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("envelope", input));
