//! Processes beside the stages, from a configuration file: their start, their crashes, and what is left of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::{Server, TEST_TIMEOUT, callboard, directory_with, failure};

const STAGE: &str = "\n[[stage]]\nname = \"x\"\nkind = \"labels\"\n[[route]]\npath = \"/x\"\nstages = \"x\"\n";

/// A directory whose one process is this script.
fn with_script(script: &str, keys: &str) -> PathBuf {
    let directory = directory_with(&format!(
        "[[process]]\nname = \"cache\"\ncommand = [\"sh\", \"cache.sh\"]\nready = {{ line = \"cache is up\" }}\n{keys}{STAGE}"
    ));
    fs::write(directory.join("cache.sh"), script).unwrap();
    directory
}

fn serve(directory: &Path) -> Server {
    let directory = directory.to_str().unwrap();
    Server::start(callboard(["serve", directory, "--http", "127.0.0.1:0", "--log", "info"]))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}

/// Whether the process whose number this file has runs: a zombie does not.
fn runs(file: &Path) -> bool {
    let pid = fs::read_to_string(file).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|status| !status.contains(") Z "))
}

/// The helper and its own child, which do not listen to a request to end.
const STUBBORN: &str = "trap '' TERM\necho $$ > pid\nsleep 1000 & echo $! > child\necho cache is up >&2\nwait; wait\n";

#[test]
fn a_node_that_ends_or_is_killed_leaves_no_process_behind() {
    let directory = with_script(STUBBORN, "stop_timeout = \"100ms\"\n");
    for signal in ["TERM", "INT", "KILL"] {
        let mut server = serve(&directory);
        assert!(server.stderr_lines.iter().any(|line| line.contains("cache is up process=\"cache\"")));
        assert_eq!(server.request("GET /readyz HTTP/1.1", b"").status, 200);
        let files = ["pid", "child"].map(|name| directory.join(name));
        assert!(files.iter().all(|file| runs(file)), "{signal}");
        server.signal(signal);
        let code = server.wait();
        assert_eq!(code, if signal == "KILL" { None } else { Some(0) }, "{:#?}", server.stderr_lines);
        until("nothing is left", || !files.iter().any(|file| runs(file)));
    }
}

#[test]
fn a_process_is_asked_to_end_and_ends_after_the_stages() {
    let script = "trap 'echo it cleans up; exit 0' INT\necho cache is up\nwhile :; do sleep 0.02; done\n";
    let mut server = serve(&with_script(script, "stop_signal = \"SIGINT\"\n"));
    server.signal("TERM");
    server.wait_for("it cleans up");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
}

#[test]
fn a_process_that_dies_is_told_and_started_again() {
    let script = "echo x >> starts\nif [ $(wc -l < starts) -gt 1 ]; then while [ ! -e go ]; do sleep 0.02; done; fi\n\
                  echo cache is up\nwhile [ ! -e die$(wc -l < starts | tr -d ' ') ]; do sleep 0.02; done\nkill -SEGV $$\n";
    let directory = with_script(script, "");
    let mut server = serve(&directory);
    let ready = |server: &Server| server.request("GET /readyz HTTP/1.1", b"");
    fs::write(directory.join("die1"), "").unwrap();
    until("it is not ready", || ready(&server).status == 503);
    let answer = ready(&server);
    assert!(answer.body.contains("`cache` is restarting: the process was killed by signal 11 (SIGSEGV)"), "{answer:?}");
    fs::write(directory.join("go"), "").unwrap();
    until("it is ready again", || ready(&server).status == 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0), "{:#?}", server.stderr_lines);
    assert!(server.stderr_lines.iter().any(|line| line.contains("SIGSEGV")), "{:#?}", server.stderr_lines);
}

#[test]
fn a_start_fails_with_the_last_lines_of_a_process() {
    let directory = with_script("echo one\necho two\nexit 3\n", "");
    let output = callboard(["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = "actor `cache` did not start: the process exited with code 3; its last lines: one | two";
    assert!(stderr.lines().last().unwrap().contains(expected), "{stderr}");
    assert_eq!(output.status.code(), Some(1));

    let missing = directory_with(&format!(
        "[[process]]\nname = \"cache\"\ncommand = [\"./no-such\"]\nready = {{ tcp = \"127.0.0.1:1\" }}{STAGE}"
    ));
    let output = callboard(["serve", missing.to_str().unwrap(), "--http", "127.0.0.1:0"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot be started: No such file or directory"), "{stderr}");
}

#[test]
fn check_and_explain_name_the_processes() {
    let directory = with_script("echo cache is up; exec sleep 1000", "");
    let output = callboard(["check", directory.to_str().unwrap()]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("process cache: ready\n"), "{stdout}");
    assert_eq!(output.status.code(), Some(0));
    let output = callboard(["serve", directory.to_str().unwrap(), "--explain"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("\nprocess cache\n  command  [\"sh\", \"cache.sh\"]"), "{stdout}");
    let (error, code) =
        failure(callboard(["check", directory_with(&format!("[[process]]\nname = \"a\"{STAGE}")).to_str().unwrap()]));
    assert!(error.contains("process `a`: `command` is missing"), "{error}");
    assert_eq!(code, 2);
}

/// The row is there without a setting, which is what an operator looks for when a child was ended.
#[test]
fn explain_shows_the_memory_limit_of_children_also_where_it_is_the_default() {
    let limit_of = |keys: &str| {
        let stage = format!("[[stage]]\nname = \"x\"\nkind = \"process\"\ncommand = [\"worker\"]\n{keys}\n");
        let directory = directory_with(&format!("{stage}[[route]]\npath = \"/x\"\nstages = \"x\"\n"));
        let output = callboard(["serve", directory.to_str().unwrap(), "--explain"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let rows: Vec<String> = rows.filter(|row| row.starts_with("memory_limit ")).collect();
        assert_eq!(rows.len(), 1, "{text}");
        rows[0].clone()
    };
    let default = |children: usize| {
        let bytes = callboard::process::default_memory_limit(children).unwrap();
        let (mebibytes, unit) = if bytes.is_multiple_of(1 << 30) { (bytes >> 30, "GiB") } else { (bytes >> 20, "MiB") };
        format!("memory_limit {mebibytes}{unit} (a share of this machine's memory) default")
    };
    assert_eq!(limit_of(""), default(1));
    assert_eq!(limit_of("replicas = 3"), default(3));
    assert_eq!(limit_of("replicas = 2\nspare = true"), default(3), "a spare has a share, too");
    for set in ["\"300MiB\"", "\"none\""] {
        assert_eq!(limit_of(&format!("memory_limit = {set}")), format!("memory_limit {set} line 5"));
    }
}

#[test]
fn what_a_process_prints_cannot_move_the_cursor_or_turn_the_text_of_the_log() {
    // Overrides the direction, begins a control sequence in two ways, and goes back to the start of the line.
    let script = "printf 'cache is up \\342\\200\\256 \\302\\233 \\033[2J \\r ours\\n'\nwhile :; do sleep 0.02; done\n";
    let directory = with_script(script, "");
    for (format, escaped) in [
        ("text", "cache is up \\u{202e} \\u{9b} \\x1b[2J \\r ours"),
        ("json", "cache is up \\u202e \\u009b \\u001b[2J \\r ours"),
    ] {
        let args = ["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0", "--log", "info"];
        let server = Server::start(callboard(args.iter().chain(&["--log-format", format])));
        assert!(server.stderr_lines.iter().any(|line| line.contains(escaped)), "{:#?}", server.stderr_lines);
    }
}

/// An interpreter, and a helper, that write down their environments. The interpreter describes a service, and serves
/// nothing.
const SPIES: &str = r#"
[http]
api_keys = "env:OUR_KEYS"
[actors]
store = "env:OUR_STORE"
[[process]]
name = "spy"
command = ["sh", "spy.sh", "-m", "helper"]
ready = { file = "helper.env" }
env = { CALLBOARD_GIVEN = "to the helper", OUR_KEYS = "its own" }
[[stage]]
name = "x"
kind = "python"
app = "app.py:x"
python = "./spy.sh"
[[route]]
path = "/x"
stages = "x"
"#;
const SPY: &str = r#"#!/bin/sh
env > $2.env.part && mv $2.env.part $2.env
case $2 in
callboard.describe) echo '{"services": [{"target": "app.py:x", "route": "/x", "input": {}, "output": {}}]}' ;;
helper) while :; do sleep 0.02; done ;;
*) exit 3 ;;
esac
"#;

#[test]
fn no_child_gets_the_nodes_secrets_unless_its_own_settings_give_them() {
    let directory = directory_with(SPIES);
    fs::write(directory.join("app.py"), "").unwrap();
    fs::write(directory.join("spy.sh"), SPY).unwrap();
    fs::set_permissions(directory.join("spy.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    for verb in ["serve", "prepare", "doctor"] {
        let mut command = callboard([verb, directory.to_str().unwrap()]);
        command.envs([
            ("OUR_KEYS", "web SECRET-0123456789abcdef"),
            ("ADMIN_KEYS", "web SECRET-0123456789abcdef"),
            ("OUR_STORE", "postgres://web:SECRET@127.0.0.1:1/states"),
            ("CALLBOARD_ADMIN_API_KEYS", "env:ADMIN_KEYS"),
            ("CALLBOARD_HTTP", "127.0.0.1:0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=SECRET"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=SECRET"),
            ("ORDINARY", "to all"),
        ]);
        assert_ne!(command.output().unwrap().status.code(), Some(0), "the interpreter serves nothing");
    }
    for child in ["helper", "describe", "fork_server", "worker", "prepare", "doctor"] {
        let file = if child == "helper" { "helper.env".to_owned() } else { format!("callboard.{child}.env") };
        let Ok(variables) = fs::read_to_string(directory.join(file)) else {
            // Children are started by the fork server's command where there is one.
            assert_eq!(child, "worker");
            continue;
        };
        assert!(variables.contains("ORDINARY=to all"), "{child}: {variables}");
        assert!(!variables.contains("SECRET") && !variables.contains("CALLBOARD_HTTP"), "{child}: {variables}");
        let given = variables.contains("CALLBOARD_GIVEN=to the helper") && variables.contains("OUR_KEYS=its own");
        assert_eq!(given, child == "helper", "{child}: {variables}");
    }
}
