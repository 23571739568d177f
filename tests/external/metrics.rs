//! The pages of metrics, checked by Prometheus' own `promtool`: syntax, names, help texts and units; and read by the
//! parser of its own client.

use std::process::Command;

use crate::process;
use crate::python::Python;
use crate::support::{Server, directory};
use crate::tool::PROMTOOL;

#[test]
fn promtool_finds_no_error_in_the_metrics_of_a_used_server() {
    if !PROMTOOL.is_required_as("promtool") {
        return;
    }
    // With QUIC too, so that all families exist.
    let server = Server::digits(&["--quic", "127.0.0.1:0"]);
    let picture = std::fs::read("examples/digits/seven.png").unwrap();
    for (path, status) in [("/digits", 200), ("/digits?explain=1", 200), ("/nowhere", 404)] {
        let head = format!("POST {path} HTTP/1.1\r\ncontent-type: image/png");
        assert_eq!(server.request(&head, &picture).status, status);
    }
    let page = server.request("GET /metrics HTTP/1.1", b"");
    assert!(page.body.contains("callboard_requests_total{route=\"/digits\",outcome=\"ok\"} 2"), "{}", page.body);
    let file = directory().join("metrics");
    std::fs::write(&file, page.body).unwrap();

    let mut promtool = Command::new("sh");
    promtool.args(["-c", "exec promtool check metrics <\"$0\""]).arg(&file);
    let output = process::run(&mut promtool).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output, "");
}

#[test]
fn the_parser_of_prometheus_client_reads_both_pages() {
    let Some(python) = Python::with("prometheus") else { return };
    let server = Server::digits(&[]);
    let picture = std::fs::read("examples/digits/seven.png").unwrap();
    assert_eq!(server.request("POST /digits HTTP/1.1\r\ncontent-type: image/png", &picture).status, 200);
    let output = python.run("prometheus_pages.py", &[&server.address]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["/metrics", "/metrics/load"]);
}
