//! Callers in trouble, and numbers that JSON does not have, through every door.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_core::App;
use callboard_http::{ApiKeys, HttpConfig};
use callboard_server::Server;

use crate::door::{recording, streaming, whole};
use crate::models::{self, Script};
use crate::send::Call;

/// Every door, whole and streamed, with its models. Those that answer at once count their runs.
fn doors() -> (Vec<(String, Call)>, App, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let app = models::streaming(models::whole(App::new(), 1.0, &runs), &Script::Empty);
    let whole = whole().into_iter().map(|(name, call)| (name.to_owned(), call));
    let streamed = streaming().into_iter().map(|door| (format!("{}, streamed", door.name), door.call));
    (whole.chain(streamed).collect(), app, runs)
}

#[tokio::test]
async fn the_limit_of_a_key_holds_through_every_door() {
    let (doors, app, runs) = doors();
    let key = |index: usize| format!("a-key-that-nobody-guesses-{index}");
    let keys: Vec<String> = (0..doors.len()).map(|index| format!("k{index} {} 1/h", key(index))).collect();
    let config = HttpConfig { api_keys: Some(ApiKeys::parse(&keys.join("\n")).unwrap()), ..HttpConfig::default() };
    let server = Server::start(app, "127.0.0.1:0", config).await.unwrap();
    for (index, (name, call)) in doors.into_iter().enumerate() {
        assert_eq!(call.send(server.address()).await.status(), 401, "{name}");
        let call = call.with("x-api-key", &key(index));
        let first = call.send(server.address()).await;
        assert_eq!(first.status(), 200, "{name}: {}", first.text());
        let ran = runs.load(Ordering::Relaxed);
        let limited = call.send(server.address()).await;
        assert_eq!(limited.status(), 429, "{name}: {}", limited.text());
        let wait = limited.header("retry-after").or_else(|| limited.header("grpc-retry-pushback-ms")).expect("a time");
        assert!(wait.parse::<u64>().unwrap() > 1_000, "{name}: {wait}");
        assert_eq!(runs.load(Ordering::Relaxed), ran, "{name}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), whole().len());
}

/// A browser asks nobody before it posts a form or a text.
#[tokio::test]
async fn a_page_of_another_site_runs_nothing_through_any_door() {
    let (mut doors, app, runs) = doors();
    doors.push(("a recording".to_owned(), recording(&[("model", "hear")])));
    let server = Server::start(app, "127.0.0.1:0", HttpConfig::default()).await.unwrap();
    for (name, call) in doors {
        let as_text = Call { media_type: "text/plain".to_owned(), ..call.clone() };
        let as_form = Call { media_type: "application/x-www-form-urlencoded".to_owned(), ..call.clone() };
        for call in [&call, &as_text, &as_form] {
            for origin in ["https://evil.example.org", "null"] {
                let refused = call.clone().with("origin", origin).send(server.address()).await;
                assert_eq!(refused.status(), 403, "{name} as {}: {}", call.media_type, refused.text());
            }
            // A name of its own that resolves to this machine.
            let rebound = Call { host: Some("evil.example.org".to_owned()), ..call.clone() };
            let refused = rebound.with("origin", "http://evil.example.org").send(server.address()).await;
            assert_eq!(refused.status(), 403, "{name} as {}: {}", call.media_type, refused.text());
        }
    }
    let counts = server.node().describe();
    assert_eq!((runs.load(Ordering::Relaxed), counts.admitted), (0, 0));
}

/// Doors with bytes for numbers tell them. Those that write vectors and scores as text say why they cannot.
#[tokio::test]
async fn a_number_that_json_does_not_have_is_a_failure() {
    for number in [f64::NAN, f64::INFINITY] {
        let app = models::whole(App::new(), number, &Arc::default());
        let server = Server::start(app, "127.0.0.1:0", HttpConfig::default()).await.unwrap();
        for (name, call) in whole() {
            let answer = call.send(server.address()).await;
            let expected = match name {
                "a route"
                | "a function"
                | "embeddings"
                | "embeddings in base64"
                | "moderations"
                | "rerank"
                | "predict"
                | "callboard.v1 Call" => 500,
                "Cohere's rerank" => 424,
                "infer" => 400,
                "a tool" => {
                    assert_eq!(answer.json()["result"]["isError"], true, "{}", answer.text());
                    200
                }
                "ModelInfer" => {
                    assert!(answer.body.ends_with(&number.to_le_bytes()), "{answer:?}");
                    200
                }
                // Their answers have no number.
                "chat" | "responses" | "messages" | "images" => 200,
                door => panic!("{door}"),
            };
            assert_eq!(answer.status(), expected, "{name}: {}", answer.text());
        }
    }
}

/// Doors whose requests the document cannot describe are named in it, and on the page for people.
#[tokio::test]
async fn the_document_and_the_page_name_grpc_and_the_tools() {
    let app = models::whole(App::new(), 1.0, &Arc::default());
    let server = Server::start(app, "127.0.0.1:0", HttpConfig::default()).await.unwrap();
    let document = Call::get("/openapi.json").send(server.address()).await.json();
    let tags: Vec<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    assert_eq!(tags, ["routes", "models", "openai", "anthropic", "cohere", "grpc", "mcp", "node"]);
    assert!(document["info"].get("description").is_none());
    let shown = Call::get("/openapi.json?forms").send(server.address()).await.json();
    let shown = shown["info"]["description"].as_str().unwrap();
    assert!(shown.contains("`callboard.v1.Inference`") && shown.contains("`POST /mcp`"), "{shown}");
    let empty = Server::start(App::new(), "127.0.0.1:0", HttpConfig::default()).await.unwrap();
    let tags = &Call::get("/openapi.json").send(empty.address()).await.json()["tags"];
    assert!(!tags.as_array().unwrap().iter().any(|tag| tag["name"] == "mcp"), "it has no tool: {tags}");
}
