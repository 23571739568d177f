//! A message of gossip, and what a node does with it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| callboard_net::testing::gossip(input));
