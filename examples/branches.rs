//! Pipelines that branch: all members of an ensemble side by side, or the one branch that a switch chooses.
//!
//! Run with `cargo run --example branches`. In a configuration file these are `{ ensemble = … }` and `{ switch = … }`:
//! see `examples/graph/callboard.toml`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use callboard::pipeline::MemberError;
use callboard::prelude::*;

fn app() -> App {
    let length = Stage::each("length", |text: &String| Ok(text.chars().count()));
    let upper = Stage::each("upper", |text: &String| Ok(text.to_uppercase()));
    let number = Stage::each("number", |text: &String| Ok(text.parse::<f64>()?));
    let words = Stage::each("words", |text: &String| Ok(text.split_whitespace().count() as f64));

    // The members run concurrently, so the slowest one decides the time. Their outputs are a tuple, and the first error
    // is the outcome.
    let pair: Pipeline<String, (usize, String)> = Pipeline::ensemble((length, upper));

    // In a partial ensemble, a failed member leaves its error in its position. A stage of several routes is one stage
    // with one queue.
    let guesses = Pipeline::ensemble_partial(vec![number.clone(), words.clone()]);

    // A switch chooses a branch by the item. An error of the choice fails only that item.
    let measure = Pipeline::switch(
        "by_first",
        |text: &String| match text.chars().next() {
            None => Err(Failure::invalid_input("nothing to measure")),
            Some(first) => Ok(usize::from(!first.is_ascii_digit())),
        },
        vec![number, words],
    );
    App::new().route("/both", pair).route("/guesses", guesses).route("/measure", measure)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = app();
    println!("{app}");
    let node = app.start().await?;
    let client = node.client();

    let pair: (usize, String) = client.call("/both", "ada".to_owned()).await?;
    println!("/both answers {pair:?}");
    assert_eq!(pair, (3, "ADA".to_owned()));

    let guesses: Vec<Result<f64, MemberError>> = client.call("/guesses", "three small words".to_owned()).await?;
    println!("/guesses answers {guesses:?}");
    assert!(guesses[0].is_err(), "a text is not a number");
    assert_eq!(guesses[1], Ok(3.0));

    for (text, measure) in [("2.5", 2.5), ("two words", 2.0)] {
        assert_eq!(client.call::<_, f64>("/measure", text.to_owned()).await?, measure);
    }
    let refused = client.call::<_, f64>("/measure", String::new()).await.expect_err("there is no first letter");
    println!("/measure of nothing: {refused}");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    Ok(())
}
