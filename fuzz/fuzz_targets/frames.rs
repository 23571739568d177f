//! A stream of frames, whole and in chunks.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("frames", input));
