//! `call`, `bench` and `status` over https: against a real `serve --tls-certificate`, with a certificate made for the
//! test.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Server, callboard, certificate, digits_over_https, directory, failure};

const KEY: &str = "a-key-that-nobody-guesses";

fn run(args: &[&str], trusted: &Path) -> Output {
    callboard(args).arg("--ca-file").arg(trusted).output().unwrap()
}

#[test]
fn a_call_over_https_is_answered_on_both_protocols() {
    let pair = certificate("127.0.0.1");
    let (_server, url) = digits_over_https(&pair, &[]);
    for args in [&[][..], &["--http2"]] {
        let call = ["call", &url, "/digits", "-F", "image=@examples/digits/seven.png"];
        let output = run(&[&call[..], args].concat(), &pair.0);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["label"], "7", "{reply}");
    }
}

#[test]
fn a_load_over_https_is_counted_like_any_other() {
    let pair = certificate("127.0.0.1");
    let (_server, url) = digits_over_https(&pair, &[]);
    for (protocol, args) in [("HTTP/1.1", &["-c", "2"][..]), ("HTTP/2", &["-c", "1", "--http2", "--streams", "2"])] {
        let bench = ["bench", &url, "/livez", "-n", "20", "-d", "60s", "--warm-up", "0s", "--format", "json"];
        let output = run(&[&bench[..], args].concat(), &pair.0);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["target"]["statuses"], json!({ "200": 20 }), "{report}");
        assert_eq!(report["target"]["protocol"], protocol, "{report}");
        assert_eq!(report["target"]["url"], format!("{url}/livez"), "{report}");
    }
}

#[test]
fn the_status_of_a_node_is_served_over_https() {
    let keys = directory().join("keys");
    fs::write(&keys, format!("operator {KEY}\n")).unwrap();
    let pair = certificate("127.0.0.1");
    let (mut server, _) =
        digits_over_https(&pair, &["--admin", "0.0.0.0:0", "--admin-api-keys", keys.to_str().unwrap()]);
    let admin = server.wait_for("admin on ");
    let port = admin.rsplit(':').next().unwrap();
    let header = format!("authorization: Bearer {KEY}");
    let output = run(&["status", &format!("https://127.0.0.1:{port}"), "-H", &header], &pair.0);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(", ready, up "), "{output:?}");
}

/// OpenSSL reads the CA certificates of the system from the same variables.
#[test]
fn without_a_file_the_authorities_of_the_system_are_trusted() {
    let pair = certificate("127.0.0.1");
    let (mut server, url) = digits_over_https(&pair, &[]);
    let call = |variable: &str, path: &Path| {
        let mut command = callboard(["call", &url, "/livez"]);
        command.env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE").env(variable, path);
        command
    };
    let output = call("SSL_CERT_FILE", &pair.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let foreign = certificate("127.0.0.1");
    let (line, code) = failure(call("SSL_CERT_FILE", &foreign.0));
    assert!(code == 1 && line.contains("TLS handshake with 127.0.0.1:"), "{line}");
    let (line, code) = failure(call("SSL_CERT_DIR", &directory()));
    assert_eq!(code, 2);
    assert!(line.contains(&format!("{url}: this system has no trusted authority: ")), "{line}");
    assert!(line.ends_with("; --ca-file PEM names some"), "{line}");

    // Collectors of spans are verified like other servers: this one does not know the path, as the log shows.
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none", "--otlp-endpoint", &url];
    let mut command = callboard(args);
    command.env_remove("SSL_CERT_DIR").env("SSL_CERT_FILE", &pair.0);
    let traced = Server::start(command);
    traced.request("POST /digits HTTP/1.1\r\ncontent-type: application/json", b"{}");
    server.wait_for("path=\"/v1/traces\"");
}

#[test]
fn an_untrusted_server_gets_no_request() {
    let pair = certificate("127.0.0.1");
    let (_server, url) = digits_over_https(&pair, &[]);
    // A foreign authority, and the right authority for another name.
    let (foreign, misnamed) = (certificate("127.0.0.1"), certificate("localhost"));
    let (_server, other) = digits_over_https(&misnamed, &[]);
    for (url, trusted) in [(&url, &foreign.0), (&other, &misnamed.0)] {
        let mut command = callboard(["call", url, "/livez"]);
        command.arg("--ca-file").arg(trusted);
        let (line, code) = failure(command);
        assert_eq!(code, 1);
        assert!(line.contains("TLS handshake with 127.0.0.1:") && line.contains("certificate"), "{line}");
    }
}

/// Tests each protocol with both mistakes.
#[test]
fn the_error_for_a_wrong_scheme_names_the_right_one() {
    let pair = certificate("127.0.0.1");
    let (secure, _) = digits_over_https(&pair, &[]);
    let plain = Server::digits(&[]);
    for options in [&[][..], &["--http2"]] {
        let url = format!("http://{}", secure.address);
        let (line, code) = failure(callboard([&["call", &url, "/livez"], options].concat()));
        let expected = format!("callboard: {url}/livez: {0} speaks TLS only: its URL is https://{0}", secure.address);
        assert_eq!((line, code), (expected, 1));

        let url = format!("https://{}", plain.address);
        let mut command = callboard([&["call", &url, "/livez"], options].concat());
        command.arg("--ca-file").arg(&pair.0);
        let expected = format!("callboard: {url}/livez: {0} does not speak TLS: its URL is http://{0}", plain.address);
        assert_eq!(failure(command), (expected, 1));
    }
}

#[test]
fn a_file_without_authorities_is_a_command_line_error() {
    let call = ["call", "https://127.0.0.1:1", "/livez", "--ca-file"];
    let (line, code) = failure(callboard(call.iter().chain(&["README.md"])));
    assert_eq!((code, line.contains("it has no certificate of an authority")), (2, true), "{line}");
    let (line, code) = failure(callboard(call.iter().chain(&["nowhere.pem"])));
    assert_eq!((code, line.contains("nowhere.pem: ")), (2, true), "{line}");
    let (line, code) = failure(callboard(["call", "http://127.0.0.1:1", "/livez", "--ca-file", "README.md"]));
    assert_eq!((code, line.contains("certificates are shown over https only")), (2, true), "{line}");
}
