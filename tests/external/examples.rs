//! The programs that `callboard examples` prints, run unchanged against the server that they were printed for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;
use crate::python::Python;
use crate::python_apps::{command, package, python};
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
    fs::write(&file, output.stdout).unwrap();
    file
}

/// Runs the programs of a language against servers with and without keys; returns all their output.
fn run_all(language: &str, interpreter: &[&str]) -> Vec<(String, (&'static str, usize))> {
    let file = directory().join("keys");
    fs::write(&file, format!("tests {KEY}\n")).unwrap();
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

/// A route of each kind.
const APP: &str = "tests/external/scripts/examples_app.py";

/// The programs for clients of other people, with and without keys: the output of both, which is the same, and the
/// program without keys.
fn run_client(language: &str, client: &Python, start: impl Fn(&[&str]) -> Command, served: &str) -> (String, PathBuf) {
    let file = directory().join("keys");
    fs::write(&file, format!("tests {KEY}\n")).unwrap();
    let run = |keys: &[&str]| {
        let server = Server::start(start(&[&["serve", served, "--http", "127.0.0.1:0"], keys].concat()));
        let args = [&["examples", served, "--lang", language, "--http", &server.address], keys].concat();
        let output = start(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let program = directory().join("program.py");
        fs::write(&program, output.stdout).unwrap();
        let mut command = Command::new(client.program("python"));
        command.args(["-B", "-u"]).arg(&program).env("API_KEY", KEY).current_dir(env!("CARGO_MANIFEST_DIR"));
        let printed = process::run(&mut command);
        let shown = || fs::read_to_string(&program).unwrap();
        let printed = printed.unwrap_or_else(|error| panic!("{served} {keys:?}: {error}\n{}", shown()));
        (printed, program)
    };
    let (with_key, _) = run(&["--api-keys", file.to_str().unwrap()]);
    let (without, program) = run(&[]);
    assert_eq!(with_key, without, "{served}");
    (without, program)
}

#[test]
fn the_programs_for_the_library_of_openai_run() {
    let Some((python, openai)) = python().zip(Python::with("openai")) else { return };
    let (printed, program) = run_client("openai", &openai, |args| command(&python, args), APP);
    let mut lines: Vec<&str> = printed.lines().collect();
    let models = lines.remove(0);
    assert_eq!(models.matches('\'').count(), 2 * 9, "{models}");
    let expected = [
        "What? good",
        "16044 bytes",
        "28 letters of base64",
        "19 bytes",
        "2 numbers",
        "False",
        "Hello",
        "Once upon a time and so on",
        "heard 16044 bytes",
        "[{'index': 0, 'relevance_score': 2.0}, {'index': 1, 'relevance_score': 1.0}]",
    ];
    for line in &lines {
        assert!(expected.contains(line), "{line} in {printed}");
    }
    assert_eq!(lines.len(), 9, "{printed}");
    let text = fs::read_to_string(program).unwrap();
    for route in ["/shout", "/count", "/measure", "/double"] {
        assert!(text.contains(&format!("# {route} is no model of OpenAI's API: it needs a task, openai = ")), "{text}");
    }
    let (printed, _) = run_client("openai", &openai, |args| callboard(args), "examples/digits");
    assert_eq!(printed.trim(), "[]");
}

#[test]
fn the_programs_for_grpc_run() {
    let Some((python, grpc)) = python().zip(Python::with("grpc")) else { return };
    let (printed, program) = run_client("grpc", &grpc, |args| command(&python, args), APP);
    let text = fs::read_to_string(program).unwrap();
    for line in ["TEXT", "number 0", "2", "text and so on"] {
        assert!(printed.lines().any(|printed| printed == line), "{line} in {printed}");
    }
    assert!(text.contains("for item in stream(\"/count\", "), "{text}");
    let (printed, program) = run_client("grpc", &grpc, |args| callboard(args), "examples/digits/digits.onnx");
    let text = fs::read_to_string(program).unwrap();
    assert!(text.contains("infer(\"digits\", ") && printed.starts_with("{'logits': [["), "{text}{printed}");
    let (printed, _) = run_client("grpc", &grpc, |args| callboard(args), "examples/graph");
    assert_eq!(printed.lines().count(), 4, "{printed}");
    assert!(printed.contains("'7'"), "{printed}");
}

#[test]
fn the_programs_for_agents_run_and_a_host_starts_the_same_tools() {
    let Some((python, mcp)) = python().zip(Python::with("mcp")) else { return };
    let (printed, program) = run_client("mcp", &mcp, |args| command(&python, args), APP);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines, ["['count', 'measure', 'shout']", "TEXT", "number 0", "3"], "{printed}");
    let text = fs::read_to_string(&program).unwrap();
    assert!(text.contains("# /double is no tool: it needs mcp = true and a description"), "{text}");
    let environment = [("PYTHONPATH", package().join("src").into())];
    let output = mcp.run_with("mcp_host.py", &[program], &environment);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["['count', 'measure', 'shout']", "HI"]);
    // Each route of a file with `--mcp`, also those with a file as their example.
    let (printed, _) = run_client("mcp", &mcp, |args| callboard([args, &["--mcp"]].concat()), "examples/digits");
    assert!(printed.contains("\"7\""), "{printed}");
}
