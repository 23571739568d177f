//! Access control of the edge, configured from the command line and from files.

use std::fs;

use crate::support::{Answer, Server, callboard, directory, failure};

const KEY: &str = "a-key-that-nobody-guesses";

fn seven(server: &Server, headers: &str) -> Answer {
    let picture = fs::read("examples/digits/seven.png").unwrap();
    server.request(&format!("POST /digits HTTP/1.1\r\ncontent-type: image/png{headers}"), &picture)
}

#[test]
fn keys_from_a_file_admit_requests_up_to_their_limits() {
    let file = directory().join("keys");
    fs::write(&file, format!("# ours\nweb {KEY} 2/h\n")).unwrap();
    let mut server = Server::digits(&["--api-keys", file.to_str().unwrap(), "--rate-limit", "100/s"]);
    let line = server.wait_for("curl ");
    assert!(line.ends_with(" -H \"x-api-key: $API_KEY\""), "the printed line has the key header: {line}");
    assert_eq!(seven(&server, "").status, 401);
    let with_key = format!("\r\nauthorization: Bearer {KEY}");
    assert_eq!([0; 3].map(|_| seven(&server, &with_key).status), [200, 200, 429]);
}

#[test]
fn keys_from_the_environment_admit_requests() {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--api-keys", "env:MY_KEYS"]);
    command.env("MY_KEYS", format!("web {KEY}"));
    let server = Server::start(command);
    assert_eq!(seven(&server, &format!("\r\nx-api-key: {KEY}")).status, 200);
    assert_eq!(seven(&server, "\r\nx-api-key: an-unknown-key-of-a-client").status, 401);
}

#[test]
fn invalid_keys_stop_the_start_and_are_not_printed() {
    let file = directory().join("keys");
    fs::write(&file, "web too-short\n").unwrap();
    let command = callboard(["serve", "examples/digits", "--api-keys", file.to_str().unwrap()]);
    let (message, code) = failure(command);
    assert_eq!(code, 1);
    assert!(message.contains("line 1: a key has 16 to 256") && !message.contains("too-short"), "{message}");

    let (message, code) = failure(callboard(["serve", "examples/digits", "--api-keys", "env:NOT_SET_ANYWHERE"]));
    assert_eq!(code, 1);
    assert!(message.contains("NOT_SET_ANYWHERE"), "{message}");
    let (message, code) = failure(callboard(["serve", "examples/digits", "--rate-limit", "5/s"]));
    assert_eq!(code, 2);
    assert!(message.contains("http.api_keys is not set"), "{message}");
}

#[test]
fn pages_of_a_listed_origin_may_read_answers() {
    let server = Server::digits(&["--cors", "https://app.example.org, http://localhost:5173"]);
    let head = "\r\norigin: http://localhost:5173";
    let answer = seven(&server, head);
    assert!(answer.head.contains("access-control-allow-origin: http://localhost:5173"), "{answer:?}");
    assert!(!seven(&server, "\r\norigin: https://b.example.org").head.contains("access-control-allow-origin"));
}

#[test]
fn every_request_has_a_line_unless_the_access_log_is_off() {
    let mut server = Server::digits(&[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let head = format!("\r\nx-request-id: mine-1\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-00");
    assert_eq!(seven(&server, &head).status, 200);
    let line = server.wait_for("callboard_http::access: ");
    let id = format!("request_id=\"mine-1\" trace_id=\"{trace}\"");
    for part in ["method=\"POST\" path=\"/digits\" route=\"/digits\" status=200", &id] {
        assert!(line.contains(part), "{line}");
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let mut server = Server::digits(&["--access-log", "false"]);
    assert_eq!(seven(&server, "").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!server.stderr_lines.iter().any(|line| line.contains("request_id")), "{:#?}", server.stderr_lines);
}
