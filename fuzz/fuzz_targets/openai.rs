//! Requests to models: of OpenAI's, Anthropic's and Cohere's APIs, JSON and forms.

#![no_main]

#[path = "../../crates/openai/tests/common/fuzz.rs"]
mod fuzz;

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::request(input));
