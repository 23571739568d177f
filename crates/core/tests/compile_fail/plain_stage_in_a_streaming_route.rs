//! A plain stage stands in a route that streams.
//~ is not a streaming stage or pipeline
//~ a plain stage or pipeline goes to `route`

use callboard_core::{App, Stage};

fn main() {
    let length = Stage::each("length", |text: &String| Ok(text.len()));
    let _ = App::new().route_streaming("/length", length);
}
