//! The app for attacks on Rust types: routes whose inputs recurse, grow with the input, or are tables and arrays.
//!
//! It has the commands of the `callboard` binary; the attacks use `serve`. With the argument `child` it is a child of a
//! stage instead, and misbehaves as its items say (`child.rs`).

#[cfg(target_os = "linux")]
mod child;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

use callboard::actor::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard::actor::{Actor, ActorContext, ActorSpec, Question, ReplyPort};
use callboard::codec::{DataFrame, Tensor};
use callboard::prelude::*;
use callboard::testing::MemoryStore;
use callboard::{RouteSpec, Task};
use futures_util::stream::{self, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A tree as deep as its input. MessagePack writes a level in three bytes.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
enum Tree {
    Leaf,
    N(Box<Self>),
}

/// The same with a newtype struct and an option between two levels.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
enum Chain {
    End,
    Next(Link),
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Link(Option<Box<Chain>>);

/// A list as a struct with an option of itself.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Node {
    next: Option<Box<Self>>,
}

fn app() -> App {
    App::new()
        .route("/honest", Stage::each("honest", |scores: &Vec<f64>| Ok(scores.iter().sum::<f64>())))
        .mount(
            RouteSpec::new("/echo", Stage::each("echo", |value: &Value| Ok(value.clone()))).summary("An echo").tool(),
        )
        .route("/tree", Stage::each("tree", |tree: &Tree| Ok(matches!(tree, Tree::Leaf))))
        .route("/chain", Stage::each("chain", |chain: &Chain| Ok(matches!(chain, Chain::End))))
        .route("/nodes", Stage::each("nodes", |node: &Node| Ok(node.next.is_some())))
        .route("/texts", Stage::each("texts", |texts: &Vec<String>| Ok(texts.len())))
        .route("/words", Stage::each("words", |words: &BTreeMap<String, i64>| Ok(words.len())))
        .route("/numbers", Stage::each("numbers", |numbers: &HashMap<i64, i64>| Ok(numbers.len())))
        .route("/frame", Stage::each("frame", |frame: &DataFrame| Ok(frame.clone())))
        .route("/tensor", Stage::each("tensor", |tensor: &Tensor| Ok(tensor.clone())))
        .route("/function", Stage::each("function", |call: &FunctionCall| call.arg::<Value>(0, "x")))
        .mount(RouteSpec::new("/chat", Stage::each("chat", |asked: &Value| Ok(asked.clone()))).task(Task::Chat))
        .mount(RouteSpec::new("/scores", Stage::each("scores", |_: &Value| Ok(0.5))).task(Task::Rerank))
        .mount(RouteSpec::new("/picture", Stage::each("picture", picture)).task(Task::Image))
        .mount(
            RouteSpec::new("/heard", Stage::each("heard", |_: &Value| Ok("words".to_owned()))).task(Task::Transcribe),
        )
        .mount(RouteSpec::new("/said", Stage::each("said", picture)).task(Task::Speak))
        .mount(RouteSpec::new("/length", Stage::each("length", length)).task(Task::Embed).summary("A length").tool())
        .route_streaming("/count", StreamStage::each("count", lines))
        .route("/counted", Pipeline::ask_key("counter", |_: &Add| "honest".to_owned()))
        .keyed(
            KeyedSpec::new("counter", Arc::new(MemoryStore::new()), |_, count: Stored<u64>| async { Ok(count) })
                .max_active(1_000)
                .accepts::<Add>(),
        )
        .actor(ActorSpec::with_mailbox("clerk", 64, |_| Clerk).accepts(|Echo(text), answer| (text, answer)))
}

/// Adds to the counter of a key.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Add(u64);

impl Question for Add {
    const NAME: &str = "add";
    type Answer = u64;
}

impl Answers<Add> for Stored<u64> {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        **self = self.saturating_add(by);
        Ok(**self)
    }
}

/// Says what it hears.
struct Clerk;

#[derive(Debug, Deserialize, Serialize)]
struct Echo(String);

impl Question for Echo {
    const NAME: &str = "echo";
    type Answer = String;
}

impl Actor for Clerk {
    type Message = (String, ReplyPort<String>);

    async fn handle(&mut self, (text, answer): Self::Message, _: &ActorContext<Self>) -> Result<(), Failure> {
        answer.send(text);
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Text {
    input: String,
    extra: Option<Value>,
}

fn length(text: &Text) -> Result<Vec<f64>, Failure> {
    Ok(vec![text.input.len() as f64])
}

fn picture(_: &Value) -> Result<Value, Failure> {
    Ok(Value::Bytes(vec![7; 1 << 20].into()))
}

/// As many lines of one KiB as the caller requests.
fn lines(count: &u64) -> impl Stream<Item = Result<String, Failure>> + use<> {
    stream::iter((0..*count).map(|number| Ok(format!("{number:01024}"))))
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if std::env::args().nth(1).as_deref() == Some("child") {
        return child::main();
    }
    callboard::cli(app())
}
