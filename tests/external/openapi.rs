//! The OpenAPI document, checked by openapi-spec-validator, and compared with the server by schemathesis.
//!
//! schemathesis makes valid and invalid requests from the document and checks the answers: an undeclared status, media
//! type, header or body is a failure, and so is a refused valid request or an accepted invalid one. The number of
//! requests is bounded and their seed fixed.

use callboard::codec::{Tensor, Value};
use callboard::http::{ApiKeys, HttpConfig};
use callboard::{App, Failure, FunctionCall, RouteSpec, Server, Stage, StreamStage};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::python::Python;
use crate::support;

#[derive(Clone, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
struct Guest {
    name: String,
    #[serde(default)]
    times: Option<u8>,
    tone: Tone,
    tags: Vec<String>,
}

#[derive(Clone, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
enum Tone {
    Warm,
    Formal { title: String },
}

#[derive(Clone, Deserialize, JsonSchema, Serialize)]
struct Greeting {
    text: String,
    length: usize,
    tone: Tone,
}

/// A route of each kind: Rust types, text, any value, a function, an array, a stream.
pub(crate) fn app() -> App {
    let greet = Stage::each("greet", |guest: &Guest| {
        let names = vec![guest.name.as_str(); usize::from(guest.times.unwrap_or(1))];
        let text = format!("hello {}", names.join(" and "));
        Ok(Greeting { length: text.len(), text, tone: guest.tone.clone() })
    });
    let scale = Stage::each("scale", |call: &FunctionCall| {
        call.check_names(&["x"])?;
        let x: f64 = call.arg(0, "x")?;
        Ok(x * 2.0)
    });
    let count =
        StreamStage::each("count", |last: &u8| stream::iter((0..*last % 8).map(Ok::<_, Failure>).collect::<Vec<_>>()));
    let example = Value::from_serialize(&Guest {
        name: "Ada".to_owned(),
        times: Some(2),
        tone: Tone::Formal { title: "Countess".to_owned() },
        tags: vec!["first".to_owned()],
    });
    App::new()
        .mount(RouteSpec::new::<Guest, Greeting>("/greet", greet).summary("Greets").example(example.unwrap()))
        .route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
        .route("/mirror", Stage::each("mirror", |value: &Value| Ok(value.clone())))
        .route("/same", Stage::each("same", |tensor: &Tensor| Ok(tensor.clone())))
        .route("/scale", scale)
        .route_streaming("/count", count)
}

/// Requests that may be refused although the schema allows them: no argument for `/scale`, ragged lists for `/same`,
/// and wrong arguments of a function or model. Clients may not load models here.
const OWN_RULES: &str = "/scale,/same,/mirror,/v1/call/{name},/v2/models/{model}/infer,/v2/models/{model}/generate,\
                         /v2/models/{model}/generate_stream,/v1/models/{model}:predict,\
                         /v2/repository/models/{model}/load,/v2/repository/models/{model}/unload";

#[test]
fn the_document_of_typed_routes_is_valid_and_matches_the_server() {
    let Some(python) = Python::with("openapi") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(app(), "127.0.0.1:0", HttpConfig::default())).unwrap();
    python.run("openapi.py", &[&server.address().to_string(), OWN_RULES]);
}

/// Operations that are declared to need a key answer 401 without one; open operations do not.
#[test]
fn the_document_of_a_server_with_keys_is_valid_and_matches_the_server() {
    const KEY: &str = "a-key-of-the-tests-that-is-long-enough-0123456789";
    let Some(python) = Python::with("openapi") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let api_keys = Some(ApiKeys::parse(&format!("tests {KEY}")).unwrap());
    let config = HttpConfig { api_keys, ..HttpConfig::default() };
    let server = runtime.block_on(Server::start(app(), "127.0.0.1:0", config)).unwrap();
    python.run("openapi.py", &[&server.address().to_string(), OWN_RULES, KEY]);
}

/// A text that is no picture fits the schema of one.
#[test]
fn the_document_of_configured_routes_is_valid_and_matches_the_server() {
    let Some(python) = Python::with("openapi") else { return };
    for served in ["examples/graph", "examples/digits/digits.onnx"] {
        let server = support::Server::start(support::callboard(["serve", served, "--http", "127.0.0.1:0"]));
        python.run("openapi.py", &[&server.address, "*"]);
    }
}
