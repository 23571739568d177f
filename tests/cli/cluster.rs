//! `callboard cluster`: a cluster with an authority, from nothing to a call, and the refusals.

use std::fs;
use std::io::Write;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::support::without_settings;
use crate::support::{Server, TEST_TIMEOUT, callboard, directory, failure, run};

/// A server of the digits with this identity, and the address of its QUIC port.
fn serve(cluster: &Path, args: &[&str]) -> (Server, String) {
    let cluster = cluster.to_str().unwrap();
    let base =
        ["serve", "examples/digits", "--http", "127.0.0.1:0", "--cluster", cluster, "--log", "callboard_net=info"];
    let mut server = Server::start(callboard(base.iter().chain(args)));
    let rest = server.wait_for("listening on quic://");
    let (address, audience) = rest.split_once(' ').unwrap();
    assert!(audience.starts_with("for the members of lab-"), "{rest}");
    (server, address.to_owned())
}

fn token(authority: &Path, args: &[&str]) -> String {
    let base = ["cluster", "token", authority.to_str().unwrap()];
    let output = callboard(base.iter().chain(args)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let token = String::from_utf8(output.stdout).unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains(token.trim()), "the token is printed to stdout only");
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
    let args = ["call", &url, "/digits", "-F", "image=@examples/digits/seven.png", "--cluster"];
    callboard(args).arg(identity).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_is_created_joined_and_called_and_foreign_identities_are_refused() {
    let directory = directory();
    let path_of = |name: &str| directory.join(name);
    let authority = path_of("authority");
    let created = run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]);
    assert!(created.status.success() && stderr(&created).contains("made the cluster lab-"), "{created:?}");

    let (first, first_address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    // A node at another address of this machine joins, and the two nodes connect.
    let node_token = token(&authority, &[]);
    let joined = join(&node_token, &first_address, &path_of("second"), "second");
    assert!(joined.status.success() && stderr(&joined).contains("as second, a node"), "{joined:?}");
    let (mut second, second_address) = serve(&path_of("second"), &["--quic", "127.0.0.2:0", "--join", &first_address]);
    second.wait_until_printed("connected to a peer");

    // A client calls a route on either node.
    let joined = join(&token(&authority, &["--role", "client"]), &first_address, &path_of("desk"), "desk");
    assert!(joined.status.success() && stderr(&joined).contains("as desk, a client"), "{joined:?}");
    for address in [&first_address, &second_address] {
        let output = call(address, &path_of("desk"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["label"], "7", "{reply}");
    }

    // An operator sees the cluster and drains nodes; a client may do neither, and a node may not drain another.
    let joined = join(&token(&authority, &["--role", "operator"]), &first_address, &path_of("ops"), "ops");
    assert!(joined.status.success() && stderr(&joined).contains("as ops, an operator"), "{joined:?}");
    let url = format!("quic://{first_address}");
    let ask = |args: &[&str], identity: &str| {
        callboard(["cluster"].iter().chain(args)).arg("--cluster").arg(path_of(identity)).output().unwrap()
    };
    let refused = ask(&["drain", "second", &url], "desk");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("a client may not order `status`: join with a token of role operator"),
        "{refused:?}"
    );
    let refused = ask(&["drain", "second", &url], "second");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("a node may not order `drain`"), "{refused:?}");
    let start = Instant::now();
    let names = loop {
        let shown = ask(&["status", &url, "--json"], "ops");
        assert!(shown.status.success(), "{shown:?}");
        let state: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        let members = state["members"].as_array().unwrap().clone();
        if members.len() == 2 && members.iter().all(|member| member["report"]["phase"] == "ready") {
            break members.iter().map(|member| member["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{state}");
    };
    assert_eq!(names, ["authority", "second"]);
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--cluster"];
    let mut serving = callboard(args);
    serving.arg(path_of("ops"));
    let (refused, _) = failure(serving);
    assert!(refused.contains("this identity is an operator's, which may not serve"), "{refused}");

    // A client's identity serves nothing.
    let desk = path_of("desk");
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--cluster"];
    let mut serving = callboard(args);
    serving.arg(&desk);
    let (refused, code) = failure(serving);
    assert_eq!(code, 1);
    assert!(refused.contains("this identity is a client's, which may not serve"), "{refused}");

    // A used-up token, an invalid token, and a token of another cluster.
    let refused = join(&node_token, &first_address, &path_of("third"), "third");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("(used_up_token)"), "{refused:?}");
    let refused = join("cbt1-nonsense", &first_address, &path_of("third"), "third");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("not a token"), "{refused:?}");
    assert!(run(&["cluster", "init", path_of("other").to_str().unwrap()]).status.success());
    let refused = join(&token(&path_of("other"), &[]), &first_address, &path_of("third"), "third");
    assert!(stderr(&refused).contains("is not of the token's cluster"), "{refused:?}");
    assert!(!path_of("third").exists(), "no files remain");

    // A revoked token, by itself or by its id.
    let (leaked, other) = (token(&authority, &["--uses", "9"]), token(&authority, &[]));
    let id = other.split('-').nth(2).unwrap();
    for token_or_id in [leaked.as_str(), id] {
        let revoked = run(&["cluster", "revoke", authority.to_str().unwrap(), token_or_id]);
        assert!(revoked.status.success() && stderr(&revoked).contains("admits no more members"), "{revoked:?}");
    }
    for token in [&leaked, &other] {
        let refused = join(token, &first_address, &path_of("third"), "third");
        assert!(stderr(&refused).contains("(revoked_token)"), "{refused:?}");
    }
    let unknown = run(&["cluster", "revoke", authority.to_str().unwrap(), "0123456789abcdef"]);
    assert!(unknown.status.code() == Some(1) && stderr(&unknown).contains("there is no token"), "{unknown:?}");
    let wrong = run(&["cluster", "revoke", authority.to_str().unwrap(), "desk"]);
    assert!(wrong.status.code() == Some(2) && stderr(&wrong).contains("expected a token"), "{wrong:?}");

    // Callers of another cluster, or without a cluster, get a specific error.
    let refused = call(&first_address, &path_of("other"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("unknown_authority: "), "{refused:?}");
    let refused = call(&first_address, &path_of("nothing"));
    assert!(stderr(&refused).contains("callboard cluster join"), "{refused:?}");

    // The node counts a connection after its end, maybe later than the caller sees it.
    let refused = |reason: &str| format!("callboard_net_connections_refused_total{{reason=\"{reason}\"}}");
    let lines =
        [refused("used_up_token"), refused("unknown_authority"), "callboard_net_members_joined_total 3\n".to_owned()];
    let start = Instant::now();
    for line in lines {
        while !first.request("GET /metrics HTTP/1.1", b"").body.contains(&line) {
            assert!(start.elapsed() < TEST_TIMEOUT, "{line} is missing");
        }
    }

    let drained = ask(&["drain", "second", &url], "ops");
    assert!(drained.status.success() && stderr(&drained).contains("second at 127.0.0.2:"), "{drained:?}");
    assert_eq!(second.wait(), Some(0), "{:?}", second.stderr_lines);

    let members = run(&["cluster", "members", authority.to_str().unwrap()]);
    let list = String::from_utf8(members.stdout).unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["desk", "ops", "second"]);
    let removed = run(&["cluster", "remove", authority.to_str().unwrap(), "desk"]);
    assert!(removed.status.success() && stderr(&removed).contains("no further certificate"), "{removed:?}");
    assert_eq!(run(&["cluster", "remove", authority.to_str().unwrap(), "desk"]).status.code(), Some(1));
}

/// They run at each start, without a shell.
#[test]
fn commands_of_an_init_container_keep_what_is_there_and_read_the_token_from_a_file() {
    let directory = directory();
    let (authority, member, file) = (directory.join("authority"), directory.join("member"), directory.join("token"));
    for expected in ["made the cluster lab-", "kept the cluster lab-"] {
        let made = run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab", "--if-missing"]);
        assert!(made.status.success() && stderr(&made).contains(expected), "{made:?}");
    }
    let (issuer, address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    let (source, url) = (format!("@{}", file.display()), format!("quic://{address}"));
    let join = || run(&["cluster", "join", &source, &url, "--to", member.to_str().unwrap(), "--if-missing"]);
    let missing = join();
    assert!(missing.status.code() == Some(1) && stderr(&missing).contains("token: No such file"), "{missing:?}");
    fs::write(&file, format!("{}\n", token(&authority, &[]))).unwrap();
    assert!(join().status.success());
    // Neither the token nor the authority is needed again.
    drop(issuer);
    fs::remove_file(&file).unwrap();
    let kept = join();
    assert!(kept.status.success() && stderr(&kept).contains("kept the identity of "), "{kept:?}");
    // A damaged identity is no missing one.
    fs::write(member.join("identity.pem"), "nonsense").unwrap();
    let damaged = join();
    assert!(damaged.status.code() == Some(1) && stderr(&damaged).contains("is damaged"), "{damaged:?}");
}

/// Runs for longer than the life of the first certificates, in separate processes.
#[test]
fn a_member_is_renewed_while_it_serves_its_callers() {
    let directory = directory();
    let path_of = |name: &str| directory.join(name);
    let authority = path_of("authority");
    assert!(run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]).status.success());
    let (first, first_address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    let joined = join(&token(&authority, &["--life", "15s"]), &first_address, &path_of("member"), "member");
    assert!(joined.status.success(), "{joined:?}");
    let start = Instant::now();
    let (second, second_address) = serve(&path_of("member"), &["--quic", "127.0.0.1:0", "--join", &first_address]);
    let joined = join(&token(&authority, &["--role", "client"]), &first_address, &path_of("desk"), "desk");
    assert!(joined.status.success(), "{joined:?}");
    while start.elapsed() < Duration::from_secs(17) {
        let output = call(&second_address, &path_of("desk"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let counter = |server: &Server, name: &str| {
        let page = server.request("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text", b"").body;
        let start = format!("callboard_net_{name} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<u64>().unwrap()
    };
    assert!(counter(&second, "certificate_renewals_total") > 0);
    assert!(counter(&first, "members_renewed_total") > 0);
    // Each validates the other's new certificate against the authority.
    assert_eq!((counter(&first, "peers_connected"), counter(&second, "peers_connected")), (1, 1));
}

/// The system takes no byte of the process for a file, as on a full disk, for longer than its certificate lives.
#[cfg(target_os = "linux")]
#[test]
fn a_member_whose_disk_is_full_goes_on_with_a_new_certificate_and_saves_it_later() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let directory = directory();
    let path_of = |name: &str| directory.join(name);
    let authority = path_of("authority");
    assert!(run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]).status.success());
    let (_first, first_address) = serve(&authority, &["--quic", "127.0.0.1:0"]);
    for (name, args) in [("member", &["--life", "15s"][..]), ("desk", &["--role", "client"])] {
        let joined = join(&token(&authority, args), &first_address, &path_of(name), name);
        assert!(joined.status.success(), "{joined:?}");
    }
    let start = Instant::now();
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "ulimit -S -f 0; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_callboard"),
        "serve",
        "examples/digits",
    ]);
    shell.args(["--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--join", &first_address, "--cluster"]);
    shell.arg(path_of("member")).args(["--log", "warn,callboard_identity=info"]);
    let mut member = Server::start(without_settings(shell));
    let address = member.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let line = member.wait_for("the new certificate is used, and cannot be saved");
    assert!(line.contains("identity.pem") && line.contains("File too large"), "{line}");
    while start.elapsed() < Duration::from_secs(17) {
        let output = call(&address, &path_of("desk"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let earlier = fs::read_to_string(path_of("member").join("identity.pem")).unwrap();

    // There is room again.
    let id = Pid::from_raw(member.id().cast_signed());
    prlimit(id, Resource::Fsize, Rlimit { current: None, maximum: None }).expect("its limit can be raised");
    member.wait_for("the certificate is saved, after one that could not be saved");
    assert_ne!(fs::read_to_string(path_of("member").join("identity.pem")).unwrap(), earlier);
    let left: Vec<_> = fs::read_dir(path_of("member")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no draft is left: {left:?}");
    drop(member);
    serve(&path_of("member"), &["--quic", "127.0.0.1:0"]);
}

/// The same at the authority, which then admits nobody, and says why. Its token is as good as before.
#[cfg(target_os = "linux")]
#[test]
fn an_authority_whose_disk_is_full_admits_nobody_and_spends_no_token() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let directory = directory();
    let path_of = |name: &str| directory.join(name);
    let authority = path_of("authority");
    assert!(run(&["cluster", "init", authority.to_str().unwrap(), "--name", "lab"]).status.success());
    let single_use = token(&authority, &[]);
    let names = |part: &str| {
        let entries = fs::read_dir(authority.join(part)).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = names("tokens");
    let full = |args: &[&str]| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "trap '' XFSZ; ulimit -S -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_callboard")])
            .args(args);
        without_settings(shell)
    };
    let directory_of_it = authority.to_str().unwrap();
    // A new token.
    let (line, code) = failure(full(&["cluster", "token", directory_of_it]));
    assert!(code == 1 && line.contains("tokens/") && line.contains("File too large"), "{line}");
    assert_eq!(names("tokens"), before);
    // A new member.
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--cluster"];
    let mut server = Server::start(full(&[&args[..], &[directory_of_it]].concat()));
    let address = server.wait_for("listening on quic://").split(' ').next().unwrap().to_owned();
    let refused = join(&single_use, &address, &path_of("member"), "member");
    assert!(!refused.status.success() && !path_of("member").join("identity.pem").exists(), "{refused:?}");
    assert!(stderr(&refused).contains("the authority failed; its own log says why"), "{refused:?}");
    let line = server.wait_for("could not issue a certificate");
    assert!(line.contains("members/") && line.contains("File too large"), "{line}");
    assert_eq!((names("tokens"), names("members")), (before.clone(), Vec::new()));
    // There is room again.
    let id = Pid::from_raw(server.id().cast_signed());
    prlimit(id, Resource::Fsize, Rlimit { current: None, maximum: None }).expect("its limit can be raised");
    let joined = join(&single_use, &address, &path_of("member"), "member");
    assert!(joined.status.success(), "{joined:?}");
    assert_eq!((names("tokens").len(), names("members")), (before.len() + 1, vec!["member".to_owned()]));
}

#[test]
fn an_error_of_cluster_is_one_line() {
    let directory = directory();
    let authority = directory.join("authority");
    let fail =
        |args: &[&str]| failure(callboard(args.iter().map(|arg| arg.replace("DIR", authority.to_str().unwrap()))));
    let (line, code) = fail(&["cluster", "init", "DIR", "--name", "No Name"]);
    assert!(code == 1 && line.contains("`No Name` is not a name: expected up to 40 of a-z, 0-9 and -"), "{line}");
    let (line, code) = fail(&["cluster", "token", "DIR"]);
    assert!(code == 1 && line.contains("holds no authority"), "{line}");
    assert!(run(&["cluster", "init", authority.to_str().unwrap()]).status.success());
    let (line, code) = fail(&["cluster", "init", "DIR"]);
    assert!(code == 1 && line.contains("is there already"), "{line}");
    let (line, code) = fail(&["cluster", "token", "DIR", "--role", "king"]);
    assert!(code == 2 && line.contains("expected `node`, `client` or `operator`"), "{line}");
    let (line, code) = fail(&["cluster", "token", "DIR", "--life", "100000h"]);
    assert!(code == 1 && line.contains("the life of a certificate may be from a second to 90 days"), "{line}");
}
