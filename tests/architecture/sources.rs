//! The manifests and sources of the workspace, as the rules read them.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn crates() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the crates");
    let mut crates: Vec<_> =
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    crates.sort();
    assert!(crates.len() >= 5, "found only {crates:?}");
    crates
}

pub(crate) fn manifest(directory: &Path) -> Table {
    read(&directory.join("Cargo.toml")).parse().expect("a manifest is TOML")
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn all_sources() -> Vec<PathBuf> {
    let mut directories: Vec<_> = ["src", "tests", "benches", "examples", "fuzz"].map(|name| root().join(name)).into();
    directories.extend(crates());
    directories.iter().flat_map(|directory| sources(directory)).collect()
}

/// Every `.rs` file below a directory, without build outputs.
pub(crate) fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The numbered lines of a file, without comments, string literals and test items.
pub(crate) fn code_of(path: &Path) -> Vec<(usize, String)> {
    without_test_items(&read(path))
}

/// Leaves out each item with `#[cfg(test)]`, but not the items after it.
pub(crate) fn without_test_items(text: &str) -> Vec<(usize, String)> {
    let mut code_lines = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // A formatted item ends where its indentation returns with a brace, a semicolon or a comma.
            let margin = indentation(line);
            lines.find(|(_, line)| {
                let code = without_texts(line);
                let is_end = code.trim_end().ends_with(['}', ';', ',']) && !code.trim_start().starts_with('#');
                is_end && indentation(line) == margin
            });
        } else {
            code_lines.push((index + 1, without_texts(line)));
        }
    }
    code_lines
}

pub(crate) fn identifiers(code: &str) -> impl DoubleEndedIterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

pub(crate) fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn without_texts(line: &str) -> String {
    let outside: String = line.split('"').step_by(2).collect();
    outside.split("//").next().unwrap_or_default().to_owned()
}

#[test]
fn only_the_item_after_the_attribute_is_left_out() {
    let text = r#"
#[cfg(test)]
mod tests;
first();
impl Queue {
    #[cfg(test)]
    #[must_use]
    fn seen_by_tests(
        self,
    ) -> usize {
        hidden();
    }

    fn second() {} // hidden(), "hidden()"
    #[cfg(test)]
    hidden: usize,
    third: usize,
}
#[cfg(test)]
pub(crate) use {
    hidden::Hidden,
};
fourth("hidden()");
#[cfg(test)]
mod inline {
    fn hidden() {}
}
fifth();
"#;
    let code = without_test_items(text);
    let remaining: Vec<&str> = code.iter().map(|(_, line)| line.trim()).filter(|line| line.len() > 1).collect();
    assert_eq!(remaining, ["first();", "impl Queue {", "fn second() {}", "third: usize,", "fourth();", "fifth();"]);
    assert_eq!(code.iter().find(|(_, line)| line.contains("fourth")).map(|(number, _)| *number), Some(23));
}
