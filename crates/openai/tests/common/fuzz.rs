//! The properties of requests to the models of a node, for any bytes. The fuzz target runs them on generated inputs,
//! the tests on all kept ones.
//!
//! Besides "no panic": a request is answered, or refused as a mistake of its client in the words of its API; whatever
//! was charged for it is given back.

#[path = "edge.rs"]
pub(crate) mod edge;

use std::sync::{LazyLock, Mutex, PoisonError};

use callboard_codec::{Media, Value};
use callboard_core::{App, RouteSpec, Stage, Task};
use callboard_http::axum::body::{Body, to_bytes};
use callboard_http::axum::http::Request;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tower_service::Service as _;

use self::edge::Served;

const JSON: &str = "application/json";

/// Where an input goes: its first byte is the number of one of these.
const ENDPOINTS: [(&str, &str); 12] = [
    ("/v1/responses", JSON),
    ("/v1/messages", JSON),
    ("/v1/audio/transcriptions", "multipart/form-data; boundary=b"),
    ("/v1/chat/completions", JSON),
    ("/v1/completions", JSON),
    ("/v1/embeddings", JSON),
    ("/v1/rerank", JSON),
    ("/v2/rerank", JSON),
    ("/v1/moderations", JSON),
    ("/v1/audio/speech", JSON),
    ("/v1/images/generations", JSON),
    ("/v1/audio/translations", "multipart/form-data; boundary=b"),
];

/// The longest answer: `n` and lists make many of one request.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What the model of recordings takes: texts of a form become these.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Recording {
    file: Media,
    task: Option<String>,
    temperature: Option<f64>,
    timestamp_granularities: Option<Vec<String>>,
}

struct Tested {
    runtime: Runtime,
    served: Served,
}

static TESTED: LazyLock<Mutex<Tested>> = LazyLock::new(|| Mutex::new(Tested::start()));

fn app() -> App {
    let text = |name: &str| Stage::each(name, |_: &Value| Ok("one two".to_owned()));
    let number = |name: &str| Stage::each(name, |_: &Value| Ok(0.5));
    let bytes = |name: &str| Stage::each(name, |_: &Value| Ok(Value::Bytes(vec![7; 100].into())));
    let heard = Stage::each("heard", |recording: &Recording| Ok(format!("{} bytes", recording.file.len())));
    App::new()
        .mount(RouteSpec::new("/chat", text("chat")).task(Task::Chat))
        .mount(RouteSpec::new("/write", text("write")).task(Task::Complete))
        .mount(RouteSpec::new("/embed", Stage::each("embed", |_: &Value| Ok(vec![0.5, 1.0]))).task(Task::Embed))
        .mount(RouteSpec::new("/rank", number("rank")).task(Task::Rerank))
        .mount(RouteSpec::new("/judge", Stage::each("judge", |_: &String| Ok(Value::Bool(true)))).task(Task::Moderate))
        .mount(RouteSpec::new("/heard", heard).task(Task::Transcribe))
        .mount(RouteSpec::new("/said", bytes("said")).task(Task::Speak))
        .mount(RouteSpec::new("/drawn", bytes("drawn")).task(Task::Image))
}

impl Tested {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let served = runtime.block_on(Served::start(app()));
        Self { runtime, served }
    }

    async fn check(&self, path: &str, media: &str, body: &[u8]) {
        let request = Request::post(path).header("host", "test").header("content-type", media);
        let request = request.body(Body::from(body.to_vec())).expect("a request");
        let Ok(response) = self.served.edge.clone().call(request).await;
        let status = response.status().as_u16();
        let answer = to_bytes(response.into_body(), MAX_ANSWER_BYTES).await.expect("an answer");
        assert!(status == 200 || (400..500).contains(&status), "{path}: {status}: {}", text(&answer));
        if status != 200 {
            let refusal: serde_json::Value = serde_json::from_slice(&answer).expect("a refusal is JSON");
            let message = refusal.pointer("/error/message").or_else(|| refusal.get("message"));
            let message = message.and_then(serde_json::Value::as_str).expect("a refusal has a message");
            assert!(!message.is_empty() && message.len() < 4096, "{path}: {message}");
        }
        self.served.until_settled().await;
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned()
}

/// Checks the properties of one request.
///
/// # Panics
///
/// If a property does not hold.
pub(crate) fn request(input: &[u8]) {
    let Some((first, body)) = input.split_first() else { return };
    let (path, media) = ENDPOINTS[usize::from(*first) % ENDPOINTS.len()];
    let tested = TESTED.lock().unwrap_or_else(PoisonError::into_inner);
    tested.runtime.block_on(tested.check(path, media, body));
}
