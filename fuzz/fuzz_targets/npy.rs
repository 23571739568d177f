//! NumPy's .npy to a tensor.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("npy", input));
