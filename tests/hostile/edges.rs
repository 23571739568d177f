//! Requests to the admin listener, and the output of the commands for an untrusted server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::attack::{exclusive, is_enabled};
use crate::http1::status_of;
use crate::node::{BINARIES, Node, Served};

/// The status of the answer to a request in exactly these bytes.
fn status_of_request(node: std::net::SocketAddr, request: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(node).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // A reset counts as a refusal.
    let _ = stream.read_to_end(&mut answer);
    status_of(&String::from_utf8_lossy(&answer))
}

/// Without this check, a page whose host name resolves to this machine would be served (DNS rebinding).
#[test]
fn both_listeners_require_exactly_one_own_host() {
    if !is_enabled() {
        return;
    }
    let _alone = exclusive();
    let node = Node::start(Served::Files, &[]);
    let hosts = [
        ("none", ""),
        ("two", "host: localhost\r\nhost: localhost\r\n"),
        ("double brackets", "host: [[::1]]\r\n"),
        ("another", "host: evil.example\r\n"),
        ("an empty one", "host:\r\n"),
        ("two in one", "host: localhost, evil.example\r\n"),
    ];
    let mut accepted = Vec::new();
    for (listener, address, path) in [("admin", node.admin, "/v1/status"), ("http", node.http, "/metrics")] {
        let status = |hosts: &str| {
            status_of_request(address, &format!("GET {path} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n"))
        };
        assert_eq!(status("host: localhost\r\n"), Some(200), "{listener}");
        accepted.extend(
            hosts.iter().filter(|(_, hosts)| status(hosts) == Some(200)).map(|(name, _)| format!("{listener}: {name}")),
        );
    }
    assert!(accepted.is_empty(), "served with these hosts: {accepted:?}");
}

/// A page of another origin can do nothing with the node's pages.
#[test]
fn pages_forbid_framing_and_sniffing() {
    if !is_enabled() {
        return;
    }
    let _alone = exclusive();
    let node = Node::start(Served::Files, &[]);
    let mut missing = Vec::new();
    for path in ["/", "/docs/"] {
        let mut stream = TcpStream::connect(node.http).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/html\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let head = answer.split("\r\n\r\n").next().unwrap_or_default();
        let required = ["x-content-type-options: nosniff", "content-security-policy:", "frame-ancestors 'none'"];
        missing.extend(
            required.into_iter().filter(|header| !head.contains(header)).map(|header| format!("{path}: {header}")),
        );
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A server that gives this answer to every request.
fn impostor(status: &str, media_type: &str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
    url
}

fn run(args: &[&str]) -> Output {
    Command::new(&BINARIES.callboard).args(args).output().unwrap()
}

/// The characters that control a terminal: all controls but the line end.
fn controls(bytes: &[u8]) -> Vec<char> {
    String::from_utf8_lossy(bytes).chars().filter(|letter| letter.is_control() && *letter != '\n').collect()
}

/// Clears the screen, sets the title, and does the same with single 8-bit control characters.
const CONTROL_TEXT: &str = r"x\u001b[2J\u001b]0;title\u0007\u009b2J\r";

#[test]
fn the_status_of_a_hostile_server_cannot_control_the_terminal() {
    if !is_enabled() {
        return;
    }
    let _alone = exclusive();
    let status = r#"{"version": "T", "uptime_seconds": 1, "health": {"ready": true, "remote_stages": [{"name": "T", "ready": false, "reason": "T"}]},
        "node": {"in_flight": 0, "admitted": 0, "refused": 0, "routes": [{"name": "/T", "revision": 1, "pipeline": "T"}],
        "stages": [{"name": "T", "state": "T", "replicas": [], "queued": 0, "queue_limit": 1, "batches": 0, "restarts": 0, "reason": "T"}],
        "peers": [{"address": "T", "node": "T", "connected_for": null, "stages": ["T"]}]}}"#;
    let url = impostor("200 OK", "application/json", status.replace('T', CONTROL_TEXT));
    let output = run(&["status", &url]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((controls(&output.stdout), controls(&output.stderr)), (vec![], vec![]), "{output:?}");
}

#[test]
fn the_errors_of_a_hostile_server_cannot_control_the_terminal() {
    if !is_enabled() {
        return;
    }
    let _alone = exclusive();
    let problem = r#"{"type": "urn:callboard:error:failed", "title": "T", "status": 500, "detail": "T", "kind": "failed", "message": "T",
        "stage": "T", "error_type": "T", "remote_trace": "T", "fields": [{"path": "T", "message": "T"}], "retryable": false}"#;
    for media_type in ["application/problem+json", "text/plain"] {
        let url = impostor("500 Internal Server Error", media_type, problem.replace('T', CONTROL_TEXT));
        for args in [vec!["call", &url, "/x", "--json", "1"], vec!["status", &url]] {
            let output = run(&args);
            assert!(controls(&output.stderr).is_empty(), "{args:?}, {media_type}: {output:?}");
        }
    }
}
