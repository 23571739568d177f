//! A test without its tool: a skip with one line, or a failure if `CALLBOARD_REQUIRE` names the tool.

use std::io::Write as _;
use std::thread;

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

/// The programs of `examples/`. `cargo test` compiles them unless it runs one target only.
pub(crate) const EXAMPLES: Tool = Tool("examples");

pub(crate) const REQUIRE: &str = "CALLBOARD_REQUIRE";

impl Tool {
    /// The result of the setup; without the tool `None`, and one line with the reason.
    ///
    /// # Panics
    ///
    /// If the tool is required.
    pub(crate) fn or_skip<T>(self, set_up: Result<T, String>) -> Option<T> {
        let reason = match set_up {
            Ok(value) => return Some(value),
            Err(reason) => reason,
        };
        let required = std::env::var(REQUIRE).unwrap_or_default();
        assert!(!self.is_required(&required), "{REQUIRE} names {}, and it is missing: {reason}", self.0);
        // The line bypasses the capture of the test harness.
        let line = format!("skipped {}: no {}: {}\n", test_name(), self.0, reason.lines().last().unwrap_or_default());
        let _ = std::io::stderr().write_all(line.as_bytes());
        None
    }

    /// `required` is a list of names with commas, such as `python,chromium`.
    fn is_required(self, required: &str) -> bool {
        required.split(',').any(|name| name.trim() == self.0)
    }
}

/// The harness names a test's thread after the test.
fn test_name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

#[test]
fn a_missing_tool_is_a_failure_only_if_required() {
    assert!(PYTHON.is_required("python,chromium"));
    assert!(PYTHON.is_required("chromium, python"));
    assert!(!PYTHON.is_required("chromium"));
    assert!(!PYTHON.is_required(""));
}
