//! `callboard cluster`: a cluster with an authority, from nothing to a call, and the refusals.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Server, callboard, directory, failure, run};

/// A server of the digits with this identity, and the address of its QUIC port.
fn serve(cluster: &Path, words: &[&str]) -> (Server, String) {
    let cluster = cluster.to_str().unwrap();
    let all =
        ["serve", "examples/digits", "--http", "127.0.0.1:0", "--cluster", cluster, "--log", "callboard_net=info"];
    let mut server = Server::start(callboard(all.iter().chain(words)));
    let said = server.wait_for("listening on quic://");
    let (address, audience) = said.split_once(' ').unwrap();
    assert!(audience.starts_with("for the members of lab-"), "{said}");
    (server, address.to_owned())
}

fn token(authority: &Path, words: &[&str]) -> String {
    let all = ["cluster", "token", authority.to_str().unwrap()];
    let output = callboard(all.iter().chain(words)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let token = String::from_utf8(output.stdout).unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains(token.trim()), "once, and to stdout only");
    token.trim().to_owned()
}

fn join(token: &str, address: &str, to: &Path, name: &str) -> Output {
    let url = format!("quic://{address}");
    let mut command = callboard(["cluster", "join", "-", &url, "--to", to.to_str().unwrap(), "--name", name]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{token}").unwrap();
    child.wait_with_output().unwrap()
}

fn call(address: &str, identity: &Path) -> Output {
    let url = format!("quic://{address}");
    let words = ["call", &url, "/digits", "-F", "image=@examples/digits/seven.png", "--cluster"];
    callboard(words).arg(identity).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_is_made_joined_and_called_and_strangers_stay_outside() {
    let directory = directory();
    let of = |name: &str| directory.join(name);
    let authority = of("authority");
    let made = run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]);
    assert!(made.status.success() && said(&made).contains("made the cluster lab-"), "{made:?}");

    let (first, first_address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    // A node at another address of this machine joins, and both learn of each other.
    let node_token = token(&authority, &[]);
    let joined = join(&node_token, &first_address, &of("second"), "second");
    assert!(joined.status.success() && said(&joined).contains("as second, a node"), "{joined:?}");
    let (mut second, second_address) = serve(&of("second"), &["--quic", "127.0.0.2:0", "--join", &first_address]);
    second.wait_for("connected to a peer");

    // A client calls a route on either.
    let joined = join(&token(&authority, &["--role", "client"]), &first_address, &of("desk"), "desk");
    assert!(joined.status.success() && said(&joined).contains("as desk, a client"), "{joined:?}");
    for address in [&first_address, &second_address] {
        let output = call(address, &of("desk"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["label"], "7", "{reply}");
    }

    // A client's identity serves nothing.
    let desk = of("desk");
    let words = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--cluster"];
    let mut serving = callboard(words);
    serving.arg(&desk);
    let (refused, code) = failure(serving);
    assert_eq!(code, 1);
    assert!(refused.contains("this identity is a client's, which may not serve"), "{refused}");

    // A used-up token, an invalid one, and one of another cluster.
    let refused = join(&node_token, &first_address, &of("third"), "third");
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("(used_up_token)"), "{refused:?}");
    let refused = join("cbt1-nonsense", &first_address, &of("third"), "third");
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("not a token"), "{refused:?}");
    assert!(run(&["cluster", "init", of("other").to_str().unwrap()]).status.success());
    let refused = join(&token(&of("other"), &[]), &first_address, &of("third"), "third");
    assert!(said(&refused).contains("is not of the token's cluster"), "{refused:?}");
    assert!(!of("third").exists(), "nothing is left of it");

    // A revoked token, by itself or by its id.
    let (leaked, other) = (token(&authority, &["--uses", "9"]), token(&authority, &[]));
    let id = other.split('-').nth(2).unwrap();
    for word in [leaked.as_str(), id] {
        let revoked = run(&["cluster", "revoke", authority.to_str().unwrap(), word]);
        assert!(revoked.status.success() && said(&revoked).contains("admits no more members"), "{revoked:?}");
    }
    for token in [&leaked, &other] {
        let refused = join(token, &first_address, &of("third"), "third");
        assert!(said(&refused).contains("(revoked_token)"), "{refused:?}");
    }
    let unknown = run(&["cluster", "revoke", authority.to_str().unwrap(), "0123456789abcdef"]);
    assert!(unknown.status.code() == Some(1) && said(&unknown).contains("there is no token"), "{unknown:?}");
    let wrong = run(&["cluster", "revoke", authority.to_str().unwrap(), "desk"]);
    assert!(wrong.status.code() == Some(2) && said(&wrong).contains("expected a token"), "{wrong:?}");

    // Callers of another cluster, or of none, get an error that says so.
    let refused = call(&first_address, &of("other"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("unknown_authority: "), "{refused:?}");
    let refused = call(&first_address, &of("nothing"));
    assert!(said(&refused).contains("callboard cluster join"), "{refused:?}");

    // Counted after the connection has ended, which its caller may know earlier.
    let refused = |reason: &str| format!("callboard_net_connections_refused_total{{reason=\"{reason}\"}}");
    let lines =
        [refused("used_up_token"), refused("unknown_authority"), "callboard_net_members_joined_total 2\n".to_owned()];
    let begun = Instant::now();
    for line in lines {
        while !first.request("GET /metrics HTTP/1.1", b"").body.contains(&line) {
            assert!(begun.elapsed() < PATIENCE, "{line} is not there");
        }
    }

    let members = run(&["cluster", "members", authority.to_str().unwrap()]);
    let listed = String::from_utf8(members.stdout).unwrap();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["desk", "second"]);
    let removed = run(&["cluster", "remove", authority.to_str().unwrap(), "desk"]);
    assert!(removed.status.success() && said(&removed).contains("no further certificate"), "{removed:?}");
    assert_eq!(run(&["cluster", "remove", authority.to_str().unwrap(), "desk"]).status.code(), Some(1));
}

/// Runs for longer than the life of the first certificates, in separate processes.
#[test]
fn a_member_is_renewed_while_it_serves_and_its_callers_are_answered() {
    let directory = directory();
    let of = |name: &str| directory.join(name);
    let authority = of("authority");
    assert!(run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]).status.success());
    let (first, first_address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    let joined = join(&token(&authority, &["--life", "15s"]), &first_address, &of("member"), "member");
    assert!(joined.status.success(), "{joined:?}");
    let begun = Instant::now();
    let (second, second_address) = serve(&of("member"), &["--quic", "127.0.0.1:0", "--join", &first_address]);
    let joined = join(&token(&authority, &["--role", "client"]), &first_address, &of("desk"), "desk");
    assert!(joined.status.success(), "{joined:?}");
    while begun.elapsed() < Duration::from_secs(17) {
        let output = call(&second_address, &of("desk"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let counted = |server: &Server, name: &str| {
        let page = server.request("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text", b"").body;
        let start = format!("callboard_net_{name} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<u64>().unwrap()
    };
    assert!(counted(&second, "certificate_renewals_total") > 0);
    assert!(counted(&first, "members_renewed_total") > 0);
    // Each validates the other's new certificate against the authority.
    assert_eq!((counted(&first, "peers_linked"), counted(&second, "peers_linked")), (1, 1));
}

#[test]
fn an_error_of_cluster_is_one_line() {
    let directory = directory();
    let authority = directory.join("authority");
    let words =
        |words: &[&str]| failure(callboard(words.iter().map(|word| word.replace("DIR", authority.to_str().unwrap()))));
    let (line, code) = words(&["cluster", "init", "DIR", "--name", "No Name"]);
    assert!(code == 1 && line.contains("`No Name` is not a name: expected up to 40 of a-z, 0-9 and -"), "{line}");
    let (line, code) = words(&["cluster", "token", "DIR"]);
    assert!(code == 1 && line.contains("holds no authority"), "{line}");
    assert!(run(&["cluster", "init", authority.to_str().unwrap()]).status.success());
    let (line, code) = words(&["cluster", "init", "DIR"]);
    assert!(code == 1 && line.contains("is there already"), "{line}");
    let (line, code) = words(&["cluster", "token", "DIR", "--role", "king"]);
    assert!(code == 2 && line.contains("expected `node` or `client`"), "{line}");
    let (line, code) = words(&["cluster", "token", "DIR", "--life", "100000h"]);
    assert!(code == 1 && line.contains("the life of a certificate may be from a second to 90 days"), "{line}");
}
