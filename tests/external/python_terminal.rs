//! What the operator of services in Python reads in the terminal: their output, their errors, and what a start waits
//! for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::python_apps::{answer, command, post, python};
use crate::support::{Server, directory, failure};

const HEAD: &str = "import logging, sys, time, warnings\nimport callboard as cb\n\nprint('at the import')\n\n\n";

const TALKS: &str = "@cb.service\nclass Talks:\n    def setup(self) -> None:\n        print('in setup')\n\n    \
                     def predict(self, x: int) -> int:\n        print('printed', x)\n        \
                     print('to stderr', file=sys.stderr)\n        logging.getLogger('mine').info('logged')\n        \
                     warnings.warn('a warning')\n        return 1 // x\n";

/// The command that serves this code.
fn serving(code: &str, args: &[&str]) -> Option<Command> {
    let app = directory().join("app.py");
    fs::write(&app, code).unwrap();
    let args = [&["serve", app.to_str().unwrap(), "--http", "127.0.0.1:0", "--admin", "none"][..], args].concat();
    Some(command(&python()?, &args))
}

/// The end of the log, without colours.
fn log_of(mut server: Server) -> String {
    server.signal("INT");
    server.wait_for("stopped");
    server.stderr_lines.join("\n")
}

#[test]
fn what_user_code_prints_and_raises_is_in_the_log_by_default() {
    let Some(serving_talks) = serving(&format!("{HEAD}{TALKS}"), &[]) else { return };
    let server = Server::start(serving_talks);
    assert_eq!(answer(&server, "/talks", &json!(1)), (200, json!(1)));
    let (status, problem) = answer(&server, "/talks", &json!(0));
    assert!(status == 500 && problem["message"].as_str().unwrap().starts_with("ZeroDivisionError: "), "{problem}");
    // A developer calls over loopback.
    assert!(problem["remote_trace"].as_str().unwrap().contains("app.py"), "{problem}");
    let log = log_of(server);
    for text in ["at the import", "in setup", "printed 1", "to stderr", "logged", "a warning"] {
        assert!(log.lines().any(|line| line.contains("INFO") && line.contains(text)), "{text}: {log}");
    }
    let line = log.lines().find(|line| line.contains("printed 1")).unwrap();
    assert!(line.contains("stage=\"talks\"") && line.contains("replica=0"), "{line}");
    assert_eq!(log.matches("app.py\", line 17, in predict").count(), 1, "{log}");
}

/// The text of a line without its colours.
fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\x1b[");
    let first = pieces.next().unwrap_or_default();
    pieces.fold(first.to_owned(), |text, piece| text + piece.split_once('m').map_or(piece, |(_, rest)| rest))
}

#[cfg(unix)]
#[test]
fn a_line_of_user_code_at_a_terminal_is_coloured_and_names_its_stage_and_replica() {
    let Some(mut serving_talks) = serving(&format!("{HEAD}{TALKS}"), &[]) else { return };
    serving_talks.env_remove("NO_COLOR");
    let mut server = Server::start_at_a_terminal(serving_talks);
    assert_eq!(answer(&server, "/talks", &json!(1)), (200, json!(1)));
    assert_eq!(answer(&server, "/talks", &json!(0)).0, 500);
    for (text, level) in
        [("printed 1", "\x1b[32m INFO\x1b[0m"), ("Traceback (most recent call last)", "\x1b[33m WARN\x1b[0m")]
    {
        server.wait_until_printed(text);
        let line = server.stderr_lines.iter().find(|line| line.contains(text)).unwrap();
        assert!(line.contains(level), "{line:?}");
    }
    let line = server.stderr_lines.iter().find(|line| line.contains("printed 1")).unwrap();
    let plain = without_colours(line);
    assert!(!plain.contains('\x1b') && plain.ends_with(r#": printed 1 stage="talks" replica=0"#), "{plain:?}");
}

#[test]
fn a_filter_that_is_set_is_obeyed_and_traces_are_for_the_log_if_it_is_said() {
    let quiet = ["--log", "warn", "--error-traces", "log"];
    let Some(serving_talks) = serving(&format!("{HEAD}{TALKS}"), &quiet) else { return };
    let server = Server::start(serving_talks);
    let refused = post(&server, "/talks", &json!(0));
    assert!(refused.status == 500 && !refused.body.contains("remote_trace"), "{}", refused.body);
    let log = log_of(server);
    assert!(!log.contains("printed") && log.matches("app.py\", line 17, in predict").count() == 1, "{log}");
}

#[test]
fn a_long_start_says_what_it_waits_for_and_a_failed_one_has_one_record_with_its_traceback() {
    let code = "@cb.service(start_timeout='30s')\nclass Slow:\n    def setup(self) -> None:\n        \
                time.sleep(7)\n        \
                raise RuntimeError('no weights')\n\n    def predict(self, x: int) -> int:\n        return x\n";
    let Some(mut serving_slow) = serving(&format!("{HEAD}{code}"), &["--log-format", "json"]) else { return };
    let output = serving_slow.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let waits = log.lines().find(|line| line.contains("not ready after")).unwrap_or_else(|| panic!("{log}"));
    assert!(waits.contains("\"stage\":\"slow\"") && waits.contains("\"replica\":0"), "{waits}");
    assert!(waits.contains(": setup\""), "{waits}");
    let traces: Vec<&str> = log.lines().filter(|line| line.contains("Traceback (most recent call last)")).collect();
    assert_eq!(traces.len(), 1, "{log}");
    assert!(traces[0].contains("in setup") && traces[0].contains("RuntimeError: no weights"), "{log}");

    let late = code.replace("30s", "10s").replace("sleep(7)", "sleep(600)");
    let Some(mut serving_late) = serving(&format!("{HEAD}{late}"), &[]) else { return };
    let message = String::from_utf8(serving_late.output().unwrap().stderr).unwrap();
    assert!(message.contains("it was not ready within 10s (start_timeout); it was setup"), "{message}");
}

/// All descendants of a process.
fn descendants(pid: u32) -> usize {
    let of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    // A child belongs to the thread that has started it.
    let children = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let children: Vec<u32> = children
        .chain([of(pid)])
        .flat_map(|line| line.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    let children: std::collections::BTreeSet<u32> = children.into_iter().collect();
    children.len() + children.into_iter().map(descendants).sum::<usize>()
}

/// Far more than there are cores: as many as a file of helpers has.
const FUNCTIONS: usize = 44;

/// The cost of a start in counts, which no busy machine changes: a second import tells what the file serves, and one
/// fork server makes all replicas.
#[test]
fn the_functions_of_a_file_share_one_import() {
    let functions: String = (0..FUNCTIONS)
        .map(|number| format!("\n\n@cb.function\ndef f{number}(x: int) -> int:\n    return x + {number}\n"))
        .collect();
    let code =
        format!("import callboard as cb\n\nwith open('imports', 'a') as imports:\n    imports.write('x')\n{functions}");
    let app = directory().join("app.py");
    fs::write(&app, code).unwrap();
    let Some(python) = python() else { return };
    let server = Server::start(command(&python, &["serve", app.to_str().unwrap(), "--http", "127.0.0.1:0"]));
    for number in [0, FUNCTIONS - 1] {
        assert_eq!(answer(&server, &format!("/f{number}"), &json!(1)), (200, json!(1 + number)));
    }
    assert_eq!(fs::read_to_string(app.with_file_name("imports")).unwrap(), "xx", "one mark for each import");
    // The node itself is the second beyond the replicas.
    assert_eq!(descendants(server.id()), FUNCTIONS + 1);
}

fn package() -> PathBuf {
    let root = directory();
    fs::create_dir(root.join("shop")).unwrap();
    for (name, text) in [
        ("__init__.py", ""),
        ("model.py", "K = 5\n"),
        (
            "app.py",
            "import callboard as cb\nfrom .model import K\n\n@cb.function\ndef add(a: int) -> int:\n    return a + K\n",
        ),
    ] {
        fs::write(root.join("shop").join(name), text).unwrap();
    }
    root
}

#[test]
fn a_file_of_a_package_and_a_module_are_targets_of_all_commands() {
    let Some(python) = python() else { return };
    let root = package();
    fs::write(
        root.join("callboard.toml"),
        "[[stage]]\nname = \"add\"\nkind = \"python\"\napp = \"shop.app:add\"\n[[route]]\npath = \"/add\"\nstages = \"add\"",
    )
    .unwrap();
    let there = |args: &[&str], place: &Path| {
        let mut command = command(&python, args);
        command.current_dir(place);
        command
    };
    for (target, place) in [
        ("shop/app.py", "."),
        ("shop.app", "."),
        ("shop.app:add", "."),
        ("app.py:add", "shop"),
        ("callboard.toml", "."),
    ] {
        let place = root.join(place);
        for command in ["openapi", "check", "doctor"] {
            let output = there(&[command, target], &place).output().unwrap();
            let is_found = match command {
                // It tells of the machine, too.
                "doctor" => String::from_utf8_lossy(&output.stdout).contains(" finds its 1 module"),
                _ => output.status.success(),
            };
            assert!(is_found, "{command} {target}: {output:?}");
        }
        let server = Server::start(there(&["serve", target, "--http", "127.0.0.1:0"], &place));
        assert_eq!(answer(&server, "/add", &json!(2)), (200, json!(7)), "{target}");
    }
    let (message, code) = failure(there(&["serve", "shop.missing"], &root));
    let expected = "shop.missing: there is no such file or directory, and there is no module 'shop.missing'";
    assert!(code == 2 && message.contains(expected), "{message}");
}
