//! The lines of a host of `callboard mcp`, and the messages in them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_mcp::read_host_lines(input));
