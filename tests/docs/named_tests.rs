//! Tests that pages name, and commands that run some by their names, are there.

use std::fs;

use super::{gather, pages_and_docstrings, root, rows};

/// Each cell names modules, each with its tests.
#[test]
fn testing_names_existing_tests() {
    tests_exist("| failure |", 16, "crates/http/tests/it");
    tests_exist("| bad input |", 14, "crates/net/tests/it");
    tests_exist("| attacked by |", 19, "");
}

fn tests_exist(heading: &str, least: usize, directory: &str) {
    let rows = rows("docs/testing.md", heading);
    assert!(rows.len() >= least, "{rows:?}");
    for row in rows {
        let mut source = None;
        // The first backtick of a cell was removed with its margin.
        for name in row[1].split('`').step_by(2) {
            let file = if name.contains('.') { name.to_owned() } else { format!("{name}.rs") };
            match fs::read_to_string(root().join(directory).join(file)) {
                Ok(text) => source = Some(text),
                Err(_) => {
                    let source = source.as_ref().unwrap_or_else(|| panic!("{}: no module before `{name}`", row[0]));
                    let is_there = ["fn ", "def "].into_iter().any(|word| source.contains(&format!("{word}{name}(")));
                    assert!(is_there, "{}: there is no `{name}`", row[0]);
                }
            }
        }
    }
}

/// A filter of `cargo test` that no test has would run nothing, and succeed.
#[test]
fn pages_run_existing_tests() {
    let mut sources = String::new();
    ["crates", "tests"].into_iter().for_each(|directory| gather(&root().join(directory), &mut sources));
    let mut filters = 0;
    for (page, text) in pages_and_docstrings() {
        let paragraphs = text.split("\n\n").flat_map(|paragraph| {
            // A line of a block is a command, one in a sentence may go on in the next line.
            if paragraph.starts_with("    ") { paragraph.lines().collect() } else { vec![paragraph] }
        });
        for command in paragraphs.flat_map(|paragraph| paragraph.split("cargo test").skip(1)) {
            for filter in filters_of(command) {
                filters += 1;
                let is_known = filter.trim_matches(':').split("::").all(|part| {
                    let is_test = |(at, _): (usize, &str)| {
                        let begin = sources[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
                        ["fn", "mod"].into_iter().any(|keyword| sources[..begin].ends_with(keyword))
                    };
                    sources.match_indices(part).any(is_test)
                });
                assert!(is_known, "{page}: no test is named `{filter}`");
            }
        }
    }
    assert!(filters > 10, "{filters}");
}

/// The names of tests in the words after `cargo test`, up to the end of the command.
fn filters_of(command: &str) -> Vec<&str> {
    let mut words = command.split_whitespace();
    let mut filters = Vec::new();
    while let Some(word) = words.next() {
        let name = word.trim_end_matches(['`', ',', '.', ')', ';']);
        match name {
            "-p" | "--test" | "--features" | "--exclude" => _ = words.next(),
            flag if flag.starts_with('-') => (),
            name if name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.contains(['/', '=']) => {
                filters.push(name)
            }
            _ => break,
        }
        if name != word {
            break;
        }
    }
    filters
}
