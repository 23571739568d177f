//! Every mistake gives one helpful line on stderr and an exit code that names its origin.

use std::fs;
use std::net::{TcpListener, UdpSocket};

use crate::support::{callboard, directory, directory_with, failure, run};

const ONE_MODEL: &str = "\
[[stage]]
name = \"model\"
kind = \"onnx\"
model = \"model.onnx\"

[[route]]
path = \"/model\"
stages = [\"model\"]
";

#[test]
fn a_wrong_command_line_ends_with_code_2() {
    let cases: [(&[&str], &str); 7] = [
        (&["serve", "no/such/place"], "callboard: no/such/place: there is no such file or directory"),
        (
            &["serve", "docs"],
            "callboard: docs: there is no callboard.toml in this directory, and no model such as NAME/1/model.onnx or NAME.onnx; \
             a model or a Python file is served without one: callboard serve model.onnx, callboard serve app.py",
        ),
        (&["serve", "Cargo.lock"], "callboard: Cargo.lock: expected a directory, a .toml, .py or .onnx file"),
        (
            &["serve", "examples/digits", "--drain", "soon"],
            "callboard: --drain: expected a duration from 0s to 1h, such as \"250ms\" or \"30s\", found \"soon\"",
        ),
        (
            &["check", "examples/digits", "--http", "8000"],
            "callboard: --http: expected an IP address and port, such as \"127.0.0.1:8000\" (port 0: any free one), \
             found \"8000\"",
        ),
        (
            &["serve", "--model-control", "on", "examples/digits"],
            "callboard: --model-control: expected true or false, found \"on\"",
        ),
        (
            &["serve", "examples/digits", "--tls-key", "key.pem"],
            "callboard: http.tls_certificate = none (default) does not go with http.tls_key = key.pem (--tls-key): HTTPS \
             needs both",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(failure(callboard(args)), (expected.to_owned(), 2), "{args:?}");
    }
}

#[test]
fn an_unknown_flag_names_the_nearest_one() {
    let expected = "callboard: unexpected argument '--drian' found; a similar argument exists: '--drain'";
    assert_eq!(failure(callboard(["serve", "--drian", "1s"])), (expected.to_owned(), 2));
}

#[test]
fn a_flag_of_another_server_and_an_invalid_choice_get_a_hint() {
    let expected = "callboard: unexpected argument '--port' found; `--http 127.0.0.1:8000` sets address and port";
    assert_eq!(failure(callboard(["serve", "examples/digits", "--port", "80"])), (expected.to_owned(), 2));
    let expected =
        "callboard: invalid value 'js' for '--lang <LANGUAGE>'; possible values: curl, python, rust, openai, grpc, mcp";
    assert_eq!(failure(callboard(["examples", "examples/digits", "--lang", "js"])), (expected.to_owned(), 2));
}

#[test]
fn a_yes_or_no_flag_may_stand_alone_before_the_target_and_the_help_says_so() {
    for (words, value) in [(&["--model-control"][..], "true"), (&["--model-control", "false"], "false"), (&[], "false")]
    {
        let output =
            callboard(["serve", "--explain"].iter().chain(words).chain(&["examples/digits"])).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let row = shown.lines().find(|line| line.contains("http.model_control")).unwrap_or_default();
        assert_eq!(row.split_whitespace().nth(1), Some(value), "{shown}");
    }
    let help = String::from_utf8(run(&["serve", "--help"]).stdout).unwrap();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "--model-control [<true|false>] Whether clients may load and unload models [default: false; without \
                    a value: true]";
    assert!(words.contains(expected), "{help}");
}

#[test]
fn an_unknown_variable_names_the_nearest_one() {
    let mut command = callboard(["serve", "examples/digits"]);
    command.env("CALLBOARD_DRIAN", "1s");
    let expected = "callboard: CALLBOARD_DRIAN: unknown environment variable; did you mean `CALLBOARD_DRAIN`?";
    assert_eq!(failure(command), (expected.to_owned(), 2));
}

#[test]
fn a_mistake_in_the_file_names_file_line_and_key() {
    let directory = directory_with(&ONE_MODEL.replace("model = ", "mdoel = "));
    let file = directory.join("callboard.toml");
    let expected =
        format!("callboard: {}:4: stage `model`: unknown key `mdoel`; did you mean `model`?", file.display());
    assert_eq!(failure(callboard(["serve".as_ref(), directory.as_os_str()])), (expected, 2));

    fs::write(&file, "[[stage]\n").unwrap();
    let (line, code) = failure(callboard(["serve".as_ref(), file.as_os_str()]));
    assert_eq!(code, 2);
    assert!(line.starts_with(&format!("callboard: {}:1: ", file.display())), "{line}");
}

#[test]
fn a_missing_model_is_named_with_its_stage() {
    let directory = directory_with(ONE_MODEL);
    let (line, code) = failure(callboard(["serve".as_ref(), directory.as_os_str(), "--http=127.0.0.1:0".as_ref()]));
    assert_eq!(code, 1);
    assert!(line.contains("stage `model`") && line.contains("model.onnx"), "{line}");
    assert!(line.contains("No such file"), "{line}");
}

#[test]
fn an_invalid_model_is_named() {
    let path = directory().join("broken.onnx");
    fs::write(&path, "not a model").unwrap();
    let (line, code) = failure(callboard(["check".as_ref(), path.as_os_str()]));
    assert_eq!(code, 1);
    assert!(line.contains("broken.onnx"), "{line}");
}

#[test]
fn a_port_in_use_is_one_line_that_names_the_flag() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (stream, datagram) = (listener.local_addr().unwrap().to_string(), datagrams.local_addr().unwrap().to_string());
    for (flag, address) in [("--http", &stream), ("--admin", &stream), ("--quic", &datagram)] {
        let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "none", flag, address];
        let mut command = callboard(args);
        command.env("XDG_STATE_HOME", directory());
        let (line, code) = failure(command);
        assert_eq!(code, 1);
        let start = format!("callboard: could not listen on {address}: Address already in use");
        assert!(
            line.starts_with(&start) && line.ends_with(&format!("; {flag} ADDR:PORT chooses another one")),
            "{line}"
        );
    }
}

#[test]
fn a_listener_is_disabled_by_none_or_off() {
    for value in ["none", "off"] {
        let output = run(&["serve", "examples/digits", "--explain", "--admin", value, "--quic", value]);
        let text = String::from_utf8(output.stdout).unwrap();
        let values: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
        for key in ["admin.listen", "quic.listen"] {
            assert!(values.contains(&vec![key, "none"]), "{key}: {text}");
        }
    }
    let (line, _) = failure(callboard(["serve", "examples/digits", "--admin", "no"]));
    assert!(line.starts_with("callboard: --admin: expected \"auto\", \"none\", or an IP address"), "{line}");
}

#[test]
fn every_command_refuses_a_route_on_a_page_of_the_edge_with_its_line() {
    let directory = directory_with(&ONE_MODEL.replace("/model\"", "/metrics\""));
    let file = directory.join("callboard.toml");
    let expected = format!(
        "callboard: {}:7: route `/metrics`: path: `/metrics` cannot be a route: the http edge keeps that path for itself",
        file.display()
    );
    for command in ["serve", "check", "openapi"] {
        let command = callboard([command.as_ref(), directory.as_os_str()]);
        assert_eq!(failure(command), (expected.clone(), 2));
    }
}

#[test]
fn a_port_in_use_is_reported_before_a_missing_model() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let directory = directory_with(ONE_MODEL);
    let command = callboard(["serve".as_ref(), directory.as_os_str(), "--http".as_ref(), address.as_ref()]);
    let (line, code) = failure(command);
    assert_eq!(code, 1);
    assert!(line.starts_with(&format!("callboard: could not listen on {address}")), "{line}");
}

#[test]
fn help_and_version_exit_with_code_0() {
    for args in [["--help"], ["--version"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty());
    }
    assert_eq!(run(&[]).status.code(), Some(2), "a command is required");
}

#[test]
fn an_error_of_a_stage_names_the_line_of_its_value() {
    let directory = directory_with(
        "[[stage]]\nname = \"decode\"\nkind = \"image\"\nwidth = 8\n\n[[route]]\npath = \"/p\"\nstages = [\"decode\"]\n",
    );
    let (line, code) = failure(callboard(["check".as_ref(), directory.as_os_str()]));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("callboard.toml:"), "{line}");
    assert!(line.contains("stage `decode`: width") || line.contains("stage `decode`: height"), "{line}");
}

#[test]
fn a_pipe_is_refused_as_a_file() {
    let pipe = directory().join("pipe.toml");
    let status =
        std::process::Command::new("sh").args(["-c", &format!("mkfifo '{}'", pipe.display())]).status().unwrap();
    assert!(status.success());
    let expected = format!("callboard: {}: not a regular file", pipe.display());
    assert_eq!(failure(callboard(["serve".as_ref(), pipe.as_os_str()])), (expected, 2));
}

#[test]
fn a_split_of_calls_on_a_single_node_is_refused() {
    let directory = directory_with(
        "[[stage]]\nname = \"name\"\nkind = \"labels\"\nnames = [\"a\", \"b\"]\nsplit = { 7 = 1 }\n\n\
         [[route]]\npath = \"/name\"\nstages = \"name\"\n",
    );
    for command in ["check", "serve"] {
        let (line, code) = failure(callboard([command.as_ref(), directory.as_os_str()]));
        let expected = "callboard.toml:5: stage `name`: split: it has no effect on a node without others: neither quic.listen \
                        (--quic) nor quic.join (--join) is set";
        assert!(line.ends_with(expected) && code == 2, "{command}: {line}");
    }
    for flag in ["--quic", "--join"] {
        let args = ["check".as_ref(), directory.as_os_str(), flag.as_ref(), "127.0.0.1:4433".as_ref()];
        let output = callboard(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{flag}: {output:?}");
    }
}

/// A missing bracket is an error of the command line, not of the called function.
#[test]
fn an_argument_with_malformed_json_is_refused() {
    for url in ["http://127.0.0.1:1", "quic://127.0.0.1:1"] {
        let (line, code) = failure(callboard(["call", url, "f", "--arg", "x={\"a\": 1"]));
        assert!(line.starts_with("callboard: --arg: `{\"a\": 1` begins as JSON, but is not valid JSON: "), "{line}");
        assert_eq!(code, 2, "{line}");
    }
}

#[test]
fn a_device_is_refused_as_a_file_of_authorities() {
    let args = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "off"];
    let args = args.iter().chain(&["--otlp-endpoint", "https://127.0.0.1:1", "--otlp-ca-file", "/dev/zero"]);
    assert_eq!(failure(callboard(args)), ("callboard: /dev/zero: not a regular file".to_owned(), 1));
}

/// A node whose keys have no store is not ready, so it does not start.
#[test]
fn a_store_that_cannot_be_reached_by_its_setting_is_known_at_the_start() {
    for (store, expected) in [
        (
            "env:NO_SUCH_VARIABLE_AT_ALL",
            "actors.store: the variable NO_SUCH_VARIABLE_AT_ALL: environment variable not found",
        ),
        ("postgres://ann:secret@db/carts", "\"env:NAME\" for a variable with the connection string"),
    ] {
        for command in ["serve", "mcp"] {
            let (line, _) = failure(callboard([command, "examples/digits", "--actor-store", store]));
            assert!(line.contains(expected), "{command}: {line}");
        }
    }
}
