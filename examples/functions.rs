//! A server of named functions, called over QUIC and in process by the same code.
//!
//! Run with `cargo run --example functions`. Both ends are here; `serve` could be its own program, whose functions any
//! other program calls: `callboard call quic://127.0.0.1:4433 power --arg 2 --arg exponent=10`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use callboard::call::FunctionCall;
use callboard::net::{CallFailure, Identity, NetConfig, QuicEdge};
use callboard::prelude::*;

/// The functions. Each reads its arguments by place or by name.
fn functions() -> App {
    let power = Stage::each("power", |call: &FunctionCall| {
        call.check_names(&["base", "exponent"])?;
        let base: f64 = call.arg(0, "base")?;
        Ok(base.powf(call.optional_arg(1, "exponent")?.unwrap_or(2.0)))
    });
    let mean = Stage::each("mean", |call: &FunctionCall| {
        call.check_names(&["numbers"])?;
        let numbers: Vec<f64> = call.arg(0, "numbers")?;
        match numbers.len() {
            0 => Err(Failure::new("there is no mean of nothing").with_type("NoNumbers")),
            count => Ok(numbers.iter().sum::<f64>() / count as f64),
        }
    });
    App::new().route("/power", power).route("/mean", mean)
}

/// The whole server, for this user on this machine.
async fn serve() -> Result<(Node, QuicEdge), Box<dyn std::error::Error>> {
    let edge = QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?;
    let node = functions().start().await?;
    edge.open(node.client());
    Ok((node, edge))
}

/// The caller does not know where the functions run.
async fn use_them(caller: &impl Caller) -> Result<(), CallError> {
    assert_eq!(caller.send("power", [3.0], Map::new()).await?, Value::Float(9.0));
    let cube = caller.send("power", [2.0], Map::from_iter([("exponent", 3.0)])).await?;
    println!("  power(2, exponent=3) = {cube:?}");
    assert_eq!(cube, Value::Float(8.0));
    let numbers = Value::from(vec![Value::from(1.0), Value::from(2.0), Value::from(6.0)]);
    assert_eq!(caller.send("mean", [numbers], Map::new()).await?, Value::Float(3.0));

    // Errors name their cause: a wrong argument by its name, an unknown function, the error that the function raised.
    let wrong = caller
        .send("power", FunctionCall::NO_ARGS, Map::from_iter([("exponent", "three")]))
        .await
        .expect_err("there is no base");
    let unknown = caller.send("root", [2.0], Map::new()).await.expect_err("there is no such function");
    let raised =
        caller.send("mean", [Value::from(Vec::<Value>::new())], Map::new()).await.expect_err("there is no mean");
    for error in [&wrong, &unknown, &raised] {
        println!("  {:?}: {}", CallFailure::classify(error), error.message());
    }
    assert_eq!(wrong.message(), "argument `base` is missing: give it as positional argument 1 or by name");
    assert_eq!(
        [&wrong, &unknown, &raised].map(CallFailure::classify),
        [CallFailure::Request, CallFailure::NoSuchRoute, CallFailure::Function]
    );
    assert_eq!((raised.message(), raised.error_type()), ("there is no mean of nothing", Some("NoNumbers")));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (node, edge) = serve().await?;
    let url = format!("quic://{}", edge.address());

    println!("over {url}");
    use_them(&Client::connect(&url).await?).await?;
    println!("in process");
    use_them(&node.client()).await?;
    Ok(())
}
