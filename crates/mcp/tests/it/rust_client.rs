//! The protocol's own library in Rust as a client, over a socket: with the handshake, without it, and as it chooses.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::{App, RouteSpec, Stage, StreamStage};
use callboard_http::serve_edge;
use futures_util::stream;
use rmcp::model::{CallToolRequestParams, ProgressNotificationParam, ProtocolVersion};
use rmcp::service::NotificationContext;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt as _, RoleClient};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::edge::{Served, until};

/// Keeps the messages of progress.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl ClientHandler for Listener {
    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.0.lock().unwrap().extend(progress.message);
    }
}

fn app() -> App {
    let double = Stage::each("double", |number: &i64| Ok(number * 2));
    let words = StreamStage::each("words", |text: &String| {
        let words: Vec<String> = text.split_whitespace().map(|word| format!("{word} ")).collect();
        stream::iter(words.into_iter().map(Ok))
    });
    App::new()
        .mount(RouteSpec::new("/double", double).summary("Doubles").tool())
        .mount(RouteSpec::streaming("/words", words).summary("Streams").tool())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_in_rust_lists_and_calls_in_both_eras() {
    let served = Served::start(app()).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", socket.local_addr().unwrap());
    let serving = tokio::spawn(serve_edge(socket, served.edge().clone(), pending::<Duration>()));
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycles = [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions: preferred_versions.clone() },
        ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
    ];
    for lifecycle in lifecycles {
        let listener = Listener::default();
        let transport = StreamableHttpClientTransport::from_uri(&*url);
        let client = listener.clone().serve_with_lifecycle(transport, lifecycle.clone()).await.unwrap();
        let names: Vec<_> = client.list_all_tools().await.unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(names, ["double", "words"], "{lifecycle:?}");
        let call = async |name: &'static str, input: Value| {
            let arguments = json!({ "input": input }).as_object().unwrap().clone();
            client.call_tool(CallToolRequestParams::new(name).with_arguments(arguments)).await
        };
        let doubled = call("double", json!(21)).await.unwrap();
        assert_eq!(doubled.content[0].as_text().unwrap().text, "42", "{lifecycle:?}");
        let wrong = call("double", json!("many")).await.unwrap();
        assert_eq!(wrong.is_error, Some(true), "{lifecycle:?}");
        let said = call("words", json!("one two")).await.unwrap();
        assert_eq!(said.content[0].as_text().unwrap().text, "one two ", "{lifecycle:?}");
        // Each message of progress reaches its client in a task of its own.
        until(|| listener.0.lock().unwrap().len() == 2).await;
        let mut heard = listener.0.lock().unwrap().clone();
        heard.sort();
        assert_eq!(heard, ["one ", "two "], "{lifecycle:?}");
        assert!(call("nobody", json!(1)).await.is_err(), "{lifecycle:?}");
        client.cancel().await.unwrap();
    }
    serving.abort();
}
