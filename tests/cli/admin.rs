//! The admin listener of a running server, and the `status` command.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::support::{Server, callboard, failure, run};

fn with_admin(args: &[&str]) -> (Server, String) {
    let admin = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut server = Server::start(callboard(admin.iter().chain(args)));
    let url = server.wait_for("admin on ");
    (server, url)
}

#[test]
fn status_shows_stages_replicas_queues_and_calls() {
    let (server, url) = with_admin(&[]);
    server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", b"{}");
    let output = run(&["status", &url]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains(", ready, up "), "{text}");
    let row = |first: &str| {
        let line = text.lines().find(|line| line.starts_with(first)).unwrap_or_else(|| panic!("no {first} in {text}"));
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let route = row("/digits");
    let (revision, calls, failed) = (&route[0], &route[1], &route[3]);
    assert_eq!([revision, calls, failed], ["1", "1", "1"], "{text}");
    assert_eq!(route[route.len() - 5..], ["decode", "→", "digits", "→", "labels"]);
    assert_eq!(row("digits")[..4], ["ready", "1", "0", "0/1024"]);

    let json = run(&["status", &url, "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(status["health"]["ready"], true);
    assert!(status["devices"].is_array(), "{status}");
}

#[test]
fn a_status_that_is_watched_has_the_calls_since_the_last_look() {
    let (server, url) = with_admin(&[]);
    let mut watching = callboard(["status", "--watch=100ms", &url]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut calls = || {
        let line = lines.find(|line| line.starts_with("/digits ")).expect("it goes on");
        line.split_whitespace().nth(2).unwrap().to_owned()
    };
    let first = calls();
    server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", b"{}");
    let seen: Vec<_> = std::iter::from_fn(|| Some(calls())).take_while(|calls| calls != "1").collect();
    let after = calls();
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert!(first == "0" && after == "0" && seen.iter().all(|calls| calls == "0"), "{first} {seen:?} {after}");
}

#[test]
fn a_stage_is_scaled_while_it_serves() {
    let (_server, url) = with_admin(&[]);
    let scale = ["call", &url, "/v1/stages/digits/replicas", "--json", r#"{"replicas": 3}"#];
    let output = run(&scale);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(run(&["status", &url]).stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("digits ")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("3"), "{text}");
}

#[test]
fn a_drain_request_ends_the_process_in_order() {
    let (mut server, url) = with_admin(&[]);
    assert!(run(&["call", &url, "/v1/drain", "--method", "POST"]).status.success());
    server.wait_for("asked to drain: finishing the running calls");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn the_admin_listener_is_optional_and_needs_keys_and_tls_beyond_loopback() {
    let mut server = Server::digits(&["--admin", "off"]);
    server.wait_for("curl ");
    assert!(!server.stderr_lines.iter().any(|line| line.contains("admin on")), "{:#?}", server.stderr_lines);
    let (message, code) = failure(callboard(["serve", "examples/digits", "--admin", "0.0.0.0:0"]));
    assert_eq!(code, 2);
    assert!(message.contains("beyond loopback anybody could end the service"), "{message}");
    let keys = ["serve", "examples/digits", "--admin", "0.0.0.0:0", "--admin-api-keys", "env:NO_SUCH_KEYS"];
    let (message, code) = failure(callboard(keys));
    assert_eq!(code, 2);
    assert!(message.contains("beyond loopback anybody could read the keys"), "{message}");
}

#[test]
fn status_of_another_listener_is_an_error_that_names_the_admin_listener() {
    let server = Server::digits(&["--admin", "off"]);
    let url = format!("http://{}", server.address);
    let (message, code) = failure(callboard(["status", &url]));
    assert_eq!(code, 1);
    assert!(message.contains("answered 404") && message.contains("admin listener"), "{message}");
}
