//! The log lines of a server: short and coloured at a terminal, JSON if configured.

use serde_json::Value;

use crate::support::{Server, callboard};

#[test]
fn every_line_is_a_json_object_where_that_is_the_format() {
    let words = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none"];
    let words = words.iter().chain(&["--log-format", "json", "--log", "warn,callboard_http=debug"]);
    let mut server = Server::start(callboard(words));
    // The text continues after the address, in the same object.
    server.address.truncate(server.address.find('\\').unwrap());
    let head = "POST /digits HTTP/1.1\r\nx-request-id: mine-1\r\ncontent-type: application/json";
    assert_eq!(server.request(head, b"{}").status, 422);
    server.wait_for("callboard_http::access");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));

    let lines: Vec<Value> = server.said.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        let is_text = |key: &str| line[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(["timestamp", "level", "target", "message"].into_iter().all(is_text), "{line}");
    }
    let message = |line: &Value| line["message"].as_str().unwrap().to_owned();
    assert!(message(&lines[0]).starts_with("callboard ") && message(&lines[0]).lines().count() > 3, "{}", lines[0]);
    assert_eq!(message(lines.last().unwrap()), "stopped");
    let access = lines.iter().find(|line| line["target"] == "callboard_http::access").unwrap();
    assert_eq!((&access["status"], &access["request_id"]), (&422.into(), &"mine-1".into()), "{access}");
    // A log line, with its fields next to the message.
    let answered = lines.iter().find(|line| line["target"] != "callboard_http::access" && line["status"] == 422);
    let answered = answered.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!((&answered["level"], &answered["request_id"]), (&"DEBUG".into(), &"mine-1".into()), "{answered}");
}

#[test]
fn a_failure_is_a_json_object_too() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let words = ["serve", "examples/digits", "--http", &address, "--log-format", "json"];
    let output = callboard(words).output().unwrap();
    let line: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(line["level"], "ERROR", "{line}");
    assert!(line["message"].as_str().unwrap().starts_with("callboard: could not listen on "), "{line}");
}

/// The lines of an answered and a refused request at a terminal.
#[cfg(unix)]
fn shown(no_color: Option<&str>) -> [String; 2] {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none"]);
    command.env_remove("NO_COLOR").envs(no_color.map(|value| ("NO_COLOR", value)));
    let mut server = Server::start_at_a_terminal(command);
    let mut ask = |path: &str| {
        server.request(&format!("GET {path} HTTP/1.1\r\nx-request-id: mine-1"), b"");
        server.wait_for(path);
        server.said.last().unwrap().clone()
    };
    [ask("/livez"), ask("/nowhere")]
}

#[cfg(unix)]
#[test]
fn a_request_is_a_short_coloured_line_at_a_terminal() {
    let [fine, refused] = shown(None);
    assert!(fine.contains("\x1b[32m200\x1b[0m GET ") && fine.ends_with("  /livez"), "{fine:?}");
    assert!(refused.contains("\x1b[33m404\x1b[0m GET ") && refused.contains("request_id=mine-1"), "{refused:?}");
    // An empty variable counts as unset.
    assert!(shown(Some(""))[0].contains("\x1b[32m200"));
}

#[cfg(unix)]
#[test]
fn a_terminal_without_colours_has_the_same_columns() {
    let [fine, refused] = shown(Some("1"));
    for line in [&fine, &refused] {
        assert!(!line.contains('\x1b') && line.chars().count() <= 100, "{line:?}");
    }
    assert_eq!(fine.find("/livez"), refused.find("/nowhere"), "{fine}\n{refused}");
    assert_eq!(&fine[12..17], "Z 200", "{fine}");
}
