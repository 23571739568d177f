//! The kept inputs of the fuzz target for requests.

use std::fs;
use std::path::Path;

use crate::fuzz::request;

#[test]
fn every_kept_input_holds_the_properties() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/openai");
    let mut count = 0;
    for file in fs::read_dir(directory).unwrap() {
        request(&fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 16, "{count} inputs");
}
