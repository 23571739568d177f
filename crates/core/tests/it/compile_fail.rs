//! Compiler errors for common mistakes name the remedy.
//!
//! Each file in `compile_fail/` is a program with one mistake. The compiler's error must contain the texts of its lines
//! `//~ …`. The rest of the error may change with the version of rustc, so it is not compared.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

const MANIFEST: &str = r#"
[package]
name = "compile_fail"
edition = "2024"

[dependencies]
callboard-core = { path = "CORE", default-features = false }
futures-util = { version = "0.3", default-features = false }
serde = { version = "1", features = ["derive"] }

[profile.dev]
debug = "line-tables-only"

[workspace]
"#;

#[test]
fn the_error_of_each_common_mistake_names_its_remedy() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mistakes: BTreeMap<String, String> = fs::read_dir(core.join("tests/compile_fail"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    assert!(mistakes.len() >= 12);

    let errors = errors_of(core, &mistakes);
    let mut complaints = String::new();
    for (name, text) in &mistakes {
        let remedies: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        let errors = errors.get(name).map_or(&[][..], Vec::as_slice);
        // One mistake may cause several errors of rustc. An error of another mistake would not contain the remedy.
        let missing = errors.iter().any(|error| remedies.iter().any(|remedy| !error.contains(remedy)));
        if missing || errors.is_empty() || remedies.is_empty() {
            complaints.push_str(&format!("\n{name}: not said of {remedies:?}\n{}", errors.join("\n")));
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
}

/// The compiler's errors for each of these programs. They are checked as a separate package, with the lock file and the
/// target directory of the workspace.
fn errors_of(core: &Path, mistakes: &BTreeMap<String, String>) -> BTreeMap<String, Vec<String>> {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let package = temporary.join("compile_fail");
    let programs = package.join("src/bin");
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).unwrap();
    fs::write(package.join("Cargo.toml"), MANIFEST.replace("CORE", core.to_str().unwrap())).unwrap();
    fs::copy(core.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    for (name, text) in mistakes {
        fs::write(programs.join(name).with_extension("rs"), text).unwrap();
    }

    let checked = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["check", "--offline", "--quiet", "--keep-going", "--bins", "--message-format=json", "--target-dir"])
        .arg(temporary.parent().unwrap())
        .current_dir(&package)
        .output()
        .unwrap();
    let mut errors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(checked.stdout).unwrap().lines() {
        let diagnostic: Value = serde_json::from_str(line).unwrap();
        let message = &diagnostic["message"];
        // The summary at the end has no location.
        if message["level"] == "error" && message["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
            let errors = errors.entry(diagnostic["target"]["name"].as_str().unwrap().to_owned()).or_default();
            errors.push(message["rendered"].as_str().unwrap().to_owned());
        }
    }
    assert!(!errors.is_empty(), "{}", String::from_utf8_lossy(&checked.stderr));
    errors
}
