//! Two typed stages in one route, called in process: the types of the stages are the types of the route.
//!
//! Run with `cargo run --example hello`. To serve the same app over HTTP, with `--help`, `check` and all, `main` is one
//! line: `callboard::cli(app())`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use callboard::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, JsonSchema, Serialize)]
struct Guest {
    name: String,
    /// The number of repetitions.
    times: usize,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
struct Greeting {
    text: String,
}

fn app() -> App {
    // A stage is a name and a function from one item to its outcome. An `Err` is an ordinary answer.
    let check = Stage::each("check", |guest: &Guest| {
        if guest.name.is_empty() {
            return Err(Failure::invalid_input("`name` must not be empty"));
        }
        Ok(guest.clone())
    });
    let greet = Stage::each("greet", |guest: &Guest| {
        let text = vec![format!("hello, {}", guest.name); guest.times].join("; ");
        Ok(Greeting { text })
    });
    // The compiler checks that each stage takes the output of the stage before it.
    App::new().route("/greet", Pipeline::from(check).then(greet))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = app().start().await?;
    let client = node.client();

    let ada = Guest { name: "Ada".to_owned(), times: 2 };
    let greeting: Greeting = client.call("/greet", ada).await?;
    println!("/greet answers: {}", greeting.text);
    assert_eq!(greeting, Greeting { text: "hello, Ada; hello, Ada".to_owned() });

    let nameless = Guest { name: String::new(), times: 1 };
    let refused = client.call::<_, Greeting>("/greet", nameless).await;
    let error = refused.expect_err("the first stage refuses an empty name");
    println!("without a name: {error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    // The schema of the input, made from the Rust type, for clients in other languages.
    let route = client.route("/greet").expect("the route that was declared");
    println!("its input: {}", route.input().schema()["properties"]);
    assert_eq!(route.input().schema()["required"][0], "name");
    Ok(())
}
