//! The rules between the crates, read from the manifests and sources.
//!
//! A failure means that a dependency was added that `ARCHITECTURE.md` excludes. Either it is a mistake, or the page,
//! this test and the reason must change together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use callboard::ErrorKind;
use toml::{Table, Value};

/// A crate, the workspace crates that it may use, and the external crates that it must not know.
struct Rule {
    name: &'static str,
    may_use: &'static [&'static str],
    must_not_know: &'static [&'static str],
}

/// From the bottom up; the root package comes last.
const RULES: [Rule; 18] = [
    Rule {
        name: "codec",
        may_use: &[],
        must_not_know: &["tokio", "ractor", "tracing", "axum", "hyper", "quinn", "rustls"],
    },
    Rule {
        name: "core",
        may_use: &["codec"],
        must_not_know: &["axum", "hyper", "hyper-util", "http", "tower", "quinn", "rustls", "serde_json"],
    },
    Rule { name: "identity", may_use: &["codec"], must_not_know: &["axum", "hyper", "quinn", "ractor"] },
    Rule { name: "net", may_use: &["codec", "core", "identity"], must_not_know: &["axum", "hyper", "ractor"] },
    Rule { name: "http-client", may_use: &[], must_not_know: &["axum", "quinn", "ractor"] },
    Rule {
        name: "telemetry",
        may_use: &["core", "http-client"],
        must_not_know: &["axum", "hyper", "quinn", "ractor", "rustls"],
    },
    Rule { name: "http", may_use: &["codec", "core", "telemetry"], must_not_know: &["prost", "quinn", "ractor"] },
    Rule {
        name: "oip",
        may_use: &["codec", "core", "http", "telemetry"],
        must_not_know: &["axum", "hyper", "quinn", "ractor", "rustls"],
    },
    Rule { name: "onnx", may_use: &["codec", "core"], must_not_know: &["axum", "hyper", "quinn", "ractor", "tokio"] },
    Rule { name: "process", may_use: &["codec", "core"], must_not_know: &["axum", "hyper", "quinn", "ractor"] },
    Rule { name: "stages", may_use: &["codec", "core"], must_not_know: &["axum", "hyper", "quinn", "ractor", "tokio"] },
    Rule {
        name: "bench",
        may_use: &["codec", "core", "http-client", "net"],
        must_not_know: &["axum", "hyper", "quinn", "ractor"],
    },
    Rule {
        name: "python",
        may_use: &["codec", "core", "net"],
        must_not_know: &["axum", "hyper", "quinn", "ractor", "rustls"],
    },
    Rule {
        name: "server",
        may_use: &["core", "http", "net", "oip", "process"],
        must_not_know: &["axum", "hyper", "quinn", "ractor"],
    },
    Rule {
        name: "config",
        may_use: &["codec", "core", "http", "http-client", "net", "onnx", "process", "server", "stages"],
        must_not_know: &["axum", "hyper", "quinn", "ractor", "rten", "prost", "image"],
    },
    Rule {
        name: "models",
        may_use: &["codec", "config", "core", "http", "server"],
        must_not_know: &["axum", "hyper", "quinn", "ractor"],
    },
    Rule {
        name: "cli",
        may_use: &["bench", "codec", "config", "core", "http", "http-client", "models", "net", "process", "server"],
        must_not_know: &["axum", "hyper", "quinn", "ractor"],
    },
    Rule {
        name: "",
        may_use: &[
            "cli",
            "codec",
            "config",
            "core",
            "http",
            "http-client",
            "models",
            "net",
            "oip",
            "onnx",
            "process",
            "server",
            "stages",
        ],
        must_not_know: &["axum", "hyper", "quinn", "ractor", "rten", "prost", "image"],
    },
];

/// A rule without a crate forbids nothing.
#[test]
fn every_rule_has_its_crate() {
    let named: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).filter(|name| !name.is_empty()).collect();
    let directories = crates();
    let names = directories.iter().filter_map(|directory| directory.file_name()?.to_str());
    assert_eq!(named, names.collect(), "the rules on the left, crates/ on the right");
}

/// No crate may use a crate above it, or a library that another crate hides.
#[test]
fn arrows_point_only_downward() {
    let mut wrong = Vec::new();
    for directory in crates() {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rule = RULES.iter().find(|rule| rule.name == name);
        let Some(rule) = rule else {
            wrong.push(format!("crates/{name} has no rule: add one"));
            continue;
        };
        wrong.extend(violations(rule, &manifest(&directory)));
    }
    wrong.extend(violations(&RULES[RULES.len() - 1], &manifest(&root())));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn violations(rule: &Rule, manifest: &Table) -> Vec<String> {
    let used = dependencies(manifest);
    let mut wrong = Vec::new();
    for dependency in &used {
        if let Some(own) = dependency.strip_prefix("callboard-")
            && !rule.may_use.contains(&own)
        {
            wrong.push(format!("`{}` may not use `{own}`", rule.name));
        }
        if rule.must_not_know.contains(&dependency.as_str()) {
            wrong.push(format!("`{}` must not know {dependency}", rule.name));
        }
    }
    wrong
}

/// The dependencies of a crate, without those of its tests.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|key| manifest.get(key)?.as_table());
    tables.flat_map(|table| table.keys().cloned()).collect()
}

/// Core has time and tasks of tokio, and nothing that can open a socket.
#[test]
fn core_uses_no_sockets() {
    let manifest = manifest(&root().join("crates/core"));
    let features =
        manifest["dependencies"]["tokio"].get("features").and_then(Value::as_array).expect("tokio's features");
    for feature in features.iter().filter_map(Value::as_str) {
        assert!(!matches!(feature, "net" | "full" | "fs" | "process"), "core has tokio's feature `{feature}`");
    }
    for file in sources(&root().join("crates/core/src")) {
        for (line, code) in code_of(&file) {
            assert!(!code.contains("std::net") && !code.contains("tokio::net"), "{}:{line}", file.display());
        }
    }
}

/// The decisions of core that are plain values know no actor: they are tested without a runtime.
#[test]
fn decisions_of_core_know_no_actor() {
    let pure = ["queue", "restart", "router/table.rs", "gateway/admission.rs", "pool/lifecycle.rs", "pool/health.rs"];
    for part in pure.map(|part| root().join("crates/core/src").join(part)) {
        assert!(part.exists(), "{} does not exist", part.display());
        let files = if part.is_dir() { sources(&part) } else { vec![part] };
        for file in files {
            for (line, code) in code_of(&file) {
                assert!(!identifiers(&code).any(|name| name == "ractor"), "{}:{line}", file.display());
            }
        }
    }
}

/// ractor runs the actors but is not part of the API: a new version changes nothing for users.
#[test]
fn no_public_item_of_core_names_ractor() {
    let wrong: Vec<String> = sources(&root().join("crates/core/src"))
        .iter()
        .flat_map(|file| {
            let found = public_items_with("ractor", &code_of(file)).into_iter();
            found.map(|line| format!("{}:{line}", file.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "users see ractor:\n{}", wrong.join("\n"));
}

/// The first lines of public items that name a crate, or an import of it.
fn public_items_with(name: &str, lines: &[(usize, String)]) -> Vec<usize> {
    let code: String = lines.iter().map(|(_, code)| format!("{code}\n")).collect();
    let imports = code.split("use ").filter_map(|import| import.split(';').next()?.strip_prefix(name));
    let parts = imports.flat_map(|import| import.split(['{', '}', ',']));
    let names: BTreeSet<&str> = parts.filter_map(|part| identifiers(part).last()).chain([name]).collect();
    let items = lines.iter().enumerate().filter(|(_, (_, code))| code.trim_start().starts_with("pub "));
    let naming =
        items.filter(|(index, _)| identifiers(&public_part(&lines[*index..])).any(|word| names.contains(word)));
    naming.map(|(_, (line, _))| *line).collect()
}

fn identifiers(code: &str) -> impl DoubleEndedIterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The visible part of the public item that begins here: all of an enum, a trait or a `use`, else the part before the
/// body. The public fields of a struct are items of their own.
fn public_part(lines: &[(usize, String)]) -> String {
    let first = &lines[0].1;
    let is_whole = identifiers(first).nth(1).is_some_and(|kind| matches!(kind, "enum" | "trait" | "use"));
    let margin = indentation(first);
    let is_end = |code: &String| {
        let trimmed = code.trim_end();
        indentation(code) == margin && (trimmed.ends_with(['}', ';', ',']) || (trimmed.ends_with('{') && !is_whole))
    };
    let end_index = lines.iter().position(|(_, code)| is_end(code)).map_or(lines.len(), |index| index + 1);
    lines[..end_index].iter().map(|(_, code)| format!("{code}\n")).collect()
}

#[test]
fn a_crate_is_found_in_the_public_items_that_name_it() {
    let text = r#"
use ractor::{Actor as Engine, ActorRef};
pub use ractor;
pub struct Held(pub ActorRef);
pub(crate) struct Inner(ActorRef);
pub struct Fields {
    hidden: ActorRef,
    pub shown: ActorRef,
}
pub enum Event {
    Started(ActorRef),
}
pub trait Bound {
    fn of(engine: &ActorRef);
}
impl Fields {
    pub fn runs<E>(
        engine: E,
    ) -> Self
    where
        E: Engine,
    {
        hidden()
    }

    pub fn hides(self) -> u64 {
        ActorRef::hidden()
    }
}
"#;
    assert_eq!(public_items_with("ractor", &without_test_items(text)), [3, 4, 8, 10, 13, 17]);
}

/// Decisions take `now`; one file reads the clock.
#[test]
fn core_reads_the_clock_in_one_place() {
    let mut wrong = Vec::new();
    for file in sources(&root().join("crates/core/src")) {
        if file.file_name().is_some_and(|name| name == "clock.rs" || name == "tests.rs") {
            continue;
        }
        for (line, code) in code_of(&file) {
            if code.contains("Instant::now") || code.contains("SystemTime::now") {
                wrong.push(format!("{}:{line}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "the clock is read outside clock.rs:\n{}", wrong.join("\n"));
}

/// The top-level modules of a crate, each with the modules that its code names.
type ModuleGraph = BTreeMap<String, BTreeSet<String>>;

/// Inside a crate the arrows point one way as well: a top-level module comes after the modules that it uses.
#[test]
fn the_modules_of_a_crate_have_no_cycle() {
    let mut wrong = Vec::new();
    for directory in crates().into_iter().chain([root()]) {
        let cyclic_part = cyclic_part(&module_graph(&directory.join("src")));
        if !cyclic_part.is_empty() {
            wrong.push(format!("{}: {cyclic_part:#?}", directory.display()));
        }
    }
    assert!(wrong.is_empty(), "modules with cyclic uses:\n{}", wrong.join("\n"));
}

fn module_graph(sources_of_crate: &Path) -> ModuleGraph {
    let lib = code_of(&sources_of_crate.join("lib.rs"));
    let lib: String = lib.into_iter().map(|(_, code)| code + "\n").collect();
    let declared = lib.split("mod ").skip(1).filter_map(|rest| rest.split_once(';'));
    let modules: BTreeSet<&str> = declared.map(|(name, _)| name).filter(|name| identifiers(name).eq([*name])).collect();
    // A name that is re-exported at the crate's root stands for its module.
    let exports = lib.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()?.split_once("::"));
    let exported: BTreeMap<&str, &str> =
        exports.flat_map(|(module, names)| identifiers(names).map(move |name| (name, module))).collect();
    let mut graph: ModuleGraph = modules.iter().map(|module| ((*module).to_owned(), BTreeSet::new())).collect();
    for file in sources(sources_of_crate) {
        let relative = file.strip_prefix(sources_of_crate).expect("a file of the crate");
        if relative.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let top = relative.iter().next().and_then(|part| part.to_str()).unwrap_or_default().trim_end_matches(".rs");
        let Some(used) = graph.get_mut(top) else { continue };
        let code: String = code_of(&file).into_iter().map(|(_, code)| code + "\n").collect();
        let names = names_after_crate(&code);
        let used_modules = names.iter().map(|name| *exported.get(name).unwrap_or(name));
        used.extend(used_modules.filter(|name| modules.contains(name) && *name != top).map(str::to_owned));
    }
    graph
}

/// The first names of all paths that begin with `crate::`, also in braces.
fn names_after_crate(code: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for path in code.split("crate::").skip(1) {
        let Some(group) = path.strip_prefix('{') else {
            names.extend(identifiers(path).next());
            continue;
        };
        let mut depth = 0_usize;
        let end = group.find(|c: char| {
            let is_end = c == '}' && depth == 0;
            depth = depth + usize::from(c == '{') - usize::from(c == '}' && !is_end);
            is_end
        });
        let (mut depth, mut start) = (0_usize, 0);
        let group = &group[..end.unwrap_or(group.len())];
        for (index, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    names.extend(identifiers(&group[start..index]).next());
                    start = index;
                }
                _ => {}
            }
        }
    }
    names
}

/// Repeatedly removes modules that use no other module or that no module uses. The rest is the cycles and the modules
/// between them.
fn cyclic_part(graph: &ModuleGraph) -> ModuleGraph {
    let mut remaining = graph.clone();
    loop {
        let used: BTreeSet<String> = remaining.values().flatten().cloned().collect();
        let count = remaining.len();
        remaining.retain(|module, uses| !uses.is_empty() && used.contains(module));
        let names: BTreeSet<String> = remaining.keys().cloned().collect();
        remaining.values_mut().for_each(|uses| uses.retain(|name| names.contains(name)));
        if remaining.len() == count {
            return remaining;
        }
    }
}

#[test]
fn a_cycle_between_modules_is_found() {
    let code = "use crate::{queue::{Entry, Lanes}, call};\nlet now = crate::clock::now();\nuse crate::App;";
    assert_eq!(names_after_crate(code), ["queue", "call", "clock", "App"]);

    let graph = |edges: &[(&str, &str)]| {
        let mut graph = ModuleGraph::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            graph.entry((*to).to_owned()).or_default();
        }
        graph
    };
    let tree = [("node", "client"), ("client", "router"), ("node", "router"), ("router", "pool")];
    assert!(cyclic_part(&graph(&tree)).is_empty());
    let cycle = cyclic_part(&graph(&[&tree[..], &[("pool", "client")]].concat()));
    assert_eq!(cycle.keys().collect::<Vec<_>>(), ["client", "pool", "router"]);
}

/// Files that may contain `unsafe`, and the reason. Only those below `src` are linked into a program.
const UNSAFE: [(&str, &str); 4] = [
    ("crates/codec/tests/common/heap.rs", "an allocator that counts has to be one"),
    ("crates/onnx/src/engine/onnxruntime/values.rs", "ONNX Runtime has a C API, and its safe binding copies and locks"),
    ("crates/process/src/shared_memory.rs", "memory that another process maps as well has no other form"),
    ("crates/net/tests/heap/counting.rs", "the same, and it distinguishes large blocks from small blocks"),
];

/// A new kind of error must not fall into an arm that was written before it: a match over kinds names each, or matches
/// `ErrorOrigin`.
#[test]
fn no_match_over_error_kinds_has_a_wildcard() {
    let kinds: Vec<String> = ErrorKind::ALL.iter().map(|kind| format!("ErrorKind::{kind:?}")).collect();
    let directories = crates().into_iter().map(|directory| directory.join("src")).chain([root().join("src")]);
    let mut wrong = Vec::new();
    for path in directories.flat_map(|directory| sources(&directory)) {
        for number in wildcards_beside(&kinds, &code_of(&path)) {
            wrong.push(format!("{}:{number}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "match `kind.row().origin` instead:\n{}", wrong.join("\n"));
}

/// The lines of arms that take everything, in matches with one of these names in a pattern.
fn wildcards_beside(names: &[String], code: &[(usize, String)]) -> Vec<usize> {
    let mut found = Vec::new();
    for (start, (_, head)) in code.iter().enumerate() {
        if !head.trim_end().ends_with('{') || !identifiers(head).any(|word| word == "match") {
            continue;
        }
        // A formatted match ends where its indentation returns, and its arms are one step further in.
        let margin = indentation(head);
        let body =
            code[start + 1..].iter().take_while(|(_, line)| line.trim().is_empty() || indentation(line) > margin);
        let arms: Vec<(usize, &str)> = body
            .filter(|(_, line)| indentation(line) == margin + 4)
            .map(|(number, line)| (*number, line.split(" =>").next().and_then(|arm| arm.split(" if ").next())))
            .filter_map(|(number, pattern)| Some((number, pattern?.trim())))
            .collect();
        let names_one = |pattern: &str| {
            let is_whole = |at: usize| !pattern[..at].ends_with(|c: char| c == ':' || c.is_alphanumeric());
            names.iter().any(|name| pattern.match_indices(name.as_str()).any(|(at, _)| is_whole(at)))
        };
        if arms.iter().any(|(_, pattern)| names_one(pattern)) {
            let is_any = |pattern: &str| {
                !pattern.is_empty()
                    && pattern.chars().all(|c| matches!(c, '_' | '(' | ')' | ',' | ' ') || c.is_lowercase())
            };
            found.extend(arms.iter().filter(|(_, pattern)| is_any(pattern)).map(|(number, _)| *number));
        }
    }
    found
}

#[test]
fn a_wildcard_beside_a_kind_is_found() {
    let lines = |text: &str| without_test_items(text);
    let names = ["ErrorKind::Failed".to_owned()];
    let text = "
    match error.kind() {
        ErrorKind::Failed | ErrorKind::Internal if a => 1,
        _ => 2,
    }
    let x = match (error.kind(), other) {
        (ErrorKind::Failed, _) => {
            _ => 0
        }
        (kind, _) => 2,
    };
    match error.kind() {
        ErrorKind::Internal
        | ErrorKind::Failed => 1,
        kind if a => 2,
    }
    match error.kind() {
        io::ErrorKind::Failed | DecodeErrorKind::Failed => 1,
        _ => ErrorKind::Failed,
    }
    match error.kind() {
        ErrorKind::Failed => 1,
        ErrorKind::Internal => 2,
    }
";
    assert_eq!(wildcards_beside(&names, &lines(text)), [4, 10, 15]);
}

#[test]
fn no_file_is_unsafe() {
    for file in
        all_sources().into_iter().filter(|file| !UNSAFE.iter().any(|(allowed, _reason)| file.ends_with(allowed)))
    {
        for (line, code) in code_of(&file) {
            let identifiers = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(identifiers.into_iter().all(|identifier| identifier != "unsafe"), "{}:{line}", file.display());
        }
    }
}

/// Every file starts with a module doc.
#[test]
fn every_file_has_a_module_doc() {
    let undocumented: Vec<_> = all_sources().into_iter().filter(|file| !read(file).starts_with("//! ")).collect();
    assert!(undocumented.is_empty(), "files without a module doc: {undocumented:#?}");
}

#[test]
fn no_file_has_a_thousand_lines() {
    for file in all_sources() {
        let lines = read(&file).lines().count();
        assert!(lines < 1000, "{} has {lines} lines", file.display());
    }
}

#[test]
fn every_crate_has_the_lints_and_versions_of_the_workspace() {
    for directory in crates() {
        let manifest = manifest(&directory);
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{}", directory.display());
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, dependency) in manifest.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let inherited = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
                assert!(inherited, "{}: {name} has a version of its own", directory.display());
            }
        }
    }
}

/// Every used dependency is explained, and only used ones are.
#[test]
fn every_dependency_of_the_workspace_has_its_line_in_the_docs() {
    let manifest = manifest(&root());
    let declared = manifest["workspace"]["dependencies"].as_table().expect("the workspace's dependencies");
    let declared: BTreeSet<&str> =
        declared.keys().map(String::as_str).filter(|name| !name.starts_with("callboard-")).collect();
    let docs = read(&root().join("docs/dependencies.md"));
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let explained: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
    assert_eq!(declared, explained, "Cargo.toml on the left, docs/dependencies.md on the right");
}

/// The rules of `deny.toml`, checked without cargo-deny, which takes minutes to compile.
#[test]
fn every_dependency_has_an_allowed_licence_and_is_not_banned() {
    let rules: Table = read(&root().join("deny.toml")).parse().expect("deny.toml is TOML");
    let texts = |list: &Value, key: Option<&str>| -> BTreeSet<String> {
        let items = list.as_array().expect("a list").iter();
        items.filter_map(|item| Some(key.map_or(item, |key| &item[key]).as_str()?.to_owned())).collect()
    };
    let (allowed, banned) = (texts(&rules["licenses"]["allow"], None), texts(&rules["bans"]["deny"], Some("crate")));
    let tree = cargo_tree(&["--workspace", "--edges", "normal,build", "--format", "{p}|{l}"]);
    let mut wrong = BTreeSet::new();
    for (package, licence) in tree.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|')) {
        let (name, _) = package.split_once(' ').unwrap_or((package, ""));
        // Every part must hold; each part may be a choice.
        let is_allowed = |choice: &str| allowed.contains(choice.trim_matches(['(', ')', ' ']));
        let mut parts = licence.split(" AND ").map(|part| part.split(" OR ").flat_map(|choice| choice.split('/')));
        if !parts.all(|mut choices| choices.any(is_allowed)) || banned.contains(name) {
            wrong.insert(format!("{package}: {licence}"));
        }
    }
    assert!(tree.lines().count() > 100 && wrong.is_empty(), "{wrong:#?}");
}

fn cargo_tree(arguments: &[&str]) -> String {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--prefix", "none"]).args(arguments).current_dir(root());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("names are text")
}

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
    for rule in RULES.iter().filter(|rule| !rule.name.is_empty()) {
        for used in rule.may_use {
            let (used_at, own_at) = (page.find(&heading(used)), page.find(&heading(rule.name)));
            assert!(used_at < own_at, "`{}` comes before `{used}`, which it uses", rule.name);
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

/// Each row names a file and a function that is in it, and then others: `function` in `file`, in the same crate or in
/// one that is named before the file.
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

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn crates() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the crates");
    let mut crates: Vec<_> =
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    crates.sort();
    assert!(crates.len() >= 5, "found only {crates:?}");
    crates
}

fn manifest(directory: &Path) -> Table {
    read(&directory.join("Cargo.toml")).parse().expect("a manifest is TOML")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn all_sources() -> Vec<PathBuf> {
    let mut directories: Vec<_> = ["src", "tests", "benches", "examples", "fuzz"].map(|name| root().join(name)).into();
    directories.extend(crates());
    directories.iter().flat_map(|directory| sources(directory)).collect()
}

/// Every `.rs` file below a directory, without build outputs.
fn sources(directory: &Path) -> Vec<PathBuf> {
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
fn code_of(path: &Path) -> Vec<(usize, String)> {
    without_test_items(&read(path))
}

/// Leaves out each item with `#[cfg(test)]`, but not the items after it.
fn without_test_items(text: &str) -> Vec<(usize, String)> {
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

fn indentation(line: &str) -> usize {
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

/// These crates are an eighth of the work of a first build.
#[test]
fn a_build_without_arrow_has_none_of_its_crates() {
    let crates = |features: &str| {
        let tree = cargo_tree(&["--edges", "normal", "--no-default-features", "--features", features]);
        tree.lines().filter(|line| line.starts_with("arrow-") || line.starts_with("flatbuffers ")).count()
    };
    assert_eq!(crates("cli,onnx"), 0);
    assert!(crates("cli,onnx,arrow") > 5);
}
