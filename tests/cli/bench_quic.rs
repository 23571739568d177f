//! `callboard bench quic://…`: the same report as over HTTP, compared with the counters of the node.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::quic::serve;
use crate::support::{Server, callboard, directory, failure};

const SEVEN: [&str; 2] = ["-F", "image=@examples/digits/seven.png"];

/// A measurement of the digits with these extra arguments.
fn bench(state: &Path, url: &str, args: &[&str]) -> Command {
    let mut command = callboard(["bench", url, "/digits", "--warm-up", "0s"].iter().chain(args));
    command.env("XDG_STATE_HOME", state);
    command
}

/// The node's count of calls of the digits with this outcome.
fn count_of(server: &Server, outcome: &str) -> f64 {
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    let lines = metrics.lines().filter(|line| line.starts_with("callboard_requests_total{"));
    let mut of_outcome = lines.filter(|line| line.contains(&format!("outcome=\"{outcome}\"")));
    of_outcome.next().map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_closed_loop_over_quic_counts_every_call_once() {
    let state = directory();
    let (server, url) = serve(&state);
    let args = ["-n", "60", "-c", "2", "--streams", "3", "-d", "60s", "--format", "json"];
    let output = bench(&state, &url, &[&args[..], &SEVEN].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    let target = &report["target"];
    assert_eq!(
        (&target["requests"], &target["ok"], &target["failed"]),
        (&json!(60), &json!(60), &json!(0)),
        "{report}"
    );
    // There are no statuses over QUIC.
    assert_eq!((&target["protocol"], &target["statuses"]), (&json!("QUIC"), &json!({})), "{report}");
    assert_eq!(target["latency_ms"]["count"], 60, "{report}");
    assert!(target["received_bytes"].as_u64().unwrap() > 60 * 20, "{report}");
    assert_eq!((&report["load"]["connections"], &report["load"]["streams"]), (&json!(2), &json!(3)), "{report}");
    // The node counted the same requests, plus the first single one, on three connections.
    assert_eq!(count_of(&server, "ok"), 61.0);
}

#[test]
fn an_open_loop_over_quic_sends_every_due_request() {
    let state = directory();
    let (_server, url) = serve(&state);
    let args = ["--rate", "50", "-d", "1s", "--format", "json", "--assert", "errors<=100%"];
    let output = bench(&state, &url, &[&args[..], &SEVEN].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    let (sent, unsent) = (&report["target"]["requests"], &report["target"]["unsent"]);
    assert_eq!(sent.as_u64().unwrap() + unsent.as_u64().unwrap(), 50, "{report}");
    assert_eq!((&report["load"]["connections"], &report["load"]["streams"]), (&json!(1), &json!(64)), "{report}");
}

#[test]
fn failures_over_quic_are_counted_by_kind() {
    let state = directory();
    let (_server, url) = serve(&state);
    let args = ["--json", "{}", "-n", "20", "-c", "2", "--format", "json"];
    let (line, code) = failure(bench(&state, &url, &args));
    assert_eq!(code, 1);
    assert!(line.contains("/digits answered invalid_input: ") && line.contains("--anyway"), "{line}");

    let output = bench(&state, &url, &[&args[..], &["--anyway"]].concat()).output().unwrap();
    let report = report(&output);
    assert_eq!(report["target"]["errors"], json!({ "invalid_input": 20 }), "{report}");
    assert_eq!((&report["target"]["statuses"], &report["target"]["error_rate"]), (&json!({}), &json!(1.0)), "{report}");
}

#[test]
fn quic_and_http_of_one_node_take_turns() {
    let state = directory();
    let (server, url) = serve(&state);
    let picture = state.join("ratio.svg");
    let versus = format!("http://{}", server.address);
    let args = ["--vs", &versus, "--rounds", "2", "-d", "60s", "-n", "40", "-c", "2", "--assert", "ratio>0", "--plot"];
    let args = [&args[..], &[picture.to_str().unwrap()], &SEVEN].concat();
    let output = bench(&state, &url, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("CALL {url}/digits by QUIC\nPOST {versus}/digits by HTTP/1.1\n")), "{text}");
    assert!(text.contains("first over second, median of 2 rounds"), "{text}");
    let picture = std::fs::read_to_string(&picture).unwrap();
    assert!(picture.contains(&url) && picture.contains(&versus), "{picture}");
}

#[test]
fn an_unreachable_node_is_one_line() {
    let state = directory();
    let unused = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("quic://{}", unused.local_addr().unwrap());
    let (line, code) = failure(bench(&state, &url, &["--json", "1", "--timeout", "300ms"]));
    assert_eq!(code, 1);
    assert!(line.contains("no node answered") || line.contains("no answer within"), "{line}");
    let (line, code) = failure(bench(&state, &url, &[]));
    assert_eq!(code, 2);
    assert!(line.contains("a call over QUIC has an input"), "{line}");
}
