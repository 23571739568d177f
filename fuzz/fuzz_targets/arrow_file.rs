//! An Arrow IPC file to a data frame.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_fuzz::run("arrow_file", input));
