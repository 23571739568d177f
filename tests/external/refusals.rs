//! Clients that send a large body and are refused before it has come: each gets its answer, whatever it does first.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::run;
use crate::support::{Server, callboard, directory};
use crate::tool::{CURL, NODE, PYTHON, Tool};

/// Some hundred bodies of five megabytes, on a machine that does ten other things.
const LIMIT: Duration = Duration::from_secs(300);

const BODY_BYTES: usize = 5_000_000;

/// The requests of each client to each address.
const REQUESTS: u32 = 200;

/// Servers that refuse, and where each refusal is: `415 http://127.0.0.1:12345/digits`.
struct Refusing {
    _servers: [Server; 2],
    cases: Vec<(u16, String)>,
}

impl Refusing {
    fn start() -> Self {
        let keys = directory().join("keys");
        fs::write(&keys, "ours 0123456789abcdef\n").unwrap();
        let small = Server::digits(&["--max-body-bytes", "1MiB"]);
        let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--api-keys"]);
        command.arg(&keys);
        let locked = Server::start(command);
        let at = |server: &Server, path: &str| format!("http://{}{path}", server.address);
        let cases = vec![
            (404, at(&small, "/nowhere")),
            (401, at(&locked, "/digits")),
            // The clients send `image/png`, which one of the routes takes.
            (413, at(&small, "/digits")),
            (415, at(&small, "/v1/call/digits")),
        ];
        Self { _servers: [small, locked], cases }
    }

    /// Runs a client, which prints the status of each answer on a line, for each of the refusals.
    fn each(&self, tool: Tool, version: &mut Command, client: impl Fn(&str, &Path) -> Command) {
        if tool.or_skip(run(version, LIMIT)).is_none() {
            return;
        }
        let body = directory().join("body");
        fs::write(&body, vec![7; BODY_BYTES]).unwrap();
        for (status, url) in &self.cases {
            let said = run(&mut client(url, &body), LIMIT).unwrap_or_else(|error| panic!("{status}: {error}"));
            let line = status.to_string();
            let got = said.lines().filter(|said| **said == line).count();
            assert_eq!(got, REQUESTS as usize, "{status} at {url}:\n{said}");
        }
    }
}

fn command<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

#[test]
fn pythons_own_client_loses_no_refusal_of_a_large_body() {
    Refusing::start().each(PYTHON, &mut command("python3", ["--version"]), |url, body| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/scripts/refusals.py");
        command("python3", ["-B", script, url, body.to_str().unwrap(), &REQUESTS.to_string()])
    });
}

#[test]
fn fetch_loses_no_refusal_of_a_large_body() {
    Refusing::start().each(NODE, &mut command("node", ["--version"]), |url, body| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/scripts/refusals.mjs");
        command("node", [script, url, body.to_str().unwrap(), &REQUESTS.to_string()])
    });
}

fn curl(version: &str) {
    // A process for each: over HTTP/2 curl 7 cannot use a connection again on which it has stopped to send. Without the header it
    // would ask before it sends, and send nothing.
    let script = "for n in $(seq $3); do curl $0 -sS -o /dev/null -w '%{http_code}\n' -H expect: -H 'content-type: image/png' \
                  --data-binary @$2 $1 2>&1; done; true";
    Refusing::start().each(CURL, &mut command("curl", ["--version"]), |url, body| {
        command("sh", ["-c", script, version, url, body.to_str().unwrap(), &REQUESTS.to_string()])
    });
}

#[test]
fn curl_loses_no_refusal_of_a_large_body_over_http1() {
    curl("--http1.1");
}

#[test]
fn curl_loses_no_refusal_of_a_large_body_over_http2() {
    curl("--http2-prior-knowledge");
}
