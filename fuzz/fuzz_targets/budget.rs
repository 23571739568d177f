//! Any format to a value and a Rust type and out again, on an account that pays for all of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("budget", input));
