//! The routes that the tests call.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use callboard_codec::{DataType, Map, RawBody, Tensor, Value};
use callboard_core::{App, Failure, RouteSpec, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Greet {
    pub(crate) name: String,
    pub(crate) times: Option<u8>,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Greeting {
    pub(crate) text: String,
}

/// The action of `/fail`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fail {
    Plainly,
    Teapot,
    BadItem,
    ByPanic,
}

/// A type whose deserialization panics.
#[derive(Clone, Serialize, JsonSchema)]
pub(crate) struct Explosive;

impl<'de> Deserialize<'de> for Explosive {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("a user's codec panics")
    }
}

/// `/greet` (typed), `/size` (dynamic, takes raw bodies), `/mirror` (dynamic), `/negate` (an array), `/fail`,
/// `/explode`.
pub(crate) fn app() -> App {
    let greet = Stage::each("greet", |greet: &Greet| {
        let names = vec![greet.name.as_str(); usize::from(greet.times.unwrap_or(1))];
        Ok(Greeting { text: format!("hello {}", names.join(" and ")) })
    });
    let greet = RouteSpec::new::<Greet, Greeting>("/greet", greet).summary("Greets by name");
    App::new()
        .mount(greet)
        .mount(size())
        .route("/mirror", Stage::each("mirror", |value: &Value| Ok(value.clone())))
        .route("/negate", Stage::each("negate", negate))
        .route("/fail", Stage::each("fail", fail))
        .route("/explode", Stage::each("explode", |_: &Explosive| Ok(0u8)))
}

/// Describes the value of each field.
fn size() -> RouteSpec {
    let stage = Stage::each("size", |form: &Value| {
        let form = form.as_map().ok_or_else(|| Failure::invalid_input("send a form"))?;
        let describe = |value: &Value| match value {
            Value::Bytes(bytes) => Value::from(format!("{} bytes", bytes.len())),
            other => other.clone(),
        };
        Ok(Value::Map(form.iter().map(|(name, value)| (name.to_owned(), describe(value))).collect::<Map>()))
    });
    let raw = RawBody {
        field: "image".to_owned(),
        media_types: vec!["image/*".to_owned(), "application/octet-stream".to_owned()],
    };
    RouteSpec::described("/size", stage, DataType::value().with_raw_body(raw), DataType::value())
}

fn negate(tensor: &Tensor) -> Result<Tensor, Failure> {
    Ok(Tensor::from_array(-tensor.to_array::<f32>()?))
}

fn fail(action: &Fail) -> Result<u8, Failure> {
    match action {
        Fail::Plainly => Err("x".parse::<u8>().unwrap_err().into()),
        Fail::Teapot => Err(Failure::new("short and stout").with_status(418).with_type("Teapot").with_details(7)),
        Fail::BadItem => Err(Failure::invalid_input("`item` is too dark")),
        Fail::ByPanic => panic!("the worker panics"),
    }
}

/// `/hold`: one replica on its own thread that reports each start and then waits for release.
pub(crate) struct Hold {
    pub(crate) app: App,
    started: Arc<Semaphore>,
    release: Sender<()>,
}

impl Hold {
    /// With a queue of this length after the held call.
    pub(crate) fn with_queue(entries: usize) -> Self {
        let started = Arc::new(Semaphore::new(0));
        let (release, released) = channel();
        let (signal_start, released) = (Arc::clone(&started), Arc::new(Mutex::new(released)));
        let stage = Stage::each("hold", move |text: &String| {
            signal_start.add_permits(1);
            wait_for_release(&released);
            Ok(text.clone())
        });
        let stage = stage.on_threads().queue(entries);
        Self { app: App::new().route("/hold", stage), started, release }
    }

    /// Separates the server's side from the test's side.
    pub(crate) fn split(self) -> (App, HoldControl) {
        (self.app, HoldControl { started: self.started, release: self.release })
    }
}

/// The test's control of [`Hold`].
pub(crate) struct HoldControl {
    started: Arc<Semaphore>,
    release: Sender<()>,
}

impl HoldControl {
    /// Waits until one more call is being held.
    pub(crate) async fn wait_until_held(&self) {
        let started = tokio::time::timeout(super::TEST_TIMEOUT, self.started.acquire()).await;
        started.expect("the stage starts").unwrap().forget();
    }

    /// Releases one held call.
    pub(crate) fn release(&self) {
        self.release.send(()).unwrap();
    }
}

/// Also returns when the test ends, so that no thread outlives it.
fn wait_for_release(released: &Mutex<Receiver<()>>) {
    _ = released.lock().unwrap().recv();
}
