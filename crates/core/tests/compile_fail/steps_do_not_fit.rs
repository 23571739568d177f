//! A step takes another type than the one before it gives.
//~ is not a stage or pipeline that takes `f64`
//~ convert by `.map("name", |given: &Given| Ok(wanted))` or by another stage

use callboard_core::{Pipeline, Stage};

fn main() {
    let parse = Stage::each("parse", |text: &String| Ok(text.parse::<f64>()?));
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    let _ = Pipeline::from(parse).then(shout);
}
