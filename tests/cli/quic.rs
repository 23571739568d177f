//! `serve --quic` and `call quic://…`: two processes with a development identity and no set-up.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::support::{Server, callboard, directory, directory_with, failure, run};

/// A server of the digits with a QUIC port, and the address of that port.
pub(crate) fn serve(state: &Path) -> (Server, String) {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]);
    command.env("XDG_STATE_HOME", state);
    let mut server = Server::start(command);
    let rest = server.wait_for("listening on quic://");
    let address = rest.split(' ').next().unwrap().to_owned();
    (server, format!("quic://{address}"))
}

fn call(state: &Path, url: &str, args: &[&str]) -> Output {
    let mut command = callboard(["call", url].iter().chain(args));
    command.env("XDG_STATE_HOME", state).output().unwrap()
}

#[test]
fn a_call_over_quic_needs_no_preparation_on_one_machine() {
    let state = directory();
    let (mut server, url) = serve(&state);
    let output = call(&state, &url, &["/digits", "-F", "image=@examples/digits/seven.png"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["label"], "7", "{reply}");

    let wrong = call(&state, &url, &["/nowhere", "--json", "1"]);
    assert_eq!(wrong.status.code(), Some(4), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there is no route `/nowhere`"), "{wrong:?}");

    let metrics = server.request("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text", b"").body;
    assert!(metrics.contains("callboard_net_streams_total 2\n"), "{metrics}");
    let page = std::fs::read_to_string("docs/operations/running.md").unwrap();
    let families: Vec<&str> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE callboard_net_")).collect();
    assert!(families.len() >= 4, "families without labels exist from the start: {families:?}");
    for family in families {
        let row = format!("| `callboard_net_{} |", family.replace(' ', "` | "));
        assert!(page.contains(&row), "the operations page has no row {row}");
    }

    server.signal("TERM");
    assert_eq!(server.wait(), Some(0), "{:?}", server.stderr_lines);
}

#[test]
fn the_value_of_an_option_is_not_read_as_the_address() {
    let state = directory();
    let (_server, url) = serve(&state);
    for option in ["--json={\"u\": \"http://a\"}", "--arg=u=http://a", "-Fu=http://a"] {
        let mut command = callboard(["call", option, &url, "/nowhere"]);
        let output = command.env("XDG_STATE_HOME", &state).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{option}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("`/nowhere`"), "{output:?}");
    }
}

/// A caller with the identity of another user.
#[test]
fn a_caller_with_another_identity_is_refused() {
    let (_server, url) = serve(&directory());
    let output = call(&directory(), &url, &["/digits", "--json", "1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn the_development_identity_is_refused_beyond_loopback() {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "0.0.0.0:0"]);
    command.env("XDG_STATE_HOME", directory());
    let (message, code) = failure(command);
    assert_eq!(code, 1);
    assert!(message.contains("for loopback only"), "{message}");
}

/// A peer at such an address could never be connected either.
#[test]
fn a_peer_beyond_loopback_needs_a_cluster() {
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--join"];
    let mut command = callboard(args);
    command.arg("192.0.2.1:4433").env("XDG_STATE_HOME", directory());
    let (message, code) = failure(command);
    assert_eq!(code, 1);
    assert!(message.contains("192.0.2.1:4433 is not on this machine") && message.contains("cluster join"), "{message}");
}

/// The first process creates the authority, and the others find it.
#[test]
fn nodes_that_start_at_once_share_one_authority() {
    let state = directory();
    let starting: Vec<_> = (0..3)
        .map(|_| {
            let state = state.clone();
            std::thread::spawn(move || serve(&state))
        })
        .collect();
    let nodes: Vec<_> = starting.into_iter().map(|starting| starting.join().unwrap()).collect();
    for (server, url) in &nodes {
        let log = server.stderr_lines.join("\n");
        assert!(log.contains(&format!("development identity in {}", state.display())), "{log}");
        let output = call(&state, url, &["/digits", "-F", "image=@examples/digits/seven.png"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn without_a_directory_for_identities_the_error_names_the_variable() {
    let file = directory().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = |state: Option<&Path>| {
        let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]);
        command.env_remove("HOME").env_remove("XDG_STATE_HOME");
        if let Some(state) = state {
            command.env("XDG_STATE_HOME", state);
        }
        let (message, code) = failure(command);
        assert_eq!(code, 1);
        message
    };
    let message = refused(None);
    assert!(message.contains("set XDG_STATE_HOME or HOME"), "{message}");
    // A relative path, which would depend on the current directory.
    let message = refused(Some(Path::new("some/where")));
    assert!(message.contains("to an absolute path") && !Path::new("some").exists(), "{message}");
    let message = refused(Some(&file));
    assert!(message.contains("set XDG_STATE_HOME to a directory that can be written"), "{message}");
}

/// Each node connects to the other although only one names its peer. A node survives the death of the other.
#[test]
fn a_node_connects_back_to_a_node_that_joins_it() {
    let state = directory();
    let start = |args: &[&str]| {
        let mut command = callboard(["serve", "examples/digits", "--log", "callboard_net=info"].iter().chain(args));
        command.env("XDG_STATE_HOME", &state);
        Server::start(command)
    };
    let mut first = start(&["--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]);
    let address = first.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let mut second = start(&["--join", &address]);
    second.wait_until_printed("connected to a peer");
    first.wait_until_printed("connected to a peer");
    second.signal("KILL");
    first.wait_for("the connection to a peer ended");
    let output = call(&state, &format!("quic://{address}"), &["/digits", "-F", "image=@examples/digits/seven.png"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0), "{:?}", first.stderr_lines);
}

/// The peer is joined by a host name.
#[test]
fn the_status_of_a_node_shows_the_others() {
    let state = directory();
    let start = |args: &[&str]| {
        let base = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = callboard(base.iter().chain(args));
        command.env("XDG_STATE_HOME", &state);
        Server::start(command)
    };
    let mut first = start(&["--quic", "127.0.0.1:0"]);
    let address = first.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let name = address.replace("127.0.0.1", "localhost");
    let mut second = start(&["--join", &name, "--log", "callboard_net=info"]);
    let admin = second.wait_for("admin on ");
    second.wait_until_printed("connected to a peer");
    let status = |args: &[&str]| {
        let output = run(&[&["status", &admin], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = status(&[]);
    let row = text.lines().find(|line| line.starts_with(&address)).unwrap_or_else(|| panic!("no {address} in {text}"));
    assert!(row.ends_with("digits, labels") && !row.contains("disconnected"), "{text}");
    let status_json: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    let peer = &status_json["node"]["peers"][0];
    assert_eq!((peer["address"].as_str(), peer["node"].as_str()), (Some(address.as_str()), Some("")));
    assert!(peer["connected_for"]["nanos"].is_u64() && peer["stages"].as_array().unwrap().len() >= 2, "{peer}");

    first.signal("KILL");
    second.wait_for("the connection to a peer ended");
    let text = status(&[]);
    assert!(text.lines().any(|line| line.starts_with(&address) && line.contains("disconnected")), "{text}");
}

#[test]
fn peers_are_hosts_with_ports_and_at_most_64() {
    let too_many = vec!["node.example:4433"; 65].join(",");
    for invalid in ["node.example", "node.example:0", "http://node.example:1", "a node:1", &too_many] {
        let (message, code) =
            failure(callboard(["serve", "examples/digits", "--http", "127.0.0.1:0", "--join", invalid]));
        assert_eq!(code, 2, "{invalid}: {message}");
        assert!(message.contains("expected nodes as HOST:PORT") && message.contains("at most 64"), "{message}");
    }
}

/// A stage whose revisions on the nodes have different labels, each with its share of the calls.
pub(crate) fn labels(revision: u32, names: &str, parts: [u32; 2]) -> std::path::PathBuf {
    let split = format!("split = {{ 1 = {}, 2 = {} }}", parts[0], parts[1]);
    let stage = format!("name = \"name\"\nkind = \"labels\"\nnames = {names}\nrevision = {revision}\n{split}");
    directory_with(&format!("[[stage]]\n{stage}\n[[route]]\npath = \"/name\"\nstages = \"name\"\n"))
}

/// Two connected nodes that divide the calls of a stage, three for the first and one for the second.
fn divided_nodes() -> [Server; 2] {
    let state = directory();
    let start = |file: &Path, args: &[&str]| {
        let mut command =
            callboard(["serve", "--log", "callboard_net=info", "--http", "127.0.0.1:0"].iter().chain(args));
        command.arg(file).env("XDG_STATE_HOME", &state);
        Server::start(command)
    };
    let mut new = start(&labels(2, r#"["new", "other"]"#, [3, 1]), &["--quic", "127.0.0.1:0"]);
    let address = new.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let mut old = start(&labels(1, r#"["old", "other"]"#, [3, 1]), &["--join", &address]);
    old.wait_until_printed("connected to a peer");
    [old, new]
}

const HEAD: &str = "POST /name HTTP/1.1\r\ncontent-type: application/json";
const SCORES: &str = "[0.9, 0.1]";

fn count_of(name: &str, answers: &[String]) -> usize {
    answers.iter().filter(|answer| answer.contains(name)).count()
}

#[test]
fn calls_are_divided_between_the_revisions_that_nodes_run() {
    let [old, _new] = divided_nodes();
    let answers: Vec<String> = (0..40).map(|_| old.request(HEAD, SCORES.as_bytes()).body).collect();
    assert_eq!((count_of("old", &answers), count_of("new", &answers)), (30, 10), "{answers:?}");
}

/// A gateway runs none of its stages. Two nodes run them, and each session is one node's.
#[test]
fn a_session_over_http_stays_with_its_node() {
    let state = directory();
    let serve = |file: &Path, args: &[&str]| {
        let base = ["serve", "--log", "callboard_net=info", "--http", "127.0.0.1:0", "--admin", "off"];
        let mut command = callboard(base.iter().chain(args));
        command.arg(file).env("XDG_STATE_HOME", &state);
        Server::start(command)
    };
    let route = "[[route]]\npath = \"/name\"\nstages = \"name\"\n";
    let [(_first, at), (_second, also_at)] = ["first", "second"].map(|name| {
        let stage = format!("[[stage]]\nname = \"name\"\nkind = \"labels\"\nnames = [\"{name}\", \"other\"]\n");
        let mut server = serve(&directory_with(&(stage + route)), &["--quic", "127.0.0.1:0"]);
        let address = server.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
        (server, address)
    });
    let stage = "[[stage]]\nname = \"name\"\nkind = \"remote\"\n".to_owned();
    let mut gateway = serve(&directory_with(&(stage + route)), &["--join", &format!("{at},{also_at}")]);
    gateway.wait_until_printed("connected to a peer");
    gateway.wait_until_printed("connected to a peer");
    let answer_of = |session: usize| {
        let head = format!("{HEAD}\r\nx-callboard-session: session {session}");
        let answer = gateway.request(&head, SCORES.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    };
    let homes: Vec<String> = (0..20).map(answer_of).collect();
    assert!((3..=17).contains(&count_of("first", &homes)), "both nodes have sessions: {homes:?}");
    for _ in 0..3 {
        (0..homes.len()).for_each(|session| assert_eq!(answer_of(session), homes[session], "session {session}"));
    }
}

/// The server waits for half-sent heads. Their requests may need a peer, like any others.
#[test]
fn a_late_http_call_can_still_use_the_peers() {
    let [mut old, mut new] = divided_nodes();
    let mut half_sent: Vec<_> = (0..8).map(|_| old.connect()).collect();
    half_sent.iter_mut().for_each(|stream| stream.write_all(HEAD.as_bytes()).unwrap());
    // The half-sent heads arrived before these requests.
    (0..20).for_each(|_| assert_eq!(old.request(HEAD, SCORES.as_bytes()).status, 200));
    old.signal("TERM");
    old.wait_for("SIGTERM");
    assert!(!new.prints_within("the connection to a peer ended", Duration::from_millis(500)), "{:?}", new.stderr_lines);
    let answers = half_sent.into_iter().filter_map(|mut stream| {
        let rest = format!("\r\nhost: test\r\ncontent-length: {}\r\n\r\n{SCORES}", SCORES.len());
        let (sent, mut answer) = (stream.write_all(rest.as_bytes()), String::new());
        // A connection without any read request is closed with the listener.
        (sent.is_ok() && stream.read_to_string(&mut answer).is_ok() && !answer.is_empty()).then_some(answer)
    });
    let answers: Vec<String> = answers.collect();
    assert!(answers.len() >= 4 && answers.iter().all(|answer| answer.contains(" 200 ")), "{answers:?}");
    assert!(count_of("new", &answers) > 0, "{answers:?}");
    assert_eq!(old.wait(), Some(0), "{:?}", old.stderr_lines);
}
