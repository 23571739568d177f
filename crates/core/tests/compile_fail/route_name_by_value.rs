//! The name of a route is given by value.
//~ consider borrowing here
use callboard_core::{App, Stage};

fn main() {
    let version = 2;
    let name = format!("/v{version}/length");
    let length = Stage::each("length", |text: &String| Ok(text.len()));
    let _ = App::new().route(name, length);
}
