//! The Model Context Protocol: messages that are deep, wide or long, and arguments of them.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;

const MCP: &str = "/mcp";
const JSON: &str = "application/json";

fn call(tool: &str, arguments: &str) -> Request {
    let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
    Request::post(MCP, JSON, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#))
}

#[test]
fn messages_that_are_deep_or_have_a_million_members() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(1_000_000), "}".repeat(1_000_000));
    let wide: String = (0..1_000_000).map(|key| format!(r#""k{key}":0,"#)).collect();
    let requests = [
        Request::post(MCP, JSON, deep.clone()),
        Request::post(MCP, JSON, format!("{}{}", "[".repeat(4 * MIB), "]".repeat(4 * MIB))),
        Request::post(MCP, JSON, format!(r#"{{{wide}"jsonrpc":"2.0","id":1,"method":"ping"}}"#)),
        call("echo", &deep),
        call("length", &format!(r#"{{{wide}"input":"a"}}"#)),
        call("length", &format!(r#"{{"input":{deep}}}"#)),
    ];
    Attack::new("mcp: deep and wide messages")
        .on_types()
        .run(|target| target.run_clients(6, |index| target.repeat(&requests[index], 1)));
}

#[test]
fn long_ids_names_and_methods() {
    let long = "x".repeat(16 * MIB);
    let message = |id: &str, method: &str| format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}"}}"#);
    let requests = [
        Request::post(MCP, JSON, message(&long, "ping")),
        Request::post(MCP, JSON, message("1", &long)),
        call(&long, "{}"),
        call("length", &format!(r#"{{"input":"{long}"}}"#)),
    ];
    Attack::new("mcp: long ids, names and methods")
        .on_types()
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index], 1)));
}
