//! A closure over a batch gives one result instead of one for each item.
//~ expected `Result<_, Failure>`, found `usize`

use callboard_core::{Batch, Stage};

fn main() {
    let _ = Stage::batch("length", |texts: Batch<String>| texts.iter().map(|text| text.len()).collect());
}
