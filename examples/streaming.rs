//! One input, many outputs: a stage that answers in parts, like a model that generates text.
//!
//! Run with `cargo run --example streaming`. Over HTTP the same route answers as server-sent events, JSON lines or
//! envelopes, whichever a client accepts.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard::Drained;
use callboard::prelude::*;
use futures_util::stream;

/// The number of outputs that may wait for a slow reader.
const CREDIT: usize = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // An endless stream that counts its outputs.
    let produced = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&produced);
    let squares = StreamStage::each("squares", move |start: &u64| {
        let counter = Arc::clone(&counter);
        stream::iter((*start..).map(move |number| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(number * number)
        }))
    });
    let words = StreamStage::each("words", |text: &String| {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        stream::iter(words.into_iter().map(|word| match word.parse::<i64>() {
            Ok(number) => Err(Failure::invalid_input(format!("{number} is not a word"))),
            Err(_) => Ok(word),
        }))
    });
    // A stage after a streaming stage runs for each of its outputs, in order.
    let upper = Stage::each("upper", |word: &String| Ok(word.to_uppercase()));
    let app = App::new().route_streaming("/squares", StreamPipeline::from(squares.credit(CREDIT)));
    let node = app.route_streaming("/words", StreamPipeline::from(words).then(upper)).start().await?;
    let client = node.client();

    // An error ends the stream, after the outputs before it.
    let mut replies = client.replies::<_, String>("/words", "one two 3 four".to_owned())?;
    let mut received = Vec::new();
    let error = loop {
        match replies.next().await {
            Some(Ok(word)) => received.push(word),
            Some(Err(error)) => break error,
            None => unreachable!("the third word is an error"),
        }
    };
    println!("/words: {received:?}, then {error}");
    assert_eq!(received, ["ONE", "TWO"]);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(replies.next().await.is_none());

    // A reader that leaves ends the stream. At most its credit was produced in advance.
    let mut replies = client.replies::<_, u64>("/squares", 3_u64)?;
    let mut first = Vec::new();
    while first.len() < 3 {
        first.push(replies.next().await.expect("an endless stream")?);
    }
    drop(replies);
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    let produced = produced.load(Ordering::SeqCst);
    println!("/squares: {first:?}, and {produced} were produced in all");
    assert_eq!(first, [9, 16, 25]);
    assert!(produced <= first.len() + CREDIT + 1, "{produced}");
    Ok(())
}
