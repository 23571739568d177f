//! `callboard openapi`: the document without a running server.

use std::fs;
use std::path::Path;

use crate::support::{Server, callboard, directory, run};

#[test]
fn openapi_writes_the_document_of_a_running_server() {
    let printed = run(&["openapi", "examples/digits"]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(printed["openapi"], "3.1.0");
    assert!(printed["paths"]["/digits"]["post"].is_object(), "{printed}");

    let served = Server::digits(&[]).request("GET /openapi.json HTTP/1.1", b"");
    let served: serde_json::Value = serde_json::from_str(&served.body).unwrap();
    assert_eq!(served, printed);
}

#[test]
fn the_default_title_is_the_name_of_the_directory() {
    for (directory, args) in [("", &["examples/digits"][..]), ("examples/digits", &[]), ("examples/digits", &["."])] {
        let mut command = callboard(["openapi"].iter().chain(args));
        let output = command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["info"]["title"], "digits", "{args:?} in {directory:?}");
    }
}

#[test]
fn openapi_writes_to_a_file_and_not_to_stdout() {
    let file = directory().join("openapi.json");
    let mut command = callboard(["openapi", "examples/digits", "-o"]);
    let output = command.arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.is_empty());
    let document: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn a_file_that_cannot_be_written_is_one_line_and_code_1() {
    let output = run(&["openapi", "examples/digits", "-o", "no/such/place/openapi.json"]);
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("callboard: could not write to no/such/place/openapi.json: "), "{line}");
}

/// The page's example is the route's own picture, and calling it succeeds.
#[test]
fn the_example_of_a_file_route_is_its_own_file_and_works() {
    let server = Server::digits(&[]);
    let document = server.request("GET /openapi.json?forms HTTP/1.1", b"");
    let document: serde_json::Value = serde_json::from_str(&document.body).unwrap();
    let content = &document["paths"]["/digits"]["post"]["requestBody"]["content"];
    assert!(content["multipart/form-data"].is_object(), "a page shows a file button for it: {content}");
    let example = content["application/json"]["example"].to_string();
    let answer = server.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", example.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains(r#""label":"7""#), "{answer:?}");
}
