//! The comparison with peers, `benches/peers/run.py`, with Callboard alone: that the script works, not what it
//! measures.

use std::process::Command;

use serde_json::Value;

use crate::process;
use crate::python_apps::{package, python};
use crate::support::directory;

#[test]
fn callboard_is_measured_alone() {
    let Some(python) = python() else { return };
    let out = directory();
    let mut command = Command::new(python.program("python"));
    command.args(["-B", "benches/peers/run.py", "--only", "callboard", "--cases", "echo", "--rounds", "1"]);
    command.args(["--seconds", "1", "--callboard", env!("CARGO_BIN_EXE_callboard"), "--out"]).arg(&out);
    command.arg("--environment").arg(python.environment()).current_dir(env!("CARGO_MANIFEST_DIR"));
    let printed = process::run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.contains("**echo of 100 bytes of JSON**") && printed.contains("\n| Callboard | "), "{printed}");

    let results: Value = serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    let round = &results["closed"]["echo"]["callboard"]["64"][0];
    assert!(round["per_second"].as_f64().unwrap() > 0.0, "{results}");
    assert!(
        round["cpu_per_request"].as_f64().unwrap() > 0.0 && round["memory_bytes"].as_u64().unwrap() > 0,
        "{results}"
    );
    assert_eq!(round["refused"].as_f64(), Some(0.0), "{results}");
}

#[test]
fn the_comparison_is_checked_as_the_package_is() {
    let Some(python) = python() else { return };
    let peers = package().with_file_name("benches").join("peers");
    for args in [
        &["ruff", "check", "--no-cache", "."][..],
        &["ruff", "format", "--check", "--no-cache", "."],
        &["mypy", "--no-incremental", "."],
    ] {
        let mut command = Command::new(python.program("python"));
        command.args(["-B", "-m"]).args(args).current_dir(&peers);
        process::run(&mut command).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    }
}
