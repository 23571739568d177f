//! A node with tools, and messages to it.

use std::sync::Arc;

use callboard_core::{App, Node};
use callboard_http::axum::body::{Body, to_bytes};
use callboard_http::axum::http::{HeaderMap, Request, Response};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use callboard_mcp::{McpConfig, McpProtocol};
use serde_json::{Value, json};
use tower::Service as _;

pub(crate) const VERSION: &str = "2026-07-28";

pub(crate) struct Served {
    edge: HttpEdge,
    pub(crate) node: Node,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of each event.
    pub(crate) fn events(&self) -> Vec<Value> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The result of a request, which was answered with 200.
    #[track_caller]
    pub(crate) fn result(&self) -> Value {
        let mut body = self.json();
        assert!(self.status == 200 && body["result"].is_object(), "{}: {}", self.status, self.text);
        assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &json!(1)));
        body["result"].take()
    }

    /// The message of an error with this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: i32) -> String {
        let body = self.json();
        assert_eq!((self.status, &body["error"]["code"]), (status, &json!(code)), "{}", self.text);
        body["error"]["message"].as_str().unwrap().to_owned()
    }

    /// The text of a result that says that the call failed.
    #[track_caller]
    pub(crate) fn failed(&self) -> String {
        let result = self.result();
        assert_eq!(result["isError"], json!(true), "{}", self.text);
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// A message of the new era with the headers that belong to it.
pub(crate) fn stateless(method: &str, params: &Value) -> Request<Body> {
    let mut params = params.clone();
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(VERSION);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let request = post(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    let mut request = with(request, &[("mcp-protocol-version", VERSION), ("mcp-method", method)]);
    if let Some(name) = params["name"].as_str() {
        request = with(request, &[("mcp-name", name)]);
    }
    request
}

/// A message of the handshake's era.
pub(crate) fn handshake(method: &str, params: &Value) -> Request<Body> {
    post(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
}

pub(crate) fn post(message: &Value) -> Request<Body> {
    post_text(message.to_string())
}

pub(crate) fn post_text(body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/mcp").header("host", "localhost").header("content-type", "application/json");
    request.header("accept", "application/json, text/event-stream").body(body.into()).unwrap()
}

/// The same request with more headers.
pub(crate) fn with(mut request: Request<Body>, lines: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in lines {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

impl Served {
    pub(crate) async fn start(app: App) -> Self {
        Self::with(app, HttpConfig::default(), McpConfig::default()).await
    }

    pub(crate) async fn with(app: App, config: HttpConfig, mcp: McpConfig) -> Self {
        let node = app.start().await.unwrap();
        let edge = HttpEdge::try_new(node.client(), config, ApiInfo::default(), vec![Arc::new(McpProtocol::new(mcp))]);
        Self { edge: edge.unwrap(), node }
    }

    pub(crate) fn edge(&self) -> &HttpEdge {
        &self.edge
    }

    /// Why the node cannot be served.
    pub(crate) async fn refused(app: App, mcp: McpConfig) -> String {
        let node = app.start().await.unwrap();
        let protocols = vec![Arc::new(McpProtocol::new(mcp)) as _];
        let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), protocols);
        edge.unwrap_err().to_string()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.open(request).await.into_parts();
        let text = String::from_utf8(to_bytes(body, 1 << 24).await.unwrap().to_vec()).unwrap();
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// The response before its body is read.
    pub(crate) async fn open(&self, request: Request<Body>) -> Response<Body> {
        self.edge.clone().call(request).await.unwrap()
    }

    /// Calls a tool in the new era.
    pub(crate) async fn call(&self, name: &str, arguments: &Value) -> Answer {
        self.send(stateless("tools/call", &json!({ "name": name, "arguments": arguments }))).await
    }

    /// Calls a tool in the handshake's era.
    pub(crate) async fn call_old(&self, name: &str, arguments: &Value) -> Answer {
        self.send(handshake("tools/call", &json!({ "name": name, "arguments": arguments }))).await
    }

    /// Waits until no call is in flight.
    pub(crate) async fn emptied(&self) {
        let client = self.node.client();
        until(|| client.in_flight() == 0).await;
    }
}

/// Waits for a condition.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await.unwrap();
}
