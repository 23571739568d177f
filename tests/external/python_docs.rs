//! The documentation for Python users: what its pages say is done, word by word, and its reference is built. With it
//! the evaluation relay on real nodes.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::process::run;
use crate::python::Python;
use crate::python_apps::{package, python};

fn in_python(python: &Python, arguments: &[&str]) -> String {
    let mut command = Command::new(python.program("python"));
    command.args(["-B", "-u"]).args(arguments);
    command.env("VIRTUAL_ENV", python.environment()).env("PYTHONPATH", package().join("src"));
    run(&mut command).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

fn follow(page: &str) {
    let Some(python) = python() else { return };
    follow_with(&python, page);
}

fn follow_with(python: &Python, page: &str) {
    let printed = in_python(python, &["tests/external/scripts/pages.py", env!("CARGO_BIN_EXE_callboard"), page]);
    if printed.starts_with("skipped") {
        // The line bypasses the capture of the test harness.
        let _ = std::io::stderr().write_all(format!("{printed}\n").as_bytes());
    }
}

#[test]
fn the_readme_can_be_followed() {
    follow("README.md#In Python");
}

#[test]
fn the_guide_can_be_followed() {
    follow("docs/python/guide.md");
}

#[test]
fn the_page_of_the_package_can_be_followed() {
    follow("python/README.md");
}

#[test]
fn the_page_on_evaluation_can_be_followed() {
    follow("docs/python/relay.md");
}

#[test]
fn the_recipes_of_the_cookbook_can_be_followed() {
    let Some(python) = Python::with("cookbook") else { return };
    let pages = fs::read_dir("docs/python/cookbook").unwrap().map(|entry| entry.unwrap().path());
    let recipes: Vec<_> = pages.filter(|page| !page.ends_with("README.md")).collect();
    assert!(recipes.len() >= 12, "{recipes:?}");
    for recipe in recipes {
        follow_with(&python, recipe.to_str().unwrap());
    }
}

#[test]
fn the_page_for_clients_of_triton_can_be_followed() {
    let Some(python) = Python::with("tritonclient") else { return };
    follow_with(&python, "docs/open-inference-protocol.md");
}

#[test]
fn the_page_for_agents_can_be_followed() {
    let Some(python) = Python::with("mcp") else { return };
    follow_with(&python, "docs/mcp.md");
}

#[test]
fn the_page_for_clients_of_openai_can_be_followed() {
    let Some(python) = Python::with("openai") else { return };
    follow_with(&python, "docs/openai.md");
}

#[test]
fn the_page_for_clients_of_grpc_can_be_followed() {
    let Some(python) = Python::with("grpc") else { return };
    follow_with(&python, "docs/grpc.md");
}

#[test]
fn an_evaluation_says_who_is_to_blame() {
    let Some(python) = python() else { return };
    let printed = in_python(&python, &["examples/relay/run.py", env!("CARGO_BIN_EXE_callboard")]);
    assert!(printed.contains("\n2-b,5.0\nday 0 is done\n"), "{printed}");
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("participant: ConnectionLost: the participant's server has gone: "), "{printed}");
}

#[test]
fn each_failure_of_a_participant_has_its_error() {
    let Some(python) = python() else { return };
    let printed = in_python(&python, &["tests/external/scripts/relay.py", env!("CARGO_BIN_EXE_callboard")]);
    assert!(printed.contains("kill: `predict` has crashed: the worker ended: the process was killed"), "{printed}");
    assert!(printed.contains("raise: `predict` has raised: KeyError: 'no model'"), "{printed}");
}

/// A warning is an error.
#[test]
fn the_site_is_built_without_warnings() {
    let Some(python) = Python::with("docs") else { return };
    let site = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-docs");
    let mut mkdocs = Command::new(python.program("mkdocs"));
    mkdocs.args(["build", "--strict", "--quiet", "--config-file", "python/mkdocs.yml", "--site-dir"]).arg(&site);
    let printed = run(&mut mkdocs).unwrap_or_else(|error| panic!("{error}"));
    for page in ["index.html", "python/guide.html", "python/package.html"] {
        assert!(site.join(page).is_file(), "{page} is not on the site\n{printed}");
    }
    let reference = fs::read_to_string(site.join("python/reference.html")).unwrap();
    for id in ["callboard.Client.send", "callboard.service", "callboard.relay.Gateway.run", "callboard.Image.array"] {
        assert!(reference.contains(&format!("id=\"{id}\"")), "{id} is not in the reference\n{printed}");
    }
}
