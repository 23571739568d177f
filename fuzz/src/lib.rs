//! The properties of the targets. The tests of the codec share them, and replay every stored input on stable Rust.

#[path = "../../crates/codec/tests/common/fuzz.rs"]
mod fuzz;
#[allow(dead_code, reason = "a fuzzer has one thread and takes no turns")]
#[path = "../../crates/codec/tests/common/heap.rs"]
mod heap;
#[path = "../../crates/codec/tests/common/ledger.rs"]
mod ledger;

/// Runs the properties of one decoder.
///
/// # Panics
///
/// If a property does not hold, or the decoder is unknown.
pub fn run(name: &str, input: &[u8]) {
    let target = fuzz::TARGETS.iter().find(|target| target.0 == name);
    let (_, run) = target.expect("each target is named after its decoder");
    run(input);
}
