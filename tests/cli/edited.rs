//! Text files of operators are read alike, whatever editor has saved them: with a byte order mark, with the line ends
//! of Windows, and with blank lines at the end.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::json;

use crate::support::{Server, callboard, certificate, digits_over_https, directory, run};

const KEY: &str = "a-key-that-nobody-guesses";

/// A kind of file, and what a command does with one that was edited.
type Case = (&'static str, fn() -> Output);

const CASES: [Case; 8] = [
    ("the certificate of a node", || call_over_https(0)),
    ("the private key of a node", || call_over_https(1)),
    ("the authority that a caller trusts", || call_over_https(2)),
    ("a join token", join),
    ("the request of an issuer", || install(0)),
    ("the certificate of an issuer", || install(1)),
    ("the API keys of a node", || list_tools(0)),
    ("the API key of a host", || list_tools(1)),
];

#[test]
fn a_file_is_read_alike_whatever_editor_has_saved_it() {
    for (what, read) in CASES {
        let output = read();
        assert!(output.status.success(), "{what}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("\"error\":"), "{what}: {output:?}");
    }
}

/// Saves the file as an editor does.
fn edit(file: &Path) {
    let text = fs::read_to_string(file).unwrap().trim_end().replace('\n', "\r\n");
    fs::write(file, format!("\u{feff}{text}\r\n\r\n")).unwrap();
}

/// A call, for which this one of three files was edited.
fn call_over_https(edited: usize) -> Output {
    let (certificate, key) = certificate("127.0.0.1");
    let authority = directory().join("authority.pem");
    fs::copy(&certificate, &authority).unwrap();
    edit([&certificate, &key, &authority][edited]);
    let (_server, url) = digits_over_https(&(certificate, key), &[]);
    callboard(["call", &url, "/livez", "--ca-file"]).arg(authority).output().unwrap()
}

/// Joins a cluster with a token that an edited file has.
fn join() -> Output {
    let directory = directory();
    let path_of = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (authority, token) = (path_of("authority"), path_of("token"));
    done(&["cluster", "init", &authority, "--name", "lab"]);
    fs::write(&token, done(&["cluster", "token", &authority])).unwrap();
    edit(Path::new(&token));
    let args = ["--cluster", &authority, "--quic", "127.0.0.1:0", "--log", "callboard_net=info"];
    let mut server = Server::digits(&args);
    let address = server.wait_for("listening on quic://");
    let url = format!("quic://{}", address.split(' ').next().unwrap());
    run(&["cluster", "join", &format!("@{token}"), &url, "--to", &path_of("joined"), "--name", "joined"])
}

/// Makes an issuer of two files, of which this one was edited.
fn install(edited: usize) -> Output {
    let directory = directory();
    let path_of = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (root, issuer, request, certificate) =
        (path_of("root"), path_of("issuer"), path_of("request"), path_of("certificate"));
    let edit_if = |is_it: bool, file: &str| {
        if is_it {
            edit(Path::new(file))
        }
    };
    done(&["cluster", "init", &root]);
    fs::write(&request, done(&["cluster", "issuer", "request", &issuer])).unwrap();
    edit_if(edited == 0, &request);
    let signed = run(&["cluster", "issuer", "sign", &root, &request, "--name", "left"]);
    if !signed.status.success() {
        return signed;
    }
    fs::write(&certificate, signed.stdout).unwrap();
    edit_if(edited == 1, &certificate);
    run(&["cluster", "issuer", "install", &issuer, &certificate])
}

/// Lists the tools of a node with its key, where the list of the node or the file of the host was edited.
fn list_tools(edited: usize) -> Output {
    let directory = directory();
    let (keys, key) = (directory.join("keys"), directory.join("key"));
    fs::write(&keys, format!("# who may call\nhost {KEY}\n")).unwrap();
    fs::write(&key, KEY).unwrap();
    edit([&keys, &key][edited]);
    let server = Server::digits(&["--mcp", "--api-keys", keys.to_str().unwrap()]);
    let mut command = callboard(["mcp", "--url", &format!("http://{}", server.address), "--key"]);
    command.arg(key).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut host = command.spawn().unwrap();
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    // The command may have failed, and stdin has no reader then.
    let _ = writeln!(host.stdin.take().unwrap(), "{request}");
    host.wait_with_output().unwrap()
}

/// The output of a command that succeeds.
fn done(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?} {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
