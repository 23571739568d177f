//! The programs that `callboard examples` prints, run unchanged against the server that they were printed for.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;
use crate::support::{Server, callboard, directory};
use crate::tool::{CURL, EXAMPLES, PYTHON};

/// The served configuration, and the number of replies to its examples.
const SERVED: [(&str, usize); 3] = [("examples/digits", 1), ("examples/graph", 4), ("examples/digits/digits.onnx", 1)];

/// The API key of the servers with keys.
const KEY: &str = "a-key-of-the-tests-0123456789";

/// Writes the program for a running server into a file.
fn program(served: &str, language: &str, server: &Server, keys: &[&str]) -> PathBuf {
    let args = ["examples", served, "--lang", language, "--http", &server.address];
    let output = callboard(args.iter().chain(keys)).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let file = directory().join("program");
    std::fs::write(&file, output.stdout).unwrap();
    file
}

/// Runs the programs of a language against servers with and without keys; returns all their output.
fn run_all(language: &str, interpreter: &[&str]) -> Vec<(String, (&'static str, usize))> {
    let file = directory().join("keys");
    std::fs::write(&file, format!("tests {KEY}\n")).unwrap();
    let keys = ["--api-keys", file.to_str().unwrap()];
    let run = |served: &str, keys: &[&str]| {
        let server = Server::start(callboard(["serve", served, "--http", "127.0.0.1:0"].iter().chain(keys)));
        let mut command = Command::new(interpreter[0]);
        command.args(&interpreter[1..]).arg(program(served, language, &server, keys));
        command.env("API_KEY", KEY).current_dir(env!("CARGO_MANIFEST_DIR"));
        process::run(&mut command).unwrap_or_else(|error| panic!("{served} {keys:?}: {error}"))
    };
    let cases = SERVED.into_iter().flat_map(|served| [(served, &keys[..]), (served, &[])]);
    cases.map(|(served, keys)| (run(served.0, keys), served)).collect()
}

#[test]
fn the_lines_for_curl_run() {
    if !CURL.is_required_as("curl") {
        return;
    }
    // Treats the status of an error as a failure, which curl does not do by default.
    let shell = r#"curl() { command curl --silent --show-error --fail "$@" && echo; }; . "$0""#;
    for (printed, (served, replies)) in run_all("curl", &["sh", "-e", "-c", shell]) {
        assert_eq!(printed.lines().count(), replies, "{served}: {printed}");
        assert!(served.ends_with("onnx") || printed.contains("\"7\""), "{served}: {printed}");
    }
}

#[test]
fn the_programs_for_python_run() {
    if !PYTHON.is_required_as("python3") {
        return;
    }
    for (printed, (served, replies)) in run_all("python", &["python3", "-B"]) {
        assert_eq!(printed.lines().count(), replies, "{served}: {printed}");
        assert!(served.ends_with("onnx") || printed.contains("'7'"), "{served}: {printed}");
    }
}

/// `cargo test` has compiled them with all examples; a test of the command line compares them with the printed
/// programs.
#[test]
fn the_programs_for_rust_run() {
    let examples = Path::new(env!("CARGO_BIN_EXE_callboard")).parent().unwrap().join("examples");
    for (served, replies) in &SERVED[..2] {
        let program = examples.join(served.replace("examples/", "") + "_client");
        let is_built = || program.is_file().then_some(()).ok_or_else(|| format!("no {}", program.display()));
        if EXAMPLES.if_required(is_built).is_none() {
            return;
        }
        let server = Server::start(callboard(["serve", served, "--http", "127.0.0.1:0"]));
        let mut command = Command::new(program);
        command.arg(format!("http://{}", server.address)).current_dir(env!("CARGO_MANIFEST_DIR"));
        let printed = process::run(&mut command).unwrap_or_else(|error| panic!("{served}: {error}"));
        assert_eq!(printed.lines().count(), *replies, "{served}: {printed}");
        assert!(printed.contains("\"7\""), "{served}: {printed}");
    }
}
