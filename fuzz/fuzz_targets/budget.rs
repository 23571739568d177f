//! Decodes any format to a value and a Rust type, encodes both again, and charges all of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("budget", input));
