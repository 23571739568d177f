//! The documentation in a real browser without internet: it opens, executes a route, and shows the answer.

use std::path::Path;
use std::process::Command;

use callboard::Server;
use callboard::http::HttpConfig;

use crate::openapi::app;
use crate::process;
use crate::python::Python;
use crate::support;
use crate::tool::CHROMIUM;

/// The names of the program in distributions.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

#[test]
fn the_documentation_works_offline() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(app(), "127.0.0.1:0", HttpConfig::default())).unwrap();
    execute(&server.address().to_string(), "/greet", "hello Ada and Ada", "docs.png");
}

/// The first route has an example picture: one press of the button shows an answer.
#[test]
fn executing_the_route_of_the_main_example_shows_the_digit() {
    let server = support::Server::digits(&[]);
    execute(&server.address, "/digits", "\"label\": \"7\"", "docs-digits.png");
}

/// Opens the documentation, presses *Execute* on a route, and expects this text in the answer. Keeps a screenshot.
fn execute(address: &str, route: &str, expected: &str, picture: &str) {
    let version = |name: &&str| process::run(Command::new(name).arg("--version")).is_ok();
    let program = || NAMES.into_iter().find(version).ok_or_else(|| format!("none of {}", NAMES.join(", ")));
    let Some(chromium) = CHROMIUM.if_required(program) else { return };
    let Some(python) = Python::with("browser") else { return };
    let screenshot = Path::new(env!("CARGO_TARGET_TMPDIR")).join(picture);
    python.run("browser.py", &[chromium, address, route, expected, screenshot.to_str().unwrap()]);
}
