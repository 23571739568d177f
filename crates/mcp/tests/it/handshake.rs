//! Clients before 2026-07-28: a handshake without a session.

use serde_json::json;

use crate::edge::{Served, handshake, post, with};
use crate::stateless::app;

#[tokio::test]
async fn a_client_shakes_hands_and_calls() {
    let served = Served::start(app()).await;
    for (asked, agreed) in [("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25")] {
        let hello =
            json!({ "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let answer = served.send(handshake("initialize", &hello)).await;
        assert!(!answer.headers.contains_key("mcp-session-id"));
        let expected = json!({
            "protocolVersion": agreed, "capabilities": { "tools": {}, "prompts": {}, "resources": {} },
            "serverInfo": { "name": "callboard", "version": env!("CARGO_PKG_VERSION") },
        });
        assert_eq!(answer.result(), expected);
    }
    let ready = post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let accepted = served.send(with(ready, &[("mcp-protocol-version", "2025-06-18")])).await;
    assert_eq!((accepted.status, accepted.text.as_str()), (202, ""));
    assert_eq!(served.send(handshake("ping", &json!({}))).await.result(), json!({}));
    let list = served.send(handshake("tools/list", &json!({}))).await.result();
    assert_eq!(list.as_object().unwrap().keys().collect::<Vec<_>>(), ["tools"]);
    // An output that is no object had no schema then.
    assert_eq!(list["tools"][0]["outputSchema"], json!(null));
    let result = served.call_old("text_shout", &json!({ "input": "hi" })).await.result();
    assert_eq!(result, json!({ "content": [{ "type": "text", "text": "HI" }], "isError": false }));
    assert_eq!(served.send(handshake("prompts/list", &json!({}))).await.result(), json!({ "prompts": [] }));
}
