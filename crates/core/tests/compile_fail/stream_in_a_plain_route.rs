//! A streaming stage stands in a route for one output.
//~ is not a stage or pipeline
//~ `route_streaming`

use callboard_core::{App, StreamStage};
use futures_util::stream;

fn main() {
    let words = StreamStage::each("words", |text: &String| {
        stream::iter(text.split(' ').map(|word| Ok(word.to_owned())).collect::<Vec<_>>())
    });
    let _ = App::new().route("/words", words);
}
