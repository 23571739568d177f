//! Text of a hostile server at a terminal: control characters are shown as text.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};

#[cfg(unix)]
use crate::support::terminal;
use crate::support::{callboard, failure};

/// Sets the window title, clears the screen, sets a colour by a C1 control, returns to the start of the line, and turns
/// the direction of text.
const EVIL: &str = "\u{1b}]0;evil\u{7}\u{1b}[2J\u{9b}31m\u{7f}\rover\nfaked: line\u{202e}\u{2066}";

/// Answers every request with these bytes; returns its URL.
fn server(answer: impl Into<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = answer.into();
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|read| read > 0) {
                head.push(byte[0]);
            }
            _ = socket.write_all(&answer);
        }
    });
    url
}

fn answer(status: &str, content_type: &str, headers: &str, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{headers}connection: close\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A problem document in which every text of the server is hostile.
fn problem() -> Vec<u8> {
    let body = json!({
        "kind": EVIL, "message": EVIL, "stage": EVIL, "error_type": EVIL, "remote_trace": EVIL, "request_id": EVIL,
        "details": { "fields": [{ "path": EVIL, "message": EVIL }] },
    });
    answer("422 Wrong", "application/problem+json", "x-evil: \u{9b}31m\r\n", &body.to_string())
}

/// Checks that the text has no control characters except line ends.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let is_control =
        |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!text.contains(is_control), "{text:?}");
    text
}

fn plain_output(mut command: Command) -> (Output, String) {
    let output = command.output().unwrap();
    let text = plain(&output.stdout) + &plain(&output.stderr);
    (output, text)
}

fn status() -> Value {
    json!({
        "version": EVIL, "uptime_seconds": 1, "health": { "ready": true, "remote_stages": [{ "name": EVIL, "reason": EVIL }] },
        "node": {
            "in_flight": EVIL, "admitted": EVIL, "refused": EVIL,
            "routes": [{ "name": EVIL, "revision": EVIL, "pipeline": EVIL }],
            "stages": [{ "name": EVIL, "state": EVIL, "reason": EVIL, "queued": EVIL, "batches": EVIL, "restarts": EVIL }],
            "peers": [{ "address": EVIL, "node": EVIL, "stages": [EVIL] }],
        },
        "devices": [],
    })
}

#[test]
fn a_status_is_shown_as_text_with_each_value_on_one_line() {
    let url = server(answer("200 OK", "application/json", "", &status().to_string()));
    let (output, text) = plain_output(callboard(["status", &url]));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text.contains("\\u001b]0;evil\\u0007") && text.contains("\\u009b31m\\u007f\\u000dover\\u000afaked"),
        "{text}"
    );
    assert!(text.lines().all(|line| !line.starts_with("faked")), "{text}");

    // A program gets the same value.
    let output = callboard(["status", &url, "--json"]).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), status());
    let (message, code) = failure(callboard(["status", &server(problem())]));
    assert_eq!((plain(message.as_bytes()), code), (message, 1));
}

#[test]
fn a_problem_is_shown_as_text() {
    let url = server(problem());
    let (output, text) = plain_output(callboard(["call", &url, "/x", "--include"]));
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    for label in ["  stage: ", "  error type: ", "  remote trace: ", "  request id: ", "callboard: 422 "] {
        let line = text.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{label}: {text}"));
        assert!(line.contains("\\u001b]0;evil\\u0007\\u001b[2J\\u009b31m\\u007f"), "{line}");
    }
    assert!(text.lines().all(|line| !line.starts_with("faked")), "{text}");

    let page = server(answer("500 Wrong", "text/html", "location: \u{9b}31m\r\n", EVIL));
    let (output, text) = plain_output(callboard(["call", &page, "/x"]));
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(text.contains("\\u001b]0;evil"), "{text}");
}

#[test]
fn a_benchmark_counts_kinds_of_errors_as_text() {
    let url = server(problem());
    let args = ["bench", &url, "/x", "--warm-up", "0s", "-n", "3", "-c", "1", "--anyway"];
    let (output, text) = plain_output(callboard(args));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("  errors: \\u001b]0;evil\\u0007"), "{text}");
    let (output, text) = plain_output(callboard(&args[..args.len() - 1]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("answered 422 ") && text.contains("\\u001b]0;evil"), "{text}");
}

#[test]
fn a_reply_is_piped_unchanged_to_a_program() {
    let url = server(answer("200 OK", "text/plain", "", &format!("{EVIL}\n")));
    let output = callboard(["call", &url, "/x"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), format!("{EVIL}\n").into_bytes()));
}

#[cfg(unix)]
#[test]
fn a_reply_is_shown_as_text_at_a_terminal() {
    let reply = format!("{{\"a\": \"{EVIL}\"}}\r\n\tend é €");
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    // Some chunks end inside a character.
    let pieces: Vec<u8> = reply.as_bytes().iter().flat_map(|byte| chunk(&[*byte])).collect();
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let url = server([head.as_bytes(), &pieces, b"0\r\n\r\n"].concat());
    let shown = output_at_terminal(callboard(["call", &url, "/x"]));
    // The line end of the reply has become three characters.
    let shown = plain(shown.replace("\r\r\n", "\n").replace("\r\n", "\n").replace('\t', "    ").as_bytes());
    let expected = "{\"a\": \"\\u001b]0;evil\\u0007\\u001b[2J\\u009b31m\\u007f\\u000dover\n\
                    faked: line\\u202e\\u2066\"}\n    end é €\n";
    assert_eq!(shown, expected);

    let url = server(answer("200 OK", "application/json", "", &status().to_string()));
    let shown = output_at_terminal(callboard(["status", &url, "--json"]));
    assert_eq!(serde_json::from_str::<Value>(&plain(shown.replace("\r\n", "\n").as_bytes())).unwrap(), status());
}

/// The output of a command whose stdout is a terminal. The terminal turns a line end into two characters, and changes
/// nothing else.
#[cfg(unix)]
fn output_at_terminal(mut command: Command) -> String {
    let (mut screen, terminal) = terminal();
    let mut child = command.stdout(terminal).stderr(Stdio::null()).spawn().unwrap();
    // Closes the command's end of the terminal, so that the reader ends (with an error).
    drop(command);
    let mut shown = Vec::new();
    _ = screen.read_to_end(&mut shown);
    assert!(child.wait().unwrap().success(), "{shown:?}");
    String::from_utf8(shown).unwrap()
}
