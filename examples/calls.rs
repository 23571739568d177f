//! The ways to call a route: one call, a function, a detached call, an ordered stream, and all of them without a
//! runtime.
//!
//! Run with `cargo run --example calls`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use callboard::Drained;
use callboard::call::{BlockingClient, FunctionCall};
use callboard::prelude::*;

fn app(noted: &Arc<AtomicU64>) -> App {
    let count = Stage::each("count", |text: &String| Ok(text.split_whitespace().count()));

    // A stage over `FunctionCall` is a function: it reads its arguments by position or by name.
    let power = Stage::each("power", |call: &FunctionCall| {
        call.check_names(&["base", "exponent"])?;
        let base: f64 = call.arg(0, "base")?;
        let exponent: Option<f64> = call.optional_arg(1, "exponent")?;
        Ok(base.powf(exponent.unwrap_or(2.0)))
    });

    let noted = Arc::clone(noted);
    let note = Stage::each("note", move |amount: &u64| Ok(noted.fetch_add(*amount, Ordering::SeqCst)));

    let parse = Stage::each("parse", |text: &String| Ok(text.parse::<i64>()?)).max_batch_size(8);
    App::new().route("/count", count).route("/power", power).route("/note", note).route("/parse", parse)
}

/// In async code, each way waits without blocking.
async fn asynchronous(client: &LocalClient) -> Result<(), CallError> {
    // One call: Rust values in and out, nothing is encoded.
    let words: usize = client.call("/count", "three small words".to_owned()).await?;
    println!("/count answers {words}");
    assert_eq!(words, 3);

    // A function by its name. An error about an argument names it.
    let cube = client.send("power", [2.0, 3.0], Map::new()).await?;
    println!("power(2, 3) = {cube:?}");
    assert_eq!(cube, Value::Float(8.0));
    let error = client.send("power", FunctionCall::NO_ARGS, Map::from_iter([("exponent", 3.0)])).await;
    let error = error.expect_err("there is no base");
    println!("power(exponent=3): {error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    // Any other route takes its one value in the same way.
    assert_eq!(client.send("count", ["one two"], Map::new()).await?, Value::Int(2));

    // A detached call is admitted when this returns; its outcome is counted, and no caller waits for it.
    client.call_detached("/note", 40u64)?;

    // A stream of calls from endless inputs: results keep their order, and an error belongs to its own input.
    let texts = (1..).map(|n| if n % 4 == 0 { format!("<{n}>") } else { n.to_string() });
    let mut numbers = client.stream::<_, i64>("/parse", texts)?.look_ahead(16).with_inputs();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    while let Some((text, outcome)) = numbers.next().await {
        match outcome {
            Ok(number) => good.push(number),
            Err(_) => bad.push(text),
        }
        if good.len() == 9 {
            break; // cancels the calls that the stream has started
        }
    }
    println!("parsed {good:?}, refused {bad:?}");
    assert_eq!(good, [1, 2, 3, 5, 6, 7, 9, 10, 11]);
    assert_eq!(bad, ["<4>", "<8>"]);
    Ok(())
}

/// On a plain thread, each way blocks.
fn blocking(client: &BlockingClient) -> Result<(), CallError> {
    assert_eq!(client.call::<_, usize>("/count", "two words".to_owned())?, 2);
    assert_eq!(client.send("power", [3.0], Map::new())?, Value::Float(9.0));
    client.call_detached("/note", 2u64)?;

    // The stream is an iterator. It may end at the first error, which names its index.
    let texts = ["7", "8", "nine"].map(str::to_owned);
    let parsed: Result<Vec<i64>, CallError> = client.stream("/parse", texts)?.stop_at_error().collect();
    let error = parsed.expect_err("nine is not a digit");
    println!("{}", error.message());
    assert!(error.message().starts_with("input 2 of the stream: "));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let noted = Arc::new(AtomicU64::new(0));
    // A program without a runtime gets one with its node.
    let node = app(&noted).start_blocking()?;
    blocking(&node.client())?;

    // The same node from async code, here on a separate small runtime.
    let client = node.node().client();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(asynchronous(&client))?;

    // The shutdown waits for detached calls.
    assert_eq!(node.shutdown(Duration::from_secs(5)), Drained::Completely);
    assert_eq!(noted.load(Ordering::SeqCst), 42);
    println!("both detached calls have run");
    Ok(())
}
