//! Requests since 2026-07-28: each says its version itself.

use callboard_core::{App, Contract, RouteSpec, Stage};
use callboard_http::{ApiKeys, HttpConfig};
use callboard_mcp::McpConfig;
use serde_json::{Value, json};

use crate::edge::{Served, VERSION, handshake, post, stateless, with};

pub(crate) fn app() -> App {
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase())).contract(Contract::Pure);
    let hidden = Stage::each("hidden", |text: &String| Ok(text.clone()));
    let sum = Stage::each("sum", |numbers: &Vec<f64>| Ok(numbers.iter().sum::<f64>()));
    App::new()
        .mount(RouteSpec::new("/text/shout", shout).summary("Says it in capitals").tool())
        .route("/hidden", hidden)
        .mount(RouteSpec::new("/sum", sum).summary("Adds numbers").tool())
}

#[tokio::test]
async fn a_client_discovers_the_server() {
    let mcp = McpConfig { instructions: "Be kind.".to_owned(), ..McpConfig::default() };
    let served = Served::with(app(), HttpConfig::default(), mcp).await;
    let expected = json!({
        "supportedVersions": [VERSION], "capabilities": { "tools": {}, "prompts": {}, "resources": {} },
        "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "callboard", "version": env!("CARGO_PKG_VERSION") } },
        "instructions": "Be kind.", "resultType": "complete", "ttlMs": 60_000, "cacheScope": "public",
    });
    assert_eq!(served.send(stateless("server/discover", &json!({}))).await.result(), expected);
}

#[tokio::test]
async fn tools_are_the_routes_that_say_so() {
    let served = Served::start(app()).await;
    let list = served.send(stateless("tools/list", &json!({}))).await.result();
    let shout = json!({
        "name": "text_shout", "description": "Says it in capitals",
        "inputSchema": {
            "type": "object", "properties": { "input": { "type": "string" } }, "required": ["input"],
        },
        "outputSchema": { "type": "string" }, "annotations": { "idempotentHint": true },
    });
    let names: Vec<&Value> = list["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["sum", "text_shout"]);
    assert_eq!(without_titles(list["tools"][1].clone()), shout);
    assert_eq!((&list["ttlMs"], &list["cacheScope"]), (&json!(60_000), &json!("public")));
    for (method, items) in [
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let list = served.send(stateless(method, &json!({}))).await.result();
        assert_eq!((&list[items], &list["resultType"]), (&json!([]), &json!("complete")));
    }
}

/// Schemas of Rust types have some that say nothing.
fn without_titles(mut tool: Value) -> Value {
    for schema in ["inputSchema", "outputSchema"] {
        for words in ["title", "$schema"] {
            tool[schema].as_object_mut().unwrap().remove(words);
            if let Some(input) = tool[schema].pointer_mut("/properties/input").and_then(Value::as_object_mut) {
                input.remove(words);
            }
        }
    }
    tool
}

#[tokio::test]
async fn a_list_is_for_its_key_alone_if_there_are_keys() {
    let keys = ApiKeys::parse("one 0123456789abcdef0123").unwrap();
    let config = HttpConfig { api_keys: Some(keys), ..HttpConfig::default() };
    let served = Served::with(app(), config, McpConfig::default()).await;
    let refused = served.send(stateless("tools/list", &json!({}))).await;
    refused.refused(401, -32000);
    assert!(refused.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer "));
    let request = with(stateless("tools/list", &json!({})), &[("authorization", "Bearer 0123456789abcdef0123")]);
    assert_eq!(served.send(request).await.result()["cacheScope"], "private");
}

#[tokio::test]
async fn the_era_decides_the_status_of_an_error() {
    let served = Served::start(app()).await;
    let unknown = json!({ "name": "text_shaut", "arguments": {} });
    let refused = served.send(stateless("tools/call", &unknown)).await.refused(400, -32602);
    assert_eq!(refused, "there is no tool `text_shaut`; did you mean `text_shout`?");
    served.send(handshake("tools/call", &unknown)).await.refused(200, -32602);
    served.call("hidden", &json!({})).await.refused(400, -32602);
    for method in ["initialize", "ping", "logging/setLevel"] {
        served.send(stateless(method, &json!({}))).await.refused(404, -32601);
    }
    for method in ["prompts/get", "resources/read"] {
        served.send(stateless(method, &json!({}))).await.refused(400, -32602);
    }
    served.send(handshake("server/other", &json!({}))).await.refused(200, -32601);
}

#[tokio::test]
async fn a_request_says_its_version_twice() {
    let served = Served::start(app()).await;
    let meta =
        json!({ "io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {} });
    let message = json!({ "jsonrpc": "2.0", "id": "x", "method": "tools/list", "params": { "_meta": meta } });
    let answer = served.send(post(&message)).await;
    answer.refused(400, -32020);
    assert_eq!(answer.json()["id"], "x");
    let lines = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/list")];
    assert_eq!(served.send(with(post(&message), &lines)).await.status, 200);
    let other = [("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/list")];
    served.send(with(post(&message), &other)).await.refused(400, -32020);
    let bare = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    served.send(with(post(&bare), &lines)).await.refused(400, -32602);
    let mut late = message;
    late["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    let lines = [("mcp-protocol-version", "2099-01-01"), ("mcp-method", "tools/list")];
    let answer = served.send(with(post(&late), &lines)).await;
    answer.refused(400, -32022);
    assert_eq!(answer.json()["error"]["data"], json!({ "supported": [VERSION], "requested": "2099-01-01" }));
}
