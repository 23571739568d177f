//! `callboard check`: tests a configuration without a port.

use std::fs;
use std::path::Path;

use crate::support::{callboard, directory_with, run};

#[test]
fn check_runs_the_examples_and_shows_their_answers() {
    let output = run(&["check", "examples/digits"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("/digits example 1: ok in "), "{text}");
    assert!(text.contains(r#""label":"7""#), "{text}");
    assert!(text.ends_with("examples/digits/callboard.toml: all is well\n"), "{text}");
    assert!(output.stderr.is_empty(), "no error");
}

#[test]
fn a_failed_example_is_reported_with_its_reason_and_code_1() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits");
    let toml = fs::read_to_string(digits.join("callboard.toml")).unwrap();
    let directory = directory_with(&toml.replace("\"digits.onnx\"", &format!("{:?}", digits.join("digits.onnx"))));
    fs::write(directory.join("seven.png"), "not a picture").unwrap();
    let output = callboard(["check".as_ref(), directory.as_os_str()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("/digits example 1: invalid_input: "), "{text}");
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.ends_with("callboard.toml: 1 example failed\n"), "{line}");
}

#[test]
fn a_model_is_checked_with_zeros_of_its_shape() {
    let output = run(&["check", "examples/digits/digits.onnx"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("/digits example 1: ok in "), "{output:?}");
}
