//! `callboard cluster status` and `cluster drain`: three nodes in processes, each of which knows all of them.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::remote::{PNG, joining, json, wait_until_ready};
use crate::rolling::status_of;
use crate::support::{TEST_TIMEOUT, callboard, directory};

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
fn wait_for_members(state: &Path, url: &str, is_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let members = members(state, url);
        if is_expected(&members) {
            return members;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{url}: {members:?}");
        #[expect(clippy::disallowed_methods, reason = "another process cannot be notified")]
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn every_node_knows_all_and_one_is_drained_from_another_without_a_failed_call() {
    let (state, seven) = (directory(), fs::read("examples/digits/seven.png").unwrap());
    let (gateway, worker) = (Path::new("examples/gateway"), Path::new("examples/digits"));
    let (first, first_address, first_admin) = joining(&state, worker, &[]);
    let (mut second, second_address, second_admin) = joining(&state, worker, &["--join", &first_address]);
    let (third, third_address, third_admin) = joining(&state, gateway, &["--join", &first_address]);
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
        let members = wait_for_members(&state, url, are_ready);
        let mut addresses: Vec<_> = members.iter().map(|member| member["address"].as_str().unwrap()).collect();
        addresses.sort_unstable();
        let mut expected = [&*first_address, &second_address, &third_address];
        expected.sort_unstable();
        assert_eq!(addresses, expected, "{url}");
        let stages = |member: &Value| member["report"]["stages"].as_array().unwrap().len();
        let mut counts: Vec<_> = members.iter().map(stages).collect();
        counts.sort_unstable();
        assert_eq!(counts, [0, 3, 3], "the gateway runs none of its own");
        assert!(members.iter().all(|member| member["report"]["version"] == env!("CARGO_PKG_VERSION")), "{members:?}");
    }
    let shown = cluster(&state, &["status", &second_admin]);
    let shown = text(&shown.stdout);
    assert!(shown.starts_with("nodes: 3 up\n") && shown.contains("digits  ") && shown.contains("1 of 1"), "{shown}");
    let status = callboard(["status", &second_admin]).output().unwrap();
    assert!(text(&status.stdout).contains("\nnodes: 3 up\n"), "{status:?}");

    // A node that nobody knows.
    let unknown = cluster(&state, &["drain", "nobody", &quic(&third_address)]);
    let error = text(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(error.contains("there is no node `nobody` in the cluster: its nodes are development-"), "{error}");

    wait_until_ready(&third);
    let (head, address) = (format!("{PNG}\r\n"), third.address.clone());
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let calling: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    while !is_over.load(Ordering::SeqCst) {
                        let status = status_of(&address, &head, &seven);
                        answered.fetch_add(1, Ordering::SeqCst);
                        if !matches!(status, Ok(200)) {
                            failed.push(status);
                        }
                    }
                    failed
                })
            })
            .collect();
        let drained = cluster(&state, &["drain", &second_address, &quic(&third_address)]);
        assert!(drained.status.success() && text(&drained.stderr).contains("is draining"), "{drained:?}");
        assert_eq!(second.wait(), Some(0), "{:?}", second.stderr_lines);
        for url in [quic(&first_address), quic(&third_address)] {
            wait_for_members(&state, &url, |members| {
                members.iter().any(|member| member["address"] == *second_address && member["state"] == "down")
            });
        }
        let before = answered.load(Ordering::SeqCst);
        let start = Instant::now();
        while answered.load(Ordering::SeqCst) < before + 20 {
            assert!(start.elapsed() < TEST_TIMEOUT, "calls go on");
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        for calling in calling {
            let failed = calling.join().unwrap();
            assert!(failed.is_empty(), "{} calls failed: {failed:?}", failed.len());
        }
    });
    let log = second.stderr_lines.join("\n");
    assert!(log.contains("asked to drain by an operator: "), "{log}");
    let again = cluster(&state, &["drain", &second_address, &quic(&third_address)]);
    assert!(again.status.code() == Some(1) && text(&again.stderr).contains("` is down"), "{again:?}");
    drop(first);
}

#[test]
fn a_node_without_quic_is_in_no_cluster() {
    let server = crate::support::Server::start(callboard([
        "serve",
        "examples/digits",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]));
    let mut server = server;
    let url = server.wait_for("admin on ");
    let state = directory();
    let output = cluster(&state, &["status", &url]);
    assert!(
        output.status.code() == Some(1) && text(&output.stderr).contains("this node is in no cluster"),
        "{output:?}"
    );
    let refused = cluster(&state, &["drain", "a", "http://127.0.0.1:8001"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
