//! The variables of this process that a child gets: all but this node's settings and secrets.
//!
//! A child runs other people's code: a model, a service, and the packages that it imports. It needs `PATH`, `HOME` or
//! `CUDA_VISIBLE_DEVICES`, and no API keys. A withheld variable reaches a child if the child's own `env` has it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use parking_lot::Mutex;

/// Prefixes of withheld variables: settings, some of them secrets, and messages of a node to its own children.
const PREFIXES: [&str; 2] = ["CALLBOARD_", "_CALLBOARD_"];

/// The headers of OpenTelemetry's exporters are credentials: for all signals, and for each, such as `TRACES_HEADERS`.
const EXPORTER: &str = "OTEL_EXPORTER_OTLP_";
const HEADERS: &str = "HEADERS";

/// Variables that settings read secrets from. The environment belongs to the process, and so does this.
static WITHHELD: Mutex<BTreeSet<OsString>> = Mutex::new(BTreeSet::new());

/// Withholds variables with secrets from all children that start from now on. The settings of Callboard
/// (`CALLBOARD_…`) and the headers of OpenTelemetry's exporters are always withheld.
pub fn withhold_variables<T: Into<OsString>>(names: impl IntoIterator<Item = T>) {
    WITHHELD.lock().extend(names.into_iter().map(Into::into));
}

/// The command of a program that gets the variables of this process, but not its secrets. Every process that this crate
/// starts begins here.
#[must_use]
pub fn child_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_withheld(name)) {
        command.env_remove(name);
    }
    command
}

fn is_withheld(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    PREFIXES.iter().any(|prefix| text.starts_with(prefix))
        || text.strip_prefix(EXPORTER).is_some_and(|rest| rest.ends_with(HEADERS))
        || WITHHELD.lock().contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_secrets_are_withheld_and_other_variables_are_not() {
        let is_withheld = |name: &str| is_withheld(OsStr::new(name));
        assert!(!is_withheld("KEYS_OF_A_TEST"));
        withhold_variables(["KEYS_OF_A_TEST"]);
        for name in [
            "KEYS_OF_A_TEST",
            "CALLBOARD_API_KEYS",
            "_CALLBOARD_REPLICA_OF",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        ] {
            assert!(is_withheld(name), "{name}");
        }
        for name in ["PATH", "KEYS_OF_A_TEST_2", "OTEL_EXPORTER_OTLP_ENDPOINT", "CALLBOARD", "MY_HEADERS"] {
            assert!(!is_withheld(name), "{name}");
        }
    }
}
