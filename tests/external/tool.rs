//! Which external tools the tests use: those that `CALLBOARD_REQUIRE` names. The tests of the others are skipped, with
//! one line for each tool, because a tool takes minutes to set up, downloads, or both.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::process::Command;
use std::sync::Mutex;

use crate::process::run;

/// An external tool that a test may need, by its name in `CALLBOARD_REQUIRE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool(&'static str);

/// `python3` with `venv`, and a package index that `pip` reaches.
pub(crate) const PYTHON: Tool = Tool("python");

/// `node` and `npm`, and a package index that `npm` reaches.
pub(crate) const NODE: Tool = Tool("node");

/// Chromium, without a screen.
pub(crate) const CHROMIUM: Tool = Tool("chromium");

/// A Java runtime.
pub(crate) const JAVA: Tool = Tool("java");

/// nginx.
pub(crate) const NGINX: Tool = Tool("nginx");

/// `curl`.
pub(crate) const CURL: Tool = Tool("curl");

/// Prometheus' `promtool`.
pub(crate) const PROMTOOL: Tool = Tool("promtool");

/// `buildah`, and root: it mounts what it has built.
pub(crate) const BUILDAH: Tool = Tool("buildah");

/// `systemd-analyze`.
pub(crate) const SYSTEMD: Tool = Tool("systemd");

/// `ip` and `nft`, and root with the right to make network namespaces.
#[cfg(target_os = "linux")]
pub(crate) const NAMESPACES: Tool = Tool("namespaces");

/// The programs of `examples/`, which `cargo test` compiles unless it runs one target only.
pub(crate) const EXAMPLES: Tool = Tool("examples");

pub(crate) const REQUIRE: &str = "CALLBOARD_REQUIRE";

/// The tools whose skipped tests have had their line.
static SKIPPED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

impl Tool {
    /// The result of the setup if `CALLBOARD_REQUIRE` names this tool. Otherwise `None`, and the first time one line.
    ///
    /// # Panics
    ///
    /// If the tool is required and cannot be set up.
    pub(crate) fn if_required<T>(self, set_up: impl FnOnce() -> Result<T, String>) -> Option<T> {
        let made = self.if_in(&env::var(REQUIRE).unwrap_or_default(), set_up);
        if made.is_none() && SKIPPED.lock().unwrap().insert(self.0) {
            // The line bypasses the capture of the test harness.
            let line = format!("skipped the tests that need {0}: {REQUIRE}={0} runs them\n", self.0);
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        made
    }

    /// Whether the tool is required; it is then also installed, as this program.
    ///
    /// # Panics
    ///
    /// If the tool is required and the program does not start.
    pub(crate) fn is_required_as(self, program: &str) -> bool {
        self.if_required(|| run(Command::new(program).arg("--version"))).is_some()
    }

    /// `required` is a list of names with commas, such as `python,chromium`.
    fn if_in<T>(self, required: &str, set_up: impl FnOnce() -> Result<T, String>) -> Option<T> {
        let is_required = required.split(',').any(|name| name.trim() == self.0);
        let missing = |reason| panic!("{REQUIRE} names {}, and it is missing: {reason}", self.0);
        is_required.then(|| set_up().unwrap_or_else(missing))
    }
}

#[test]
fn a_tool_is_set_up_only_if_required() {
    for required in ["python,chromium", "chromium, python"] {
        assert_eq!(PYTHON.if_in(required, || Ok(1)), Some(1));
    }
    for required in ["chromium", ""] {
        assert!(PYTHON.if_in(required, || -> Result<(), String> { panic!("it is set up") }).is_none());
    }
}

#[test]
#[should_panic = "CALLBOARD_REQUIRE names python, and it is missing: no such file"]
fn a_required_tool_that_is_missing_is_a_failure() {
    PYTHON.if_in("python", || -> Result<(), String> { Err("no such file".to_owned()) });
}
