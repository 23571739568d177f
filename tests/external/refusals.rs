//! Clients that send a large body and are refused early: each gets its answer, in any order of writing and reading.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::process::run;
use crate::python::{Python, go_settings};
use crate::support::{Server, callboard, directory, directory_with};
use crate::tool::{CURL, NODE, PYTHON, Tool};

/// The limit of some hundred bodies of five megabytes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

const BODY_BYTES: usize = 5_000_000;

/// The requests of each client to each address.
const REQUESTS: usize = 200;

/// Servers that refuse, and the URL of each refusal: `415 http://127.0.0.1:12345/digits`.
struct RefusingServers {
    _servers: [Server; 3],
    cases: Vec<(u16, String)>,
}

impl RefusingServers {
    fn start() -> Self {
        let keys = directory().join("keys");
        fs::write(&keys, "ours 0123456789abcdef\n").unwrap();
        let small = Server::digits(&["--max-body-bytes", "1MiB"]);
        let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--api-keys"]);
        command.arg(&keys);
        let locked = Server::start(command);
        let full = full();
        let url = |server: &Server, path: &str| format!("http://{}{path}", server.address);
        let cases = vec![
            (404, url(&small, "/nowhere")),
            (401, url(&locked, "/digits")),
            // The clients send `image/png`, which only the route `/digits` accepts.
            (413, url(&small, "/digits")),
            (415, url(&small, "/v1/call/digits")),
            (429, url(&full, "/digits")),
        ];
        Self { _servers: [small, locked, full], cases }
    }

    /// Runs a client for each refusal; the client prints one status per line.
    fn each(&self, requests: usize, client: impl Fn(&[&str]) -> String) {
        let body = directory().join("body");
        fs::write(&body, vec![7; BODY_BYTES]).unwrap();
        for (status, url) in &self.cases {
            let output = client(&[url, body.to_str().unwrap(), &requests.to_string()]);
            let line = status.to_string();
            let count = output.lines().filter(|printed| **printed == line).count();
            assert_eq!(count, requests, "{status} at {url}:\n{output}");
        }
    }
}

/// A server whose route takes one call at a time, and is busy with a call whose body arrives slowly.
#[expect(clippy::disallowed_methods, reason = "a slow body is paced, and another process gives no event")]
fn full() -> Server {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits");
    let digits = fs::read_to_string(format!("{examples}/callboard.toml")).unwrap();
    let digits = digits
        .replace("digits.onnx", &format!("{examples}/digits.onnx"))
        .replace("seven.png", &format!("{examples}/seven.png"))
        .replace("path = \"/digits\"", "path = \"/digits\"\nmax_in_flight = 1");
    let mut command = callboard(["serve", "--http", "127.0.0.1:0", "--body-timeout", "1h"]);
    command.arg(directory_with(&digits));
    let server = Server::start(command);
    let mut busy = server.connect();
    let head = "POST /digits HTTP/1.1\r\nhost: test\r\ncontent-type: image/png\r\ncontent-length: 60000000\r\n\
                x-request-timeout-ms: 3600000\r\n\r\n";
    busy.write_all(head.as_bytes()).unwrap();
    // Ends with the server, which closes the connection.
    thread::spawn(move || {
        while busy.write_all(&[7; 4096]).is_ok() {
            thread::sleep(Duration::from_secs(1));
        }
    });
    // A call of the test could take the place before the busy call has it.
    while !server.request("GET /metrics HTTP/1.1", b"").body.contains("\ncallboard_in_flight 1\n") {
        thread::sleep(Duration::from_millis(10));
    }
    server
}

/// Whether this program is installed.
fn is_installed(tool: Tool, program: &str) -> bool {
    tool.or_skip(run(Command::new(program).arg("--version"), LIMIT)).is_some()
}

fn run_client(program: &str, first: &[&str], args: &[&str]) -> String {
    run(Command::new(program).args(first).args(args), LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_python_client_reads_every_refusal_of_a_large_body() {
    if is_installed(PYTHON, "python3") {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/scripts/refusals.py");
        RefusingServers::start().each(REQUESTS, |args| run_client("python3", &["-B", script], args));
    }
}

#[test]
fn httpx_reads_every_refusal_of_a_large_body_over_http2() {
    let Some(python) = Python::with("httpx") else { return };
    // Its HTTP/2 is written in Python, and slow.
    RefusingServers::start().each(REQUESTS / 4, |args| python.run("refusals_httpx.py", args));
}

#[test]
fn fetch_reads_every_refusal_of_a_large_body() {
    if is_installed(NODE, "node") {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/scripts/refusals.mjs");
        RefusingServers::start().each(REQUESTS, |args| run_client("node", &[script], args));
    }
}

/// Builds the client once, with Go's standard library only.
fn go(version: &str) {
    let Some(go) = Python::with("go") else { return };
    let directory = directory();
    let client = directory.join("refusals");
    let mut build = Command::new(go.program("go"));
    build.args(["build", "-o"]).arg(&client).arg("tests/external/scripts/refusals.go");
    build.current_dir(env!("CARGO_MANIFEST_DIR")).envs(go_settings(&go));
    run(&mut build, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    RefusingServers::start().each(REQUESTS, |args| run_client(client.to_str().unwrap(), &[version], args));
}

#[test]
fn the_go_client_reads_every_refusal_of_a_large_body_over_http1() {
    go("1");
}

#[test]
fn the_go_client_reads_every_refusal_of_a_large_body_over_http2() {
    go("2");
}

fn curl(version: &str) {
    // One process for each request: over HTTP/2, curl 7 cannot reuse a connection after it stopped sending. Without the
    // header curl would wait for `100 Continue` and send nothing.
    let script = "for n in $(seq $3); do curl $0 -sS -o /dev/null -w '%{http_code}\\n' -H expect: -H 'content-type: image/png' \
                  --data-binary @$2 $1 2>&1; done; true";
    if is_installed(CURL, "curl") {
        RefusingServers::start().each(REQUESTS, |args| run_client("sh", &["-c", script, version], args));
    }
}

#[test]
fn curl_reads_every_refusal_of_a_large_body_over_http1() {
    curl("--http1.1");
}

#[test]
fn curl_reads_every_refusal_of_a_large_body_over_http2() {
    curl("--http2-prior-knowledge");
}
