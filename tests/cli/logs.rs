//! The log lines of a server: short and coloured at a terminal, JSON if configured.

use serde_json::Value;

use crate::support::{Server, callboard};

#[test]
fn every_line_is_a_json_object_in_the_json_format() {
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none"];
    let args = args.iter().chain(&["--log-format", "json", "--log", "warn,callboard_http=debug"]);
    let mut server = Server::start(callboard(args));
    // The same JSON text continues after the address.
    server.address.truncate(server.address.find('\\').unwrap());
    let head = "POST /digits HTTP/1.1\r\nx-request-id: mine-1\r\ncontent-type: application/json";
    assert_eq!(server.request(head, b"{}").status, 422);
    server.wait_for("callboard_http::access");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let lines: Vec<Value> = server.stderr_lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        let is_text = |key: &str| line[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(["timestamp", "level", "target", "message"].into_iter().all(is_text), "{line}");
    }
    let message = |line: &Value| line["message"].as_str().unwrap().to_owned();
    let first = lines.iter().find(|line| message(line).starts_with("callboard ")).unwrap();
    assert!(message(first).lines().count() > 3, "{first}");
    assert_eq!(message(lines.last().unwrap()), "stopped");
    let access = lines.iter().find(|line| line["target"] == "callboard_http::access").unwrap();
    assert_eq!((&access["status"], &access["request_id"]), (&422.into(), &"mine-1".into()), "{access}");
    // A log line, with its fields next to the message.
    let event = lines.iter().find(|line| line["target"] != "callboard_http::access" && line["status"] == 422);
    let event = event.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!((&event["level"], &event["request_id"]), (&"DEBUG".into(), &"mine-1".into()), "{event}");
}

#[test]
fn a_failure_is_a_json_object_in_the_json_format() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let args = ["serve", "examples/digits", "--http", &address, "--log-format", "json"];
    let output = callboard(args).output().unwrap();
    let line: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(line["level"], "ERROR", "{line}");
    assert!(line["message"].as_str().unwrap().starts_with("callboard: could not listen on "), "{line}");
}

/// The lines of an answered and a refused request at a terminal.
#[cfg(unix)]
fn access_lines(no_color: Option<&str>) -> [String; 2] {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none"]);
    command.env_remove("NO_COLOR").envs(no_color.map(|value| ("NO_COLOR", value)));
    let mut server = Server::start_at_a_terminal(command);
    let mut get = |path: &str| {
        server.request(&format!("GET {path} HTTP/1.1\r\nx-request-id: mine-1"), b"");
        server.wait_for(path);
        server.stderr_lines.last().unwrap().clone()
    };
    [get("/livez"), get("/nowhere")]
}

#[cfg(unix)]
#[test]
fn a_request_is_a_short_coloured_line_at_a_terminal() {
    let [ok, refused] = access_lines(None);
    assert!(ok.contains("\x1b[32m200\x1b[0m GET ") && ok.ends_with("  /livez"), "{ok:?}");
    assert!(refused.contains("\x1b[33m404\x1b[0m GET ") && refused.contains("request_id=mine-1"), "{refused:?}");
    // An empty variable counts as unset.
    assert!(access_lines(Some(""))[0].contains("\x1b[32m200"));
}

#[cfg(unix)]
#[test]
fn a_terminal_without_colours_has_the_same_columns() {
    let [ok, refused] = access_lines(Some("1"));
    for line in [&ok, &refused] {
        assert!(!line.contains('\x1b') && line.chars().count() <= 100, "{line:?}");
    }
    assert_eq!(ok.find("/livez"), refused.find("/nowhere"), "{ok}\n{refused}");
    assert_eq!(&ok[12..17], "Z 200", "{ok}");
}
