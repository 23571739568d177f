//! `callboard examples` prints programs. `tests/external/` runs them.

use std::fs;

use serde_json::json;

use crate::support::{callboard, directory, failure, run};

/// The files are example targets of this package, so they compile; `tests/external/` runs them.
#[test]
fn the_rust_programs_equal_the_compiled_examples() {
    for served in ["examples/digits", "examples/graph"] {
        let output = run(&["examples", served, "--lang", "rust"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let compiled = fs::read_to_string(format!("{served}/client.rs")).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), compiled);
    }
}

#[test]
fn every_route_is_called_at_its_configured_address() {
    for (language, call) in
        [("curl", "\ncurl http://127.0.0.1:9"), ("python", "print(call("), ("rust", "call(&origin, ")]
    {
        let output = run(&["examples", "examples/graph", "--lang", language, "--http", "0.0.0.0:9"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let program = String::from_utf8(output.stdout).unwrap();
        assert_eq!(format!("\n{program}").matches(call).count(), 4, "{program}");
        assert!(program.contains("http://127.0.0.1:9") && program.contains("examples/digits/seven.png"), "{program}");
    }
}

/// What `callboard examples examples/digits` prints with these arguments.
fn printed(args: &[&str]) -> String {
    let output = run(&[&["examples", "examples/digits", "--lang"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_route_that_a_client_cannot_call_names_the_setting_that_it_needs() {
    let openai = printed(&["openai"]);
    assert!(
        openai.contains("\n# /digits is no model of OpenAI's API: it needs a task, openai = \"chat\" (or "),
        "{openai}"
    );
    let mcp = printed(&["mcp"]);
    assert!(mcp.contains("\n        # /digits is no tool: it needs mcp = true\n"), "{mcp}");
    assert!(printed(&["mcp", "--mcp"]).contains("        await call(client, \"digits\", "));
    for door in ["openai", "grpc", "mcp"] {
        let off = printed(&[door, "--doors-off", door]);
        let expected = format!("# This node does not answer {door}: the setting http.doors_off names it.");
        assert_eq!(off.lines().next(), Some(expected.as_str()));
        assert!(off.lines().all(|line| line.is_empty() || line.starts_with('#')), "{off}");
    }
}

#[test]
fn a_desktop_host_starts_the_same_target_from_any_directory() {
    let program = printed(&["mcp", "--mcp"]);
    let comment: String = program.lines().skip_while(|line| *line != "# {").map(|line| &line[2..]).collect();
    let host: serde_json::Value = serde_json::from_str(&comment).unwrap();
    let target = std::env::current_dir().unwrap().join("examples/digits").display().to_string();
    let expected = json!({ "command": env!("CARGO_BIN_EXE_callboard"), "args": ["mcp", target, "--mcp=true"] });
    assert_eq!(host, json!({ "mcpServers": { "digits": expected } }));
}

#[test]
fn an_unknown_language_is_an_error_that_names_it() {
    let (line, code) = failure(callboard(["examples", "examples/digits", "--lang", "cobol"]));
    assert_eq!(code, 2);
    assert!(line.contains("cobol"), "{line}");
    let (line, code) = failure(callboard(["examples", "examples/digits"]));
    assert_eq!(code, 2);
    assert!(line.contains("--lang"), "{line}");
}

/// `..` after a symbolic link is a directory of the link's target.
#[test]
fn a_file_next_to_a_symbolic_link_has_a_valid_path() {
    let directory = directory();
    fs::create_dir_all(directory.join("real/served")).unwrap();
    std::os::unix::fs::symlink("real/served", directory.join("link")).unwrap();
    fs::write(directory.join("real/scores.json"), "[0.9, 0.1]").unwrap();
    let toml = "[[stage]]\nname = \"name\"\nkind = \"labels\"\nnames = [\"a\", \"b\"]\n\n\
                [[route]]\npath = \"/name\"\nstages = \"name\"\nexamples = [{ file = \"../scores.json\" }]\n";
    fs::write(directory.join("link/callboard.toml"), toml).unwrap();
    for (served, file) in [("link", "link/../scores.json"), ("real/served", "real/scores.json")] {
        let served = directory.join(served);
        let args = ["examples".as_ref(), served.as_os_str(), "--lang".as_ref(), "curl".as_ref()];
        let output = callboard(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let program = String::from_utf8(output.stdout).unwrap();
        assert!(program.contains(&directory.join(file).display().to_string()), "{program}");
    }
}
