//! NumPy's .npz to a map of tensors.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("npz", input));
