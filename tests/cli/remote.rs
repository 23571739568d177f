//! Remote stages: a gateway that runs none of its stages, and a worker that comes and goes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Answer, Server, TEST_TIMEOUT, callboard, directory, directory_with, failure, run};

const PNG: &str = "POST /digits HTTP/1.1\r\ncontent-type: image/png";

/// A node of the digits with this QUIC address, and its actual address.
fn worker(state: &Path, quic: &str) -> (Server, String) {
    let mut command =
        callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "off", "--quic", quic]);
    command.env("XDG_STATE_HOME", state);
    let mut server = Server::start(command);
    let rest = server.wait_for("listening on quic://");
    (server, rest.split(' ').next().unwrap().to_owned())
}

fn gateway(state: &Path, file: &Path, peer: &str) -> Server {
    let args = ["serve", "--http", "127.0.0.1:0", "--admin", "off", "--join", peer];
    let mut command = callboard(args);
    command.arg(file).env("XDG_STATE_HOME", state);
    Server::start(command)
}

/// Repeats the request until it gets the expected answer.
fn request_until(server: &Server, head: &str, body: &[u8], is_expected: impl Fn(&Answer) -> bool) -> Answer {
    let start = Instant::now();
    loop {
        let answer = server.request(head, body);
        if is_expected(&answer) {
            return answer;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{head}: {answer:?}");
        #[expect(clippy::disallowed_methods, reason = "another process cannot be notified")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_until_ready(server: &Server) {
    request_until(server, "GET /readyz HTTP/1.1", b"", |answer| answer.status == 200);
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_gateway_answers_while_a_worker_runs_and_is_not_ready_without_one() {
    let state = directory();
    let seven = fs::read("examples/digits/seven.png").unwrap();
    let (first, address) = worker(&state, "127.0.0.1:0");
    let mut gateway = gateway(&state, Path::new("examples/gateway"), &address);
    wait_until_ready(&gateway);
    let answer = gateway.request(PNG, &seven);
    assert_eq!((answer.status, &json(&answer.body)["label"]), (200, &"7".into()), "{answer:?}");
    let local_answer = first.request(PNG, &seven);
    assert_eq!(answer.body, local_answer.body, "a remote stage gives the same answer");

    // A stage's error about an input is reported as if it ran here.
    let bad = gateway.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", br#"{"image": 5}"#);
    assert_eq!((bad.status, &json(&bad.body)["stage"]), (422, &"decode".into()), "{bad:?}");
    assert_eq!(json(&bad.body)["details"]["fields"][0]["path"], "$.image");

    first.signal("KILL");
    // A request that meets the lost connection waits for another node, until its deadline.
    let impatient = format!("{PNG}\r\nx-request-timeout-ms: 500");
    let no_node = "no node can be reached that runs the stage `decode`";
    let lost = request_until(&gateway, &impatient, &seven, |answer| answer.body.contains(no_node));
    let problem = json(&lost.body);
    assert_eq!((lost.status, &problem["kind"], &problem["stage"]), (503, &"unavailable".into(), &"decode".into()));
    assert!(lost.head.contains("\r\nretry-after: 1\r\n"), "{lost:?}");
    let ready = gateway.request("GET /readyz HTTP/1.1", b"");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("stage `decode` is remote: no node that runs it can be reached"), "{ready:?}");
    assert_eq!(gateway.request("GET /livez HTTP/1.1", b"").status, 200);
    let model = gateway.request("GET /v2/models/digits/ready HTTP/1.1", b"");
    assert!(model.status == 503 && model.body.contains("stage `decode` is remote"), "{model:?}");
    drop(first);

    let (_second, _) = worker(&state, &address);
    wait_until_ready(&gateway);
    let answer = gateway.request(PNG, &seven);
    assert_eq!((answer.status, &json(&answer.body)["label"]), (200, &"7".into()), "{answer:?}");
    assert_eq!(gateway.request("GET /v2/models/digits/ready HTTP/1.1", b"").status, 200);

    gateway.signal("TERM");
    assert_eq!(gateway.wait(), Some(0), "{:?}", gateway.stderr_lines);
    let log = gateway.stderr_lines.join("\n");
    assert!(log.contains("POST /digits  ↗decode → ↗digits → ↗labels\n"), "{log}");
    assert!(log.contains("  ↗ marks a remote stage"), "{log}");
}

/// The gateway finds a worker that joins it.
#[test]
fn local_and_remote_stages_work_in_one_graph() {
    let state = directory();
    let file = directory_with(
        "[[stage]]\nname = \"decode\"\nkind = \"image\"\ncolor = \"grey\"\nwidth = 8\nheight = 8\nresize = \"area\"\n\
         scale = 0.0625\nlayout = \"chw\"\n\
         [[stage]]\nname = \"digits\"\nkind = \"remote\"\n\
         [[stage]]\nname = \"labels\"\nkind = \"remote\"\n\
         [[stage]]\nname = \"missing\"\nkind = \"remote\"\n\
         [[route]]\npath = \"/digits\"\nstages = [\"decode\", \"digits\", { ensemble = { best = \"labels\", logits = [] } }]\n\
         [[route]]\npath = \"/missing\"\nstages = [\"missing\", \"labels\"]\n",
    );
    let args = ["serve", "--http", "127.0.0.1:0", "--admin", "off", "--quic", "127.0.0.1:0"];
    let mut command = callboard(args);
    command.arg(&file).env("XDG_STATE_HOME", &state);
    let mut gateway = Server::start(command);
    let address = gateway.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let mut command =
        callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "off", "--join", &address]);
    let _worker = Server::start({
        command.env("XDG_STATE_HOME", &state);
        command
    });
    let seven = fs::read("examples/digits/seven.png").unwrap();
    let answer = request_until(&gateway, PNG, &seven, |answer| answer.status == 200);
    let reply = json(&answer.body);
    assert_eq!((&reply["best"]["label"], reply["logits"].as_array().unwrap().len()), (&"7".into(), 10), "{reply}");

    // Routes with connected stages work; the missing stage is named.
    let head = "POST /missing HTTP/1.1\r\ncontent-type: application/json";
    let missing = gateway.request(head, b"1");
    assert_eq!(missing.status, 503);
    assert!(missing.body.contains("runs the stage `missing`: the connected node does not"), "{missing:?}");
    let ready = gateway.request("GET /readyz HTTP/1.1", b"");
    let detail = json(&ready.body)["detail"].clone();
    assert_eq!(detail, "stage `missing` is remote: no node that runs it can be reached");
    assert_eq!(gateway.request("GET /v2/models/digits/ready HTTP/1.1", b"").status, 200);
}

#[test]
fn a_gateway_is_checked_and_documented_without_its_peers() {
    let output = run(&["check", "examples/gateway"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let expected = "/digits example 1: not run to its end: stages `decode`, `digits`, `labels` run on other nodes only, and \
                    cannot be tried alone\nexamples/gateway/callboard.toml: no example failed; those with remote stages \
                    were not run to their end\n";
    assert_eq!(text, expected);

    let output = run(&["openapi", "examples/gateway"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let post = &document["paths"]["/digits"]["post"];
    let forms = &post["requestBody"]["content"]["application/json"]["x-callboard-media-types"];
    assert!(forms.as_array().unwrap().contains(&"image/*".into()), "{post}");
    let answer = &post["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    let name = answer.as_str().and_then(|path| path.rsplit('/').next()).unwrap();
    let schema = &document["components"]["schemas"][name];
    assert_eq!(schema["description"], "what stage `labels` gives is known to the nodes that run it", "{schema}");

    let picture = run(&["serve", "examples/gateway", "--explain=mermaid"]);
    let picture = String::from_utf8(picture.stdout).unwrap();
    assert!(picture.contains("[\"digits · remote\"]"), "{picture}");
}

#[test]
fn a_gateway_without_peers_is_refused_before_it_starts() {
    let toml = fs::read_to_string("examples/gateway/callboard.toml").unwrap();
    let directory = directory_with(&toml.replace("[quic]\njoin = [\"127.0.0.1:4433\"]\n", ""));
    for command in ["check", "serve", "openapi"] {
        let (line, code) = failure(callboard([command.as_ref(), directory.as_os_str()]));
        let expected = "stage `decode`: kind `remote` is for a node that has others: neither quic.listen (--quic) nor \
                        quic.join (--join) is set";
        assert!(line.ends_with(expected) && code == 2, "{command}: {line}");
    }
}
