//! A host that talks to a node by lines.

use callboard_codec::Value as Input;
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage};
use callboard_http::axum::http::HeaderMap;
use callboard_mcp::{LocalNode, serve_stdio};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split,
};

use crate::edge::{Served, VERSION};

struct Host {
    served: Served,
    lines: BufReader<ReadHalf<DuplexStream>>,
    input: WriteHalf<DuplexStream>,
}

impl Host {
    async fn start() -> Self {
        let shout = Stage::each("shout", |text: &String| Ok::<_, Failure>(text.to_uppercase()));
        let endless = StreamStage::each("endless", |_: &Input| stream::iter((0u64..).map(Ok)));
        let app = App::new()
            .mount(RouteSpec::new("/shout", shout).summary("Shouts").tool())
            .mount(RouteSpec::streaming("/endless", endless).summary("Counts").tool());
        let served = Served::start(app).await;
        let (host, server) = duplex(1 << 20);
        let (input, output) = split(server);
        let (lines, writer) = split(host);
        let node = LocalNode::new(served.edge().clone(), HeaderMap::new());
        tokio::spawn(serve_stdio(input, output, node, 1 << 20));
        Self { served, lines: BufReader::new(lines), input: writer }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })).await;
        self.line().await
    }
}

fn new(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(VERSION);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

#[tokio::test]
async fn both_eras_are_served_by_lines() {
    let mut host = Host::start().await;
    let found = host.ask("server/discover", new(json!({}))).await;
    assert_eq!(found["result"]["supportedVersions"], json!([VERSION]));
    let call = json!({ "name": "shout", "arguments": { "input": "hi" } });
    let result = host.ask("tools/call", new(call.clone())).await;
    assert_eq!((&result["id"], &result["result"]["content"][0]["text"]), (&json!(1), &json!("HI")), "{result}");

    let agreed = host.ask("initialize", json!({ "protocolVersion": "2025-06-18" })).await;
    assert_eq!(agreed["result"]["protocolVersion"], "2025-06-18");
    host.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    assert_eq!(host.ask("tools/call", call).await["result"]["content"][0]["text"], "HI");
    assert_eq!(host.ask("nothing", json!({})).await["error"]["code"], -32601);
    assert_eq!(host.ask("nothing", new(json!({}))).await["error"]["code"], -32601);
}

#[tokio::test]
async fn progress_comes_before_a_cancel_ends_the_call_in_both_eras() {
    let mut host = Host::start().await;
    for is_new in [true, false] {
        let params = json!({ "name": "endless", "arguments": {}, "_meta": { "progressToken": 7 } });
        let progress = host.ask("tools/call", if is_new { new(params) } else { params }).await;
        assert_eq!(
            (&progress["method"], &progress["params"]["progress"]),
            (&json!("notifications/progress"), &json!(1.0))
        );
        assert_eq!(host.served.node.client().in_flight(), 1);
        let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
        host.send(&cancelled).await;
        // Progress that was written before.
        host.send(&json!({ "jsonrpc": "2.0", "id": "last", "method": "tools/list", "params": new(json!({})) })).await;
        while host.line().await["id"] != "last" {}
        host.served.emptied().await;
    }
}
