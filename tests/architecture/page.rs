//! `ARCHITECTURE.md` names the folders and functions that exist, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::RULES;
use crate::modules::module_graph;
use crate::sources::{crates, read, root};

/// The tables under `## Code map` name each folder of each crate, and no others.
#[test]
fn the_code_map_names_exactly_the_existing_folders() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let mut wrong = Vec::new();
    let mut sections = vec![("### The root package".to_owned(), root().join("src"))];
    for directory in crates() {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sections.push((format!("### `crates/{name}`"), directory.join("src")));
    }
    for (heading, sources) in sections {
        let named: BTreeSet<&str> = parts_of_rows(&page, &heading).into_iter().flatten().collect();
        let missing = named.iter().filter(|part| !sources.join(part).exists());
        wrong.extend(missing.map(|part| format!("{heading} names `{part}`, which does not exist")));
        let entries = fs::read_dir(&sources).expect("sources").map(|entry| entry.expect("an entry").path());
        for folder in entries.filter(|path| path.is_dir()) {
            let name = format!("{}/", folder.file_name().unwrap_or_default().to_string_lossy());
            if !named.contains(name.as_str()) {
                wrong.push(format!("{heading} does not name `{name}`"));
            }
        }
    }
    let entry_points = page.lines().filter_map(|line| line.strip_prefix("| `crates/")?.split('`').next());
    let missing = entry_points.filter(|path| !root().join("crates").join(path).exists());
    wrong.extend(missing.map(|path| format!("`crates/{path}` does not exist")));
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// The parts in the first cells of the tables of a section, row by row.
fn parts_of_rows<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = page.split_once(heading).unwrap_or_else(|| panic!("there is no `{heading}`"));
    let rows = section.lines().skip(1).take_while(|line| !line.starts_with('#'));
    let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.map(|cell| cell.split('`').filter(|part| part.contains(['/', '.'])).collect()).collect()
}

/// A crate comes after the crates that it uses. In these tables a part comes after the parts that it uses, or beside
/// them.
#[test]
fn the_code_map_goes_from_the_ground_up() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let heading = |name: &str| format!("### `crates/{name}`");
    for (name, may_use, _) in RULES.iter().filter(|rule| !rule.0.is_empty()) {
        for used in may_use.split_whitespace() {
            let (used_at, own_at) = (page.find(&heading(used)), page.find(&heading(name)));
            assert!(used_at < own_at, "`{name}` comes before `{used}`, which it uses");
        }
    }
    let mut wrong = Vec::new();
    for name in ["codec", "core", "http"] {
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        for (row, parts) in parts_of_rows(&page, &heading(name)).into_iter().enumerate() {
            rows.extend(parts.into_iter().map(|part| (part.trim_end_matches('/').trim_end_matches(".rs"), row)));
        }
        assert!(rows.len() > 10, "{name}: {rows:?}");
        for (module, uses) in module_graph(&root().join("crates").join(name).join("src")) {
            let Some(own) = rows.get(module.as_str()) else { continue };
            let below = uses.iter().filter(|used| rows.get(used.as_str()).is_some_and(|row| row > own));
            wrong.extend(below.map(|used| format!("{name}: `{module}` comes before `{used}`, which it uses")));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

/// It is read before the code, so it stays short.
#[test]
fn the_page_of_the_architecture_has_at_most_300_lines() {
    let lines = read(&root().join("ARCHITECTURE.md")).lines().count();
    assert!(lines <= 300, "ARCHITECTURE.md has {lines} lines");
}

/// Each row names a file and a function that is in it, and then others as `function` in `file`. Such a file is in the
/// crate of the row, unless the row names another crate before it.
#[test]
fn decisions_are_in_the_documented_files() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let table = page.split("## Where it is decided").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or("");
    let mut count = 0;
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('`').collect();
        let (file, function) = (cells[1], cells[3]);
        assert_has_function(&root().join(file), function);
        let own = file.split_once("src/").map_or("", |(own, _)| own);
        // After these two, text and code alternate: `function` in http's `file`.
        for place in cells[3..].windows(3).step_by(2).filter(|place| place[2].ends_with(".rs")) {
            let [name, words, file] = place else { unreachable!("windows of three") };
            let crate_path = match words.trim_end().strip_suffix("'s").and_then(|words| words.rsplit(' ').next()) {
                None => own.to_owned(),
                Some("root") => String::new(),
                Some(other) => format!("crates/{other}/"),
            };
            let path = root().join(crate_path).join("src").join(file);
            assert!(path.exists(), "{} does not exist", path.display());
            if words.starts_with(" in ") {
                assert_has_function(&path, name);
            }
        }
        count += 1;
    }
    assert!(count >= 10, "{count} rows");
}

fn assert_has_function(file: &Path, function: &str) {
    let text = read(file);
    let is_there = [format!("fn {function}("), format!("fn {function}<")].iter().any(|start| text.contains(start));
    assert!(is_there, "`{function}` is not in {}", file.display());
}
