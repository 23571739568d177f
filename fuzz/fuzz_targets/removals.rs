//! A signed list of removed members, as any member may send it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_net::testing::removals(input));
