//! `callboard cluster status` and `cluster drain`: three nodes in processes, each of which knows all of them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::nodes::{Member, file_with, under_load, wait_until};
use crate::remote::json;
use crate::support::{Server, TEST_TIMEOUT, callboard, directory};

/// A command of `cluster` with this identity of a user.
fn cluster(state: &Path, args: &[&str]) -> Output {
    callboard(["cluster"].iter().chain(args)).env("XDG_STATE_HOME", state).output().unwrap()
}

/// The members as the node of this URL knows them.
fn members(state: &Path, url: &str) -> Vec<Value> {
    let output = cluster(state, &["status", url, "--json"]);
    assert!(output.status.success(), "{output:?}");
    json(&String::from_utf8(output.stdout).unwrap())["members"].as_array().expect("members").clone()
}

/// Waits until the node of this URL knows such members.
fn wait_for_state(state: &Path, url: &str, is_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut known = Vec::new();
    wait_until(|| {
        known = members(state, url);
        if is_expected(&known) { Ok(()) } else { Err(format!("{url}: {known:?}")) }
    });
    known
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn every_node_knows_all_and_one_is_drained_from_another_without_a_failed_call() {
    let (state, worker, gateway) = (directory(), file_with(&["shared"], &[]), file_with(&[], &["shared"]));
    let (first, first_address, first_admin) = joining(&state, &worker, &[]);
    let (mut second, second_address, second_admin) = joining(&state, &worker, &["--join", &first_address]);
    let (third, third_address, third_admin) = joining(&state, &gateway, &["--join", &first_address]);
    let quic = |address: &str| format!("quic://{address}");

    // Over either door of each node.
    let are_ready = |members: &[Value]| {
        members.len() == 3
            && members.iter().all(|member| member["state"] == "up" && member["report"]["phase"] == "ready")
    };
    let urls = [
        first_admin,
        second_admin.clone(),
        third_admin,
        quic(&first_address),
        quic(&second_address),
        quic(&third_address),
    ];
    for url in &urls {
        let members = wait_for_state(&state, url, are_ready);
        let mut addresses: Vec<_> = members.iter().map(|member| member["address"].as_str().unwrap()).collect();
        addresses.sort_unstable();
        let mut expected = [&*first_address, &second_address, &third_address];
        expected.sort_unstable();
        assert_eq!(addresses, expected, "{url}");
        let stages = |member: &Value| member["report"]["stages"].as_array().unwrap().len();
        let mut counts: Vec<_> = members.iter().map(stages).collect();
        counts.sort_unstable();
        assert_eq!(counts, [0, 1, 1], "the gateway runs none of its own");
        assert!(members.iter().all(|member| member["report"]["version"] == env!("CARGO_PKG_VERSION")), "{members:?}");
        let loads = |member: &Value| member["load"].as_array().map(Vec::len);
        wait_for_state(&state, url, |members| members.iter().all(|member| loads(member) == Some(stages(member))));
    }
    // The live page of one node shows the load of all.
    let shown = live_members(&second_admin, |members| {
        members.len() == 3 && members.iter().all(|member| member["queue_limit"].is_u64())
    });
    let mut limits: Vec<_> = shown.iter().map(|member| member["queue_limit"].as_u64().unwrap()).collect();
    limits.sort_unstable();
    assert_eq!(limits, [0, 1024, 1024], "the gateway runs no stage: {shown:?}");
    let shown = cluster(&state, &["status", &second_admin]);
    let shown = text(&shown.stdout);
    assert!(shown.starts_with("nodes: 3 up\n") && shown.contains("shared  "), "{shown}");
    assert!(shown.contains("1 of 1    0     0/1024\n"), "{shown}");
    let status = callboard(["status", &second_admin]).output().unwrap();
    assert!(text(&status.stdout).contains("\nnodes: 3 up\n"), "{status:?}");

    // A node that nobody knows.
    let unknown = cluster(&state, &["drain", "nobody", &quic(&third_address)]);
    let error = text(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(error.contains("there is no node `nobody` in the cluster: its nodes are development-"), "{error}");

    // One that is told of each change.
    let watch = ["cluster", "status", "--watch=100ms", &urls[0]];
    let mut watching = callboard(watch).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!((0..2).all(|_| shown.any(|line| line == "nodes: 3 up")), "it goes on");

    let third = Member::of(third, third_address);
    third.http.wait_for_stage("shared");
    under_load(&third, "shared", |_| {
        let drained = cluster(&state, &["drain", &second_address, &quic(&third.quic)]);
        assert!(drained.status.success() && text(&drained.stderr).contains("is draining"), "{drained:?}");
        assert_eq!(second.wait(), Some(0), "{:?}", second.stderr_lines);
        for url in [quic(&first_address), quic(&third.quic)] {
            wait_for_state(&state, &url, |members| {
                members.iter().any(|member| member["address"] == *second_address && member["state"] == "left")
            });
        }
    });
    assert!(shown.any(|line| line.starts_with("nodes: 2 up, 1 left (")), "it goes on");
    watching.kill().unwrap();
    watching.wait().unwrap();
    let log = second.stderr_lines.join("\n");
    assert!(log.contains("asked to drain by an operator: "), "{log}");
    let again = cluster(&state, &["drain", &second_address, &quic(&third.quic)]);
    assert!(again.status.code() == Some(1) && text(&again.stderr).contains("` is down"), "{again:?}");
    drop(first);
}

/// The members of the first sample of the live page that is as expected.
fn live_members(admin: &str, is_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut stream = TcpStream::connect(admin.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut last = Value::Null;
    // A sample a second.
    for line in BufReader::new(stream).lines().map_while(Result::ok).take(500) {
        let Some(sample) = line.strip_prefix("data: ") else { continue };
        last = json(sample)["members"].clone();
        let members = last.as_array().expect("members");
        if is_expected(members) {
            return members.clone();
        }
    }
    panic!("never as expected: {last}")
}

#[test]
fn a_node_without_quic_is_in_no_cluster() {
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut server = Server::start(callboard(args));
    let url = server.wait_for("admin on ");
    let state = directory();
    let output = cluster(&state, &["status", &url]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("it is in no cluster"), "{output:?}");
    let refused = cluster(&state, &["drain", "a", "http://127.0.0.1:8001"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// A node that joins others, with the addresses of its QUIC and its admin listener.
fn joining(state: &Path, what: &Path, join: &[&str]) -> (Server, String, String) {
    let listeners = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "127.0.0.1:0"];
    let mut command = callboard(["serve"].iter().chain(&listeners).chain(join));
    command.arg(what).env("XDG_STATE_HOME", state);
    let mut server = Server::start(command);
    let [quic, admin] = ["listening on quic://", "admin on "].map(|text| {
        server.wait_until_printed(text);
        let rest = server.stderr_lines.iter().find_map(|line| line.split_once(text)).expect("it was printed").1;
        rest.split(' ').next().unwrap().to_owned()
    });
    (server, quic, admin)
}
