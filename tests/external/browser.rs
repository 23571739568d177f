//! The pages of a node in a real browser without internet: the documentation executes a route and shows the answer, and
//! the live page draws what the node does.

use std::fs;
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

#[test]
fn the_live_page_draws_each_second() {
    look(&["--admin", "127.0.0.1:0"], "", "live.png");
}

#[test]
fn the_live_page_asks_for_the_key() {
    let keys = support::directory().join("keys");
    fs::write(&keys, "operator a-key-of-the-operator\n").unwrap();
    look(
        &["--admin", "127.0.0.1:0", "--admin-api-keys", keys.to_str().unwrap()],
        "a-key-of-the-operator",
        "live-key.png",
    );
}

/// Opens the live page of the digits with this key, while calls are made. Keeps screenshots.
fn look(args: &[&str], key: &str, picture: &str) {
    let Some((chromium, python)) = browser() else { return };
    let mut server = support::Server::digits(args);
    server.wait_until_printed("admin on http://");
    let admin = server.stderr_lines.iter().find_map(|line| line.split_once("admin on http://"));
    let admin = admin.unwrap().1.trim_end_matches('/').to_owned();
    let digit = "examples/digits/seven.png";
    python.run("live.py", &[chromium, &admin, key, &server.address, digit, &screenshot(picture)]);
}

/// Opens the documentation, presses *Execute* on a route, and expects this text in the answer. Keeps a screenshot.
fn execute(address: &str, route: &str, expected: &str, picture: &str) {
    let Some((chromium, python)) = browser() else { return };
    python.run("browser.py", &[chromium, address, route, expected, &screenshot(picture)]);
}

/// The browser, and the Python that drives it.
fn browser() -> Option<(&'static str, Python)> {
    let version = |name: &&str| process::run(Command::new(name).arg("--version")).is_ok();
    let program = || NAMES.into_iter().find(version).ok_or_else(|| format!("none of {}", NAMES.join(", ")));
    Some((CHROMIUM.if_required(program)?, Python::with("browser")?))
}

fn screenshot(name: &str) -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned()
}
