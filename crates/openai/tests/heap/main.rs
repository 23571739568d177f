//! What requests take of the heap is within what they are charged: requests of other APIs that become one of chat, and
//! answers that become theirs. A binary of its own, because its allocator counts for the whole process.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

#[path = "../common/edge.rs"]
mod edge;
#[path = "../../../codec/tests/common/heap.rs"]
mod heap;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_core::{App, LocalClient, RouteSpec, Stage, Task};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::Request;
use futures_util::StreamExt as _;
use serde_json::{Value as Json, json};
use tokio::runtime::{Builder, Runtime};
use tower::Service as _;

use self::edge::Served;

/// A request's heap is at most its charge times this factor …
const HEAP_FACTOR: f64 = 1.1;

/// … plus these bytes: the call itself, its request, the head of its answer, and small uncharged work.
const HEAP_CONSTANT: usize = 96 * 1024;

const MIB: usize = 1 << 20;

struct Tested {
    runtime: Runtime,
    served: Served,
    client: LocalClient,
}

fn app() -> App {
    let short = |name: &str| Stage::each(name, |_: &Value| Ok("ok".to_owned()));
    let long = Stage::each("long", |_: &Value| Ok("a".repeat(MIB)));
    let arguments = json!({ "text": "a".repeat(MIB) }).to_string();
    let call = json!({ "id": "x", "type": "function", "function": { "name": "f", "arguments": arguments } });
    let calls = Value::from_serialize(&json!({ "tool_calls": [call] })).unwrap();
    let tool = Stage::each("tool", move |_: &Value| Ok(calls.clone()));
    let picture = Stage::each("picture", |_: &Value| Ok(Value::from(Bytes::from(vec![7; 1000]))));
    App::new()
        .mount(RouteSpec::new("/chat", short("chat")).task(Task::Chat))
        .mount(RouteSpec::new("/long", long).task(Task::Chat))
        .mount(RouteSpec::new("/tool", tool).task(Task::Chat))
        .mount(RouteSpec::new("/picture", picture).task(Task::Image))
}

impl Tested {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let served = runtime.block_on(Served::start(app()));
        let client = served.node.client();
        Self { runtime, served, client }
    }

    /// The peaks of the heap and of the accounts in one request.
    fn measure(&self, path: &str, body: &str) -> (usize, usize) {
        let _ = self.client.edge().take_peak_charged_bytes();
        let request = Request::post(path).header("host", "test").header("content-type", "application/json");
        // Allocated here, but read by the edge, which pays for it.
        let request = request.body(Body::from(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let ((), heap, _) = heap::measured(|| {
            self.runtime.block_on(async {
                let response = self.served.edge.clone().call(request).await.unwrap();
                assert_eq!(response.status(), 200, "{path}");
                let mut pieces = response.into_body().into_data_stream();
                while let Some(piece) = pieces.next().await {
                    piece.unwrap();
                }
            });
        });
        self.runtime.block_on(self.served.until_settled());
        (heap, usize::try_from(self.client.edge().take_peak_charged_bytes()).unwrap())
    }
}

/// A request, and how it is called in a failure.
fn request(name: &'static str, path: &'static str, body: Json) -> (&'static str, &'static str, String) {
    (name, path, body.to_string())
}

fn requests() -> Vec<(&'static str, &'static str, String)> {
    const RESPONSES: &str = "/v1/responses";
    const MESSAGES: &str = "/v1/messages";
    let text = "a".repeat(8 * MIB);
    let parts = |kind: &str| -> Vec<Json> { vec![json!({ "type": kind, "text": "a".repeat(1000) }); 4000] };
    let response = |input: Json| json!({ "model": "chat", "input": input });
    let turn = |role: &str, content: Json| json!({ "model": "chat", "max_tokens": 9, "messages": [{ "role": role, "content": content }] });
    let message = |content: Json| turn("user", content);
    let call = json!({ "type": "function_call", "call_id": "", "name": "", "arguments": "" });
    let picture = json!({ "type": "base64", "media_type": "image/png", "data": text });
    let used = json!({ "type": "tool_use", "id": "x", "name": "f", "input": { "text": "\u{1}".repeat(MIB) } });
    let uses = json!({ "type": "tool_use", "id": "", "name": "", "input": {} });
    let said = |content: Json| turn("assistant", content);
    let turns = vec![json!({ "role": "user", "content": "" }); 50_000];
    let asked = |model: &str, stream: bool| {
        json!({
            "model": model, "max_tokens": 9, "stream": stream, "input": "hi",
            "messages": [{ "role": "user", "content": "hi" }],
        })
    };
    vec![
        request("a text", RESPONSES, response(json!(text))),
        request("parts of texts", RESPONSES, response(json!([{ "role": "user", "content": parts("input_text") }]))),
        request("short calls", RESPONSES, response(json!(vec![call; 50_000]))),
        request("short turns", RESPONSES, response(json!(turns))),
        request("a text", MESSAGES, message(json!(text))),
        request("blocks of texts", MESSAGES, message(json!(parts("text")))),
        request("a picture", MESSAGES, message(json!([{ "type": "image", "source": picture }]))),
        request("arguments of a tool", MESSAGES, said(json!([used]))),
        request("short uses of tools", MESSAGES, said(json!(vec![uses; 50_000]))),
        request("short turns", MESSAGES, json!({ "model": "chat", "max_tokens": 9, "messages": turns })),
        request(
            "ten pictures of a prompt",
            "/v1/images/generations",
            json!({ "model": "picture", "prompt": text, "n": 10 }),
        ),
        request("a long answer", "/v1/chat/completions", asked("long", false)),
        request("a long answer", RESPONSES, asked("long", false)),
        request("a long answer", MESSAGES, asked("long", false)),
        request("a long answer in events", "/v1/chat/completions", asked("long", true)),
        request("a long answer in events", RESPONSES, asked("long", true)),
        request("a long answer in events", MESSAGES, asked("long", true)),
        request("a large call of a tool", "/v1/chat/completions", asked("tool", false)),
        request("a large call of a tool", RESPONSES, asked("tool", false)),
        request("a large call of a tool", MESSAGES, asked("tool", false)),
        request("a large call of a tool in events", RESPONSES, asked("tool", true)),
        request("a large call of a tool in events", MESSAGES, asked("tool", true)),
    ]
}

#[test]
fn every_request_and_answer_stays_within_its_charge() {
    let _turn = heap::turn();
    let tested = Tested::start();
    let mut wrong = Vec::new();
    for (name, path, body) in requests() {
        // One-time allocations belong to no request.
        tested.measure(path, &body);
        let (heap, charged) = tested.measure(path, &body);
        // The output of the route belongs to user code.
        let output = if body.len() < MIB { MIB } else { 0 };
        let allowed = (charged as f64 * HEAP_FACTOR) as usize + HEAP_CONSTANT + output;
        println!("{path}, {name}: {:.2} of the allowed heap", heap as f64 / allowed as f64);
        if heap > allowed {
            wrong.push(format!("{path}, {name}: {heap} bytes of heap, {charged} charged, {allowed} allowed"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
