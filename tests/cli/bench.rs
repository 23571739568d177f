//! `callboard bench` against a real server: the counts match, and the exit code gives the result.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, TEST_TIMEOUT, callboard, directory, failure};

/// A measurement of `/livez` with these extra arguments.
fn bench(server: &Server, args: &[&str]) -> Command {
    let url = format!("http://{}", server.address);
    callboard(["bench", &url, "/livez", "--warm-up", "0s"].iter().chain(args))
}

/// The count of 200 answers on the server before this request.
fn answers(server: &Server) -> f64 {
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    let sample = "callboard_http_responses_total{door=\"http\",status=\"200\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(sample));
    count.map_or(0.0, |count| count.parse().unwrap())
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_closed_loop_counts_every_request_once() {
    let server = Server::digits(&[]);
    let args = ["-n", "200", "-c", "4", "-d", "60s", "--format", "json"];
    let output = bench(&server, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    let target = &report["target"];
    assert_eq!(target["requests"], 200, "{report}");
    assert_eq!(target["statuses"], json!({ "200": 200 }), "{report}");
    assert_eq!(target["latency_ms"]["count"], 200, "{report}");
    assert_eq!((&target["failed"], &target["unsent"], &report["interrupted"]), (&json!(0), &json!(0), &json!(false)));
    // The server counted the same requests, plus the first single one.
    assert_eq!(answers(&server), 201.0);
}

#[test]
fn an_open_loop_sends_every_due_request() {
    let server = Server::digits(&[]);
    let args = ["--rate", "100", "-c", "8", "-d", "1s", "--format", "json"];
    let output = bench(&server, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = report(&output);
    let (sent, unsent) = (&report["target"]["requests"], &report["target"]["unsent"]);
    assert_eq!(sent.as_u64().unwrap() + unsent.as_u64().unwrap(), 100, "{report}");
    assert_eq!(report["load"]["rate"], 100.0, "{report}");
}

/// The picture goes through a model on at most two cores, far below a million requests in a second.
#[test]
fn unsent_requests_of_an_overloaded_target_count_with_their_wait() {
    let server = Server::digits(&[]);
    let url = format!("http://{}", server.address);
    let args =
        ["--rate", "1000000", "-c", "1", "-d", "1s", "--warm-up", "0s", "--format", "json", "--assert", "p50<100ms"];
    let picture = ["-F", "image=@examples/digits/seven.png"];
    let output = callboard(["bench", &url, "/digits"].iter().chain(&args).chain(&picture)).output().unwrap();
    let report = report(&output);
    let target = &report["target"];
    assert!(target["unsent"].as_u64().unwrap() > 500_000, "{report}");
    // Half of the slots were due in the first half second, so their latency is at least the rest of it.
    assert!(target["latency_ms"]["p50"].as_f64().unwrap() >= 400.0, "{report}");
    assert!(target["error_rate"].as_f64().unwrap() > 0.5, "{report}");
    assert_eq!(report["assertions"][0]["holds"], false, "{report}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A server with one connection at a time that answers its second request after `stall` and all others at once. The
/// first request is the probe.
fn stalling(stall: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (_sender, receiver) = mpsc::channel::<()>();
        let mut answered = 0;
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap_or(0) > 0 {
                if std::mem::take(&mut line).trim().is_empty() {
                    answered += 1;
                    if answered == 2 {
                        let _ = receiver.recv_timeout(stall);
                    }
                    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                }
            }
        }
    });
    address
}

/// Without the correction, only one of a hundred requests would be slow.
#[test]
fn a_stall_delays_every_request_that_was_due_during_it() {
    let url = stalling(Duration::from_millis(800)).to_string();
    let args = ["--rate", "100", "-c", "1", "-d", "1s", "--warm-up", "0s", "--format", "json"];
    let output = callboard(["bench", &url, "/"].iter().chain(&args)).output().unwrap();
    let report = report(&output);
    let p50 = |distribution: &str| report["target"][distribution]["p50"].as_f64().unwrap();
    // The fiftieth of a hundred slots was due at most 500 ms after the first, and waits for it.
    assert!(p50("latency_ms") >= 290.0, "{report}");
    assert!(p50("service_ms") < p50("latency_ms"), "{report}");
    assert!(report["target"]["service_ms"]["max"].as_f64().unwrap() >= 790.0, "{report}");
}

#[test]
fn assertions_decide_the_exit_code() {
    let server = Server::digits(&[]);
    let (line, code) = failure(bench(&server, &["--assert", "p99<1h"]));
    assert_eq!(code, 2, "hours are not a unit of latency: {line}");
    let output =
        bench(&server, &["-n", "50", "-c", "2", "--assert", "errors<1%", "--assert", "ok>=50"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("holds: errors<1% (measured 0.000%)"), "{text}");
    let output = bench(&server, &["-n", "50", "-c", "2", "--assert", "ok>50"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("FAILS: ok>50 (measured 50)"), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "callboard: 1 assertion fails\n");
}

#[test]
fn failures_are_counted_by_status_and_kind() {
    let server = Server::digits(&[]);
    let url = format!("http://{}", server.address);
    let args = ["--json", "{}", "-n", "20", "-c", "2", "--warm-up", "0s", "--format", "json"];
    let refused = callboard(["bench", &url, "/digits"].iter().chain(&args));
    let (line, code) = failure(refused);
    assert_eq!(code, 1);
    assert!(line.contains("/digits answered 422") && line.contains("--anyway"), "{line}");

    let output = callboard(["bench", &url, "/digits", "--anyway"].iter().chain(&args)).output().unwrap();
    let report = report(&output);
    assert_eq!(report["target"]["statuses"], json!({ "422": 20 }), "{report}");
    assert_eq!(report["target"]["errors"], json!({ "invalid_input": 20 }), "{report}");
    assert_eq!((&report["target"]["error_rate"], &report["target"]["requests_per_second"]), (&json!(1.0), &json!(0.0)));
}

#[test]
fn two_targets_take_turns_and_the_report_has_their_ratio() {
    let (first, second) = (Server::digits(&[]), Server::digits(&[]));
    let picture = directory().join("ratio.html");
    let versus = format!("http://{}", second.address);
    for protocol in [&["-c", "4"][..], &["-c", "2", "--http2", "--streams", "2"]] {
        let args = ["--vs", &versus, "--rounds", "2", "-d", "400ms", "--assert", "ratio>0", "--plot"];
        let output = bench(&first, &[&args[..], &[picture.to_str().unwrap()], protocol].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("first over second, median of 2 rounds"), "{text}");
        let page = fs::read_to_string(&picture).unwrap();
        assert!(page.contains("<svg") && page.contains(&first.address) && page.contains(&second.address), "{page}");
    }
}

#[test]
fn a_failed_plot_does_not_lose_the_report() {
    let server = Server::digits(&[]);
    let picture = directory().join("no such place").join("picture.svg");
    let args = ["-n", "5", "-c", "1", "--format", "json", "--plot", picture.to_str().unwrap()];
    let output = bench(&server, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(report(&output)["target"]["ok"], 5);
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not write to"), "{output:?}");
}

#[test]
fn an_interrupt_ends_with_the_partial_report() {
    let server = Server::digits(&[]);
    let mut child = bench(&server, &["-c", "2", "-d", "1h", "--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The load is running once the server has answered some requests.
    let start = std::time::Instant::now();
    while answers(&server) < 50.0 {
        assert!(start.elapsed() < TEST_TIMEOUT, "the load does not start");
    }
    let script = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "the exit code of shells for an interrupt");
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["interrupted"], true);
    assert!(report["target"]["ok"].as_u64().unwrap() > 0, "{report}");
    assert!(report["target"]["seconds"].as_f64().unwrap() < 3600.0, "{report}");
}

#[test]
fn a_refused_connection_is_one_line() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (line, code) = failure(callboard(["bench", &closed.to_string(), "/livez"]));
    assert_eq!(code, 1);
    assert!(line.contains(&format!("could not connect to {closed}")), "{line}");
}
