//! The rules inside of crates, read from the code: modules without cycles, one clock, error kinds without wildcards, and
//! what each file has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use callboard::ErrorKind;

use crate::sources::{all_sources, code_of, crates, identifiers, indentation, read, root, sources, without_test_items};

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

pub(crate) fn module_graph(sources_of_crate: &Path) -> ModuleGraph {
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
const UNSAFE: [(&str, &str); 6] = [
    ("crates/cli/src/arenas.rs", "the allocator has only a C interface for the number of its arenas"),
    ("crates/codec/tests/common/heap.rs", "an allocator that counts has to be one"),
    ("crates/http/benches/allocations.rs", "the same, and it notes the place of each"),
    ("crates/onnx/src/engine/onnxruntime/values.rs", "ONNX Runtime has a C API, and its safe binding copies and locks"),
    ("crates/process/src/shared_memory/mod.rs", "memory that another process maps as well has no other form"),
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
