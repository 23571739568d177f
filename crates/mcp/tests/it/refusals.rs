//! What is refused before a tool is called, and what cannot be served.

use callboard_core::{App, RouteSpec, Stage};
use callboard_http::axum::http::Method;
use callboard_http::{ApiKeys, Cors, Hosts, HttpConfig};
use callboard_mcp::{Authorization, McpConfig};
use serde_json::json;

use crate::edge::{Served, handshake, post, post_text, stateless, with};
use crate::stateless::app;

#[tokio::test]
async fn only_messages_are_answered() {
    let served = Served::start(app()).await;
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        ("7", -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
    ] {
        served.send(post_text(body)).await.refused(400, code);
    }
    let many: String = (0..1_000_000).map(|key| format!(r#","k{key}":0"#)).collect();
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping"{many}}}"#);
    assert_eq!(served.send(post_text(body)).await.result(), json!({}));
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let mut request = handshake("ping", &json!({}));
        *request.method_mut() = method;
        let answer = served.send(request).await;
        answer.refused(405, -32000);
        assert_eq!(answer.headers["allow"], "POST");
    }
    let mut text = handshake("ping", &json!({}));
    text.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    served.send(text).await.refused(415, -32600);
    let mut below = handshake("ping", &json!({}));
    *below.uri_mut() = "/mcp/more".parse().unwrap();
    assert_eq!(served.send(below).await.status, 404);
    assert_eq!(served.node.client().edge().charged_bytes(), 0);
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let config = HttpConfig { cors: Some(Cors::parse(["https://host.example"]).unwrap()), ..HttpConfig::default() };
    let served = Served::with(app(), config, McpConfig::default()).await;
    for (origin, status) in
        [("https://evil.example", 403), ("null", 403), ("https://host.example", 200), ("http://localhost", 200)]
    {
        let answer = served.send(with(handshake("ping", &json!({})), &[("origin", origin)])).await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.text);
    }
}

/// A page may point a name of its own at the node; then its origin and the host agree.
#[tokio::test]
async fn a_page_at_a_name_that_the_node_does_not_know_is_refused() {
    let hosts = Hosts::parse(["tools.example.org"]).unwrap();
    let served = Served::with(app(), HttpConfig { hosts, ..HttpConfig::default() }, McpConfig::default()).await;
    for (host, status) in [("tools.example.org", 200), ("127.0.0.1:8000", 200), ("evil.example", 403)] {
        let mut request = with(handshake("ping", &json!({})), &[("origin", &format!("http://{host}"))]);
        request.headers_mut().insert("host", host.parse().unwrap());
        assert_eq!(served.send(request).await.status, status, "{host}");
    }
}

#[tokio::test]
async fn a_client_without_a_token_learns_where_to_get_one() {
    let keys = ApiKeys::parse("one 0123456789abcdef0123").unwrap();
    let config = HttpConfig { api_keys: Some(keys), ..HttpConfig::default() };
    let authorization = Authorization::try_new("https://tools.example.org/mcp", ["https://auth.example.org"]).unwrap();
    let mcp = McpConfig { authorization: Some(authorization), ..McpConfig::default() };
    let served = Served::with(app(), config, mcp).await;
    let refused = served.send(stateless("tools/list", &json!({}))).await;
    refused.refused(401, -32000);
    let url = "https://tools.example.org/.well-known/oauth-protected-resource/mcp";
    assert_eq!(refused.headers["www-authenticate"], format!("Bearer resource_metadata=\"{url}\"").as_str());
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let mut request = post_text("");
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.parse().unwrap();
        let expected = json!({
            "resource": "https://tools.example.org/mcp", "authorization_servers": ["https://auth.example.org"],
            "bearer_methods_supported": ["header"],
        });
        assert_eq!(served.send(request).await.json(), expected);
    }
}

#[tokio::test]
async fn a_notification_has_no_answer() {
    let served = Served::start(app()).await;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let new = with(post(&cancelled), &[("mcp-protocol-version", "2026-07-28")]);
    for request in [post(&cancelled), new] {
        let answer = served.send(request).await;
        assert_eq!((answer.status, answer.text.as_str()), (202, ""));
    }
    let unknown = with(post(&cancelled), &[("mcp-protocol-version", "2099-01-01")]);
    served.send(unknown).await.refused(400, -32022);
}

#[tokio::test]
async fn a_route_that_cannot_be_a_tool_is_an_error_at_the_start() {
    let text = |name: &str| Stage::each(name, |text: &String| Ok(text.clone()));
    let tool = |path: &str, stage: &str| RouteSpec::new(path, text(stage)).summary("A tool").tool();
    let default = McpConfig::default;
    let no_summary = App::new().mount(RouteSpec::new("/a", text("a")).tool());
    let clash = App::new().mount(tool("/a/b", "a")).mount(tool("/a_b", "b"));
    let all = McpConfig { all_routes: true, ..default() };
    for (app, mcp, words) in [
        (no_summary, default(), "the Model Context Protocol: route `/a` cannot be a tool without a description"),
        (App::new().route("/a", text("a")), all, "route `/a` cannot be a tool without a description"),
        (clash, default(), "routes `/a/b` and `/a_b` would both be the tool `a_b`"),
        (App::new().mount(tool("/a/{b}", "a")), default(), "a tool has no parameters in its path, and `POST`"),
        (App::new().mount(tool("/a", "a").methods(["GET"])), default(), "a tool has no parameters in its path"),
        (App::new().mount(tool(&format!("/{}", "a".repeat(65)), "a")), default(), "longer than 64 letters"),
    ] {
        let reason = Served::refused(app, mcp).await;
        assert!(reason.contains(words), "{reason}");
    }
}

#[tokio::test]
async fn all_routes_may_be_tools() {
    let text = |name: &str| Stage::each(name, |text: &String| Ok(text.clone()));
    let app = App::new()
        .mount(RouteSpec::new("/a", text("a")).summary("A"))
        .mount(RouteSpec::new("/items/{id}", text("b")))
        .mount(RouteSpec::new("/page", text("c")).methods(["GET"]));
    let mcp = McpConfig { all_routes: true, ..McpConfig::default() };
    let served = Served::with(app, HttpConfig::default(), mcp).await;
    let list = served.send(stateless("tools/list", &json!({}))).await.result();
    assert_eq!((list["tools"].as_array().unwrap().len(), &list["tools"][0]["name"]), (1, &json!("a")));
}
