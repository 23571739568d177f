//! An ensemble of a tuple with one member.
//~ cannot be the members of an ensemble
//~ one alone is used as it is

use callboard_core::{Pipeline, Stage};

fn main() {
    let length = Stage::each("length", |text: &String| Ok(text.len()));
    let _ = Pipeline::ensemble((length,));
}
