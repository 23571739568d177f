//! Clients that are refused early: each gets its answer while it sends a large body, in any order of writing and
//! reading, and the next request on its connection is answered.

use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use crate::process::run;
use crate::python::{Python, go_settings};
use crate::support::{Server, callboard, certificate, digits_over_https, directory, directory_with};
use crate::tool::{CURL, JAVA, NGINX, NODE, PYTHON};

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

fn run_client(program: &str, first: &[&str], args: &[&str]) -> String {
    run(Command::new(program).args(first).args(args)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_python_client_reads_every_refusal_of_a_large_body() {
    if PYTHON.is_required_as("python3") {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external/scripts/refusals.py");
        RefusingServers::start().each(REQUESTS, |args| run_client("python3", &["-B", "-u", script], args));
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
    if NODE.is_required_as("node") {
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
    run(&mut build).unwrap_or_else(|error| panic!("{error}"));
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
    if CURL.is_required_as("curl") {
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

/// The refused requests of each client that keeps its connection, and as many good ones: 150, or as many as
/// `CALLBOARD_KEPT_ALIVE` says.
fn kept_alive() -> String {
    env::var("CALLBOARD_KEPT_ALIVE").unwrap_or_else(|_| "150".to_owned())
}

/// A client that keeps its connections loses no request to an early refusal of another.
fn loses_nothing(client: impl FnOnce(&str, &str) -> String) {
    let server = Server::digits(&["--access-log", "false"]);
    answers_all(&format!("http://{}", server.address), client);
}

fn answers_all(url: &str, client: impl FnOnce(&str, &str) -> String) {
    let requests = kept_alive();
    assert_eq!(client(url, &requests).trim(), requests);
}

fn script(name: &str) -> String {
    format!("{}/tests/external/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn python_client_keeping_alive(url: &str, requests: &str) -> String {
    python_client("http.client", url, requests)
}

fn python_client(kind: &str, url: &str, requests: &str) -> String {
    run_client("python3", &["-B", "-u", &script("kept_alive.py"), kind], &[url, requests])
}

#[test]
fn the_python_client_loses_no_request_after_a_refusal() {
    if PYTHON.is_required_as("python3") {
        loses_nothing(python_client_keeping_alive);
    }
}

#[test]
fn requests_loses_no_request_after_a_refusal() {
    let Some(python) = Python::with("requests") else { return };
    loses_nothing(|url, requests| python.run("kept_alive.py", &["requests", url, requests]));
}

#[test]
fn httpx_loses_no_request_after_a_refusal() {
    let Some(python) = Python::with("httpx") else { return };
    loses_nothing(|url, requests| python.run("kept_alive.py", &["httpx", url, requests]));
    loses_nothing(|url, requests| python.run("kept_alive.py", &["httpx-2", url, requests]));
}

#[test]
fn clients_over_tls_lose_no_request_after_a_refusal() {
    let (_server, url) = digits_over_https(&certificate("127.0.0.1"), &["--access-log", "false"]);
    if PYTHON.is_required_as("python3") {
        answers_all(&url, python_client_keeping_alive);
    }
    let Some(python) = Python::with("httpx") else { return };
    for client in ["httpx", "httpx-2"] {
        answers_all(&url, |url, requests| python.run("kept_alive.py", &[client, url, requests]));
    }
}

#[test]
fn node_loses_no_request_after_a_refusal() {
    if NODE.is_required_as("node") {
        loses_nothing(|url, requests| run_client("node", &[&script("kept_alive.mjs")], &[url, requests]));
    }
}

#[test]
fn java_loses_no_request_after_a_refusal() {
    // With a compiler, which a runtime alone lacks.
    if JAVA.is_required_as("javac") {
        loses_nothing(|url, requests| run_client("java", &[&script("KeptAlive.java")], &[url, requests]));
    }
}

/// Ends with its test.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// nginx keeps connections to the server, sends bodies as they come, and tries no other. Its own clients it leaves
/// without a word if it has not read a body to its end when the response is sent, so they keep no connection.
#[test]
fn nginx_loses_no_request_after_a_refusal() {
    if NGINX.if_required(|| run(Command::new("nginx").arg("-v"))).is_none() {
        return;
    }
    let server = Server::digits(&["--access-log", "false"]);
    let directory = directory();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};\n", directory.display()))
        .concat();
    let config = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off;\n{paths}\
         upstream node {{ server {node}; keepalive 4; }}\nserver {{ listen {free}; location / {{ proxy_pass http://node;\
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host {node};\
         proxy_request_buffering off; proxy_next_upstream off; }} }} }}",
        dir = directory.display(),
        node = server.address,
    );
    fs::write(directory.join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(directory.join("nginx.conf")).arg("-p").arg(&directory).args(["-e", "stderr"]);
    let _nginx = Nginx(command.spawn().unwrap());
    while std::net::TcpStream::connect(free).is_err() {
        thread::yield_now();
    }
    answers_all(&format!("http://{free}"), |url, requests| python_client("http.client-anew", url, requests));
}
