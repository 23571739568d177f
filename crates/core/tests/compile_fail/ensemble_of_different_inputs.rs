//! The members of an ensemble take different inputs.
//~ is not a stage or pipeline that takes `String`
//~ all members of an ensemble take one type

use callboard_core::{Pipeline, Stage};

fn main() {
    let length = Stage::each("length", |text: &String| Ok(text.len()));
    let double = Stage::each("double", |number: &u64| Ok(number * 2));
    let _ = Pipeline::ensemble((length, double));
}
