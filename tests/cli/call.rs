//! `callboard call`: the reply on stdout, the error on stderr, and its origin in the exit code.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::support::{Server, callboard, directory};

fn call(server: &Server, args: &[&str]) -> Output {
    let url = format!("http://{}", server.address);
    callboard(["call", &url].iter().chain(args)).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn call_sends_forms_files_json_and_stdin_and_prints_the_reply() {
    let server = Server::digits(&[]);
    let check = |output: Output| {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        assert!(output.stdout.ends_with(b"}\n"), "the reply is one line: {output:?}");
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["label"], "7", "{reply}");
    };
    check(call(&server, &["/digits", "-F", "image=@examples/digits/seven.png"]));
    check(call(&server, &["/digits", "--file", "examples/digits/seven.png"]));
    check(call(&server, &["/digits", "--http2", "--file", "examples/digits/seven.png"]));

    let heldout = fs::read_to_string("examples/digits/heldout.jsonl").unwrap();
    let seven =
        heldout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|row| row["prediction"] == 7);
    let json = serde_json::json!({ "image": seven.unwrap()["png"] }).to_string();
    check(call(&server, &["/digits", "--json", &json]));

    let url = format!("http://{}", server.address);
    let mut child = callboard(["call", &url, "/digits", "--file", "-", "--content-type", "application/json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
    check(child.wait_with_output().unwrap());
}

#[test]
fn a_function_is_called_by_its_name_with_arguments() {
    let server = Server::digits(&[]);
    let heldout = fs::read_to_string("examples/digits/heldout.jsonl").unwrap();
    let row: Value = serde_json::from_str(heldout.lines().next().unwrap()).unwrap();
    let named = format!("image={}", row["png"].as_str().unwrap());
    for name in ["digits", "/digits"] {
        let output = call(&server, &[name, "--arg", &named]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["label"], row["prediction"].to_string(), "{reply}");
    }
    let output = call(&server, &["digits", "--arg", "picture=7"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("picture"), "{output:?}");
}

#[test]
fn a_generated_tensor_fits_a_model_and_its_reply_goes_to_a_file() {
    let server = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    let file = directory().join("reply.json");
    let args = ["/digits", "--random-tensor", "f32:1x8x8", "--as", "msgpack", "-o", file.to_str().unwrap(), "-i"];
    let output = call(&server, &args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty());
    let head = stderr(&output);
    assert!(head.starts_with("200 OK\n") && head.contains("x-request-id: "), "{head}");
    assert!(serde_json::from_slice::<Value>(&fs::read(file).unwrap()).is_ok());
}

#[test]
fn a_problem_is_printed_with_its_fields_and_request_id() {
    let server = Server::digits(&[]);
    let output = call(&server, &["/digits", "--json", "{}", "-H", "x-request-id: my-own-1"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(text.contains("\n  request id: my-own-1\n") && text.contains("  $.image: "), "{text}");
    let last_line = text.lines().last().unwrap();
    assert!(last_line.starts_with("callboard: 422 Unprocessable Entity: invalid_input: "), "{text}");

    let output = call(&server, &["/nope"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("404 Not Found: not_found: there is no route"), "{output:?}");
    let output = call(&server, &["/docs"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("  location: "), "{output:?}");
}

#[test]
fn the_exit_code_tells_a_failure_of_the_caller_from_one_of_the_server() {
    let server = Server::digits(&[]);
    let expired = call(&server, &["/digits", "--file", "examples/digits/seven.png", "-H", "x-request-timeout-ms: 1"]);
    // One millisecond is sometimes enough for a reply.
    assert!(matches!(expired.status.code(), Some(0 | 5)), "{expired:?}");

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = callboard(["call", &closed, "/digits", "--json", "{}"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("could not connect to {closed}")), "{output:?}");

    for args in [
        &["/digits", "--json", "{"][..],
        &["digits", "--json", "{}"],
        &["/digits", "--file", "no/such/file"],
        &["/digits", "--file", "Cargo.toml", "--file", "Cargo.toml"],
        &["/digits", "-H", "no colon"],
        &["/digits", "-H", "a b: c"],
        &["/digits", "-F", "image"],
    ] {
        let output = call(&server, args);
        assert_eq!((output.status.code(), stderr(&output).lines().count()), (Some(2), 1), "{args:?}: {output:?}");
    }
}
