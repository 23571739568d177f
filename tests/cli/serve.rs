//! A running server: its start-up lines are true.

use std::fs;
use std::io::Write as _;

use crate::support::{Answer, Server, callboard, run};

#[test]
fn the_start_up_lines_name_working_addresses() {
    let mut server = Server::digits(&[]);
    let page = server.wait_for(&format!("documentation http://{}", server.address));
    let command = server.wait_for("curl ");
    assert_eq!(command, format!("-F image=@examples/digits/seven.png http://{}/digits", server.address));

    assert_eq!(server.request("GET /readyz HTTP/1.1", b"").status, 200);
    let docs = server.request(&format!("GET {page}/ HTTP/1.1"), b"");
    assert_eq!(docs.status, 200, "{docs:?}");
    let seven = fs::read("examples/digits/seven.png").unwrap();
    let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: image/png", &seven);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains(r#""label":"7""#), "{answer:?}");
}

#[test]
fn serves_a_bare_model_under_its_own_name_with_an_example_that_works() {
    let mut server = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    server.wait_for("POST /digits");
    let command = server.wait_for("curl ");
    let json = command.split('\'').find(|word| word.starts_with('{')).unwrap_or_else(|| panic!("no JSON in {command}"));
    let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", json.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn an_invalid_body_of_a_configured_route_is_422_with_its_fields() {
    let check = |server: &Server, body: &str, status: u16, paths: &[&str]| {
        let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", body.as_bytes());
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(problem["kind"], "invalid_input", "{problem}");
        let fields = problem["details"]["fields"].as_array().cloned().unwrap_or_default();
        let found: Vec<&str> = fields.iter().filter_map(|field| field["path"].as_str()).collect();
        assert_eq!(found, paths, "{body}: {problem}");
    };
    let pictures = Server::digits(&[]);
    for body in ["{}", r#"{"imag": "x"}"#, r#"{"image": 5}"#] {
        check(&pictures, body, 422, &["$.image"]);
    }
    for body in ["[1, 2]", "null", "\"text\""] {
        check(&pictures, body, 422, &["$"]);
    }
    check(&pictures, r#"{"image": "no base64!"}"#, 400, &[]);
    check(&pictures, r#"{"image": "AAAA"}"#, 400, &[]);
    check(&pictures, "{", 400, &[]);

    let tensors = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    check(&tensors, "[[[1.0]]]", 422, &["$"]);
    check(&tensors, "\"x\"", 422, &["$"]);
    check(&tensors, r#"{"imge": []}"#, 422, &["$.imge", "$.image"]);
    check(&tensors, r#"{"image": [[1.0]]}"#, 422, &["$.image"]);
}

#[test]
fn limits_from_the_command_line_hold() {
    let server = Server::digits(&["--max-body-bytes", "100B"]);
    let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: image/png", &[0; 101]);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.body.contains("100"), "{answer:?}");
}

#[test]
fn a_server_side_failure_is_one_log_line_with_its_request_id() {
    let mut server = Server::digits(&[]);
    let mut stream = server.connect();
    // The body does not arrive, and the deadline passes.
    write!(
        stream,
        "POST /digits HTTP/1.1\r\nhost: test\r\ncontent-type: image/png\r\nx-request-timeout-ms: 50\r\n\
         x-request-id: find-me-1\r\ncontent-length: 100\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let answer = Answer::read(stream);
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.head.contains("server-timing: total;dur="), "{answer:?}");
    let line = server.wait_for("request_id=\"find-me-1\"");
    assert!(line.contains("route=\"/digits\"") && line.contains("kind=\"deadline_exceeded\""), "{line}");
}

#[test]
fn the_document_has_the_configured_title_and_version() {
    let document = |flags: &[&str]| {
        let output = run(&[&["openapi", "examples/digits"], flags].concat());
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (document["info"]["title"].clone(), document["info"]["version"].clone())
    };
    assert_eq!(document(&[]), ("digits".into(), env!("CARGO_PKG_VERSION").into()));
    let set = ["--api-title", "Reads digits", "--api-version", "2024-05"];
    assert_eq!(document(&set), ("Reads digits".into(), "2024-05".into()));
}

#[test]
fn explain_prints_the_plan_with_its_sources_and_serves_nothing() {
    let mut command = callboard(["serve", "examples/digits", "--explain", "--http", "127.0.0.1:9"]);
    let output = command.env("CALLBOARD_DRAIN", "5s").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |key: &str| text.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default().to_owned();
    assert!(row("http.listen").ends_with("--http"), "{text}");
    assert!(row("limits.drain").ends_with("CALLBOARD_DRAIN"), "{text}");
    assert!(row("limits.queue").ends_with("default"), "{text}");
    assert!(row("model ").contains("line "), "{text}");
}

#[test]
fn a_broken_pipe_is_no_error() {
    let mut child =
        callboard(["serve", "examples/digits", "--explain"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(run(&["check", "examples/digits", "--explain"]).status.code(), Some(0));
}

#[test]
fn the_metrics_match_the_operations_page() {
    let server = Server::digits(&[]);
    // The metric families of answers exist after the first answer.
    server.request("GET /livez HTTP/1.1", b"");
    server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", b"{");
    let metrics = server.request("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text", b"").body;
    let served: Vec<(&str, &str)> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let page = fs::read_to_string("docs/operations/running.md").unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| metric |")).skip(2);
    let rows = rows.map_while(|line| line.strip_prefix("| `callboard_"));
    let documented: Vec<(String, &str)> = rows
        .map(|row| {
            let mut cells = row.split('|').map(str::trim);
            let name = cells.next().unwrap_or_default().trim_end_matches('`');
            (format!("callboard_{name}"), cells.next().unwrap_or_default())
        })
        .collect();
    // This server has no QUIC port, directory of models, rollout, child, device or keyed actors; other tests check their
    // metrics.
    let elsewhere = ["net", "model", "rollout", "replica", "device", "keyed"].map(|part| format!("callboard_{part}_"));
    let own_families =
        documented.iter().filter(|(name, _)| !elsewhere.iter().any(|prefix| name.starts_with(prefix.as_str())));
    let documented: Vec<(&str, &str)> = own_families.map(|(name, kind)| (name.as_str(), *kind)).collect();
    assert_eq!(served, documented);
}

/// The parent process may have stopped reading long ago.
#[test]
fn a_server_without_a_reader_of_stderr_keeps_answering() {
    use std::io::Write as _;

    // Two log lines per request, more in total than a pipe holds.
    let server = Server::digits(&["--log", "debug"]);
    for _ in 0..40 {
        let mut stream = server.connect();
        let request = b"GET /v2/models/digits HTTP/1.1\r\nhost: test\r\n\r\n";
        for _ in 0..100 {
            stream.write_all(request).unwrap();
            read_answer(&mut stream);
        }
    }
}

/// The end of one answer that has a length.
fn read_answer(stream: &mut std::net::TcpStream) {
    use std::io::Read as _;

    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&received).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
        if body.len() >= length.trim().parse().unwrap() {
            return;
        }
    }
}
