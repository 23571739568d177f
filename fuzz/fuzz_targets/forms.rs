//! Values to tensors, texts, frames and series; and media types.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("forms", input));
