//! A cluster of real processes whose root is on no node: any issuer renews any member, and one of them may die.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::nodes::{Identities, Member, file_with, wait_until};
use crate::support::{callboard, directory, run};

const ANY: &str = "127.0.0.1:0";

/// The output of a command that succeeds.
fn done(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?} {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Two issuers, `one` and `two`, in directories of these names. The root is gone from the machine.
fn cluster() -> (Identities, impl Fn(&str) -> String) {
    let directory = directory();
    let base = directory.clone();
    let path_of = move |name: &str| base.join(name).to_str().unwrap().to_owned();
    done(&["cluster", "init", &path_of("root"), "--name", "lab"]);
    for name in ["one", "two"] {
        let (request, certificate) = (path_of("request"), path_of("certificate"));
        fs::write(&request, done(&["cluster", "issuer", "request", &path_of(name)])).unwrap();
        let signed = done(&["cluster", "issuer", "sign", &path_of("root"), &request, "--name", name]);
        fs::write(&certificate, signed).unwrap();
        done(&["cluster", "issuer", "install", &path_of(name), &certificate]);
    }
    fs::remove_dir_all(path_of("root")).unwrap();
    (Identities::Cluster(directory), path_of)
}

fn join(issuer: &str, at: &Member, to: &str, args: &[&str]) {
    let token = done(&[["cluster", "token", issuer].as_slice(), args].concat());
    let url = format!("quic://{}", at.quic);
    let name = Path::new(to).file_name().unwrap().to_str().unwrap();
    done(&["cluster", "join", token.trim(), &url, "--to", to, "--name", name]);
}

#[test]
fn a_member_renews_at_another_issuer_when_its_first_one_is_killed_and_is_removed_there() {
    let (identities, path_of) = cluster();
    let start =
        |name: &str, join: &[&str]| Member::start(identities.command(name, &file_with(&[name], &[]), ANY, join));
    let one = start("one", &[]);
    let two = start("two", &[&one.quic]);
    join(&path_of("one"), &one, &path_of("third"), &["--life", "5s"]);
    join(&path_of("one"), &one, &path_of("fourth"), &[]);
    let third = start("third", &[&one.quic]);
    let fourth = start("fourth", &[&one.quic]);
    [&one, &two, &third, &fourth].iter().for_each(|node| node.http.wait_for_members(3));
    one.server.signal("KILL");
    let before = third.http.metric("callboard_net_certificate_renewals_total");
    // Three more certificates of five seconds, by the other issuer, after the last one of the first.
    wait_until(|| match third.http.metric("callboard_net_certificate_renewals_total") - before {
        renewed if renewed > 3 => Ok(()),
        renewed => Err(format!("{renewed} renewals since the first issuer was killed")),
    });
    assert!(two.http.metric("callboard_net_members_renewed_total") >= 3);
    third.http.wait_for_members(2);

    // It has joined at the first issuer. The second one knows and removes it, and each node hears of that.
    let members = done(&["cluster", "members", &path_of("two")]);
    let names: Vec<&str> = members.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["fourth", "one", "third"]);
    let removed = Instant::now();
    done(&["cluster", "remove", &path_of("two"), "third"]);
    for node in [&two, &fourth] {
        wait_until(|| match node.http.metric("callboard_net_peers_connected") {
            1 => Ok(()),
            peers => Err(format!("{peers} peers")),
        });
    }
    assert!(removed.elapsed() < Duration::from_secs(5), "{:?}", removed.elapsed());
}

/// The certificates move through pipes; a wrong one is refused.
#[test]
fn an_issuer_is_renewed_with_its_own_key_only() {
    let directory = directory();
    let path_of = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    done(&["cluster", "init", &path_of("root")]);
    let piped = |args: &[&str], input: &str| {
        let mut command = callboard(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let sign = ["cluster", "issuer", "sign", &path_of("root"), "--name", "left", "--life"];
    done(&["cluster", "issuer", "request", &path_of("left")]);
    let refused = run(&["cluster", "token", &path_of("left")]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("have its request signed"), "{refused:?}");
    for life in ["1h", "30d"] {
        // Signatures differ, the key does not.
        let request = done(&["cluster", "issuer", "request", &path_of("left")]);
        let signed = piped(&[sign.as_slice(), &[life]].concat(), &request);
        let said = String::from_utf8_lossy(&signed.stderr).into_owned();
        assert!(signed.status.success() && said.contains("left (") && said.contains("issues certificates"), "{said}");
        let chain = String::from_utf8(signed.stdout).unwrap();
        assert_eq!(chain.matches("BEGIN CERTIFICATE").count(), 2);
        let installed = piped(&["cluster", "issuer", "install", &path_of("left")], &chain);
        assert!(installed.status.success(), "{installed:?}");
        done(&["cluster", "issuer", "request", &path_of("right")]);
        let refused = piped(&["cluster", "issuer", "install", &path_of("right")], &chain);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains("not the certificate of the key"), "{said}");
    }
    assert!(done(&["cluster", "token", &path_of("left")]).starts_with("cbt1-"));
    // Its own end is told before.
    let line = || {
        let output = run(&["doctor", "examples/digits", "--http", "127.0.0.1:0", "--cluster", &path_of("left")]);
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().find(|line| line.contains("the issuer left")).unwrap_or_else(|| panic!("{lines}")).to_owned()
    };
    assert_eq!(line(), "ok: the certificate of the issuer left is valid for 30.0 days");
    let request = done(&["cluster", "issuer", "request", &path_of("left")]);
    let signed = piped(&[sign.as_slice(), &["3s"]].concat(), &request);
    let installed =
        piped(&["cluster", "issuer", "install", &path_of("left")], &String::from_utf8(signed.stdout).unwrap());
    assert!(installed.status.success(), "{installed:?}");
    wait_until(|| if line().starts_with("problem: ") { Ok(()) } else { Err(line()) });
}
