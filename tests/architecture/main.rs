//! The rules between the crates, read from the manifests and sources.
//!
//! A failure means that a dependency was added that `ARCHITECTURE.md` excludes. Either it is a mistake, or the page,
//! this test and the reason must change together.

mod modules;
mod page;
mod setters;
mod sources;

use std::collections::BTreeSet;

use toml::{Table, Value};

use self::sources::{code_of, crates, identifiers, indentation, manifest, read, root, sources, without_test_items};

/// A crate, the workspace crates that it may use, and the external crates that it must not know.
type Rule = (&'static str, &'static str, &'static str);

/// From the bottom up; the root package comes last.
const RULES: [Rule; 22] = [
    ("codec", "", "tokio ractor tracing axum hyper quinn rustls"),
    ("core", "codec", "axum hyper hyper-util tower quinn rustls serde_json"),
    ("state", "core", "axum hyper quinn ractor"),
    ("identity", "codec", "axum hyper quinn ractor"),
    ("net", "codec core identity", "axum hyper ractor"),
    ("http-client", "", "axum quinn ractor"),
    ("telemetry", "core http-client", "axum hyper quinn ractor rustls"),
    ("http", "codec core telemetry", "prost quinn ractor"),
    ("oip", "codec core http telemetry", "axum hyper quinn ractor rustls"),
    ("openai", "codec core http telemetry", "axum hyper quinn ractor rustls"),
    ("grpc", "codec core http oip telemetry", "axum quinn ractor rustls"),
    ("mcp", "codec core http telemetry", "axum hyper quinn ractor rustls"),
    ("onnx", "codec core", "axum hyper quinn ractor tokio"),
    ("process", "codec core", "axum hyper quinn ractor"),
    ("stages", "codec core", "axum hyper quinn ractor tokio"),
    ("bench", "codec core http-client net", "axum hyper quinn ractor"),
    ("python", "codec core net", "axum hyper quinn ractor rustls"),
    ("server", "core grpc http mcp net oip openai process", "axum hyper quinn ractor"),
    (
        "config",
        "codec core http http-client mcp net onnx process server stages state",
        "axum hyper quinn ractor rten prost image",
    ),
    ("models", "codec config core http server", "axum hyper quinn ractor"),
    ("cli", "bench codec config core http http-client mcp models net openai process server", "axum hyper quinn ractor"),
    (
        "",
        "cli codec config core grpc http http-client mcp models net oip onnx openai process server stages state",
        "axum hyper quinn ractor rten prost image",
    ),
];

/// A rule without a crate forbids nothing.
#[test]
fn every_rule_has_its_crate() {
    let named: BTreeSet<&str> = RULES.iter().map(|rule| rule.0).filter(|name| !name.is_empty()).collect();
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
        let rule = RULES.iter().find(|rule| rule.0 == name);
        let Some(rule) = rule else {
            wrong.push(format!("crates/{name} has no rule: add one"));
            continue;
        };
        wrong.extend(violations(rule, &manifest(&directory)));
    }
    wrong.extend(violations(&RULES[RULES.len() - 1], &manifest(&root())));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn violations(&(name, may_use, must_not_know): &Rule, manifest: &Table) -> Vec<String> {
    let used = dependencies(manifest);
    let mut wrong = Vec::new();
    for dependency in &used {
        if let Some(own) = dependency.strip_prefix("callboard-")
            && !may_use.split_whitespace().any(|allowed| allowed == own)
        {
            wrong.push(format!("`{name}` may not use `{own}`"));
        }
        if must_not_know.split_whitespace().any(|hidden| hidden == dependency) {
            wrong.push(format!("`{name}` must not know {dependency}"));
        }
    }
    wrong
}

/// The dependencies of a crate, without those of its tests.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|key| manifest.get(key)?.as_table());
    tables.flat_map(|table| table.keys().cloned()).collect()
}

/// Core has time and tasks of tokio, and nothing that can open a socket. Of HTTP it has the map of types that layers
/// fill.
#[test]
fn core_uses_no_sockets_and_no_http() {
    let manifest = manifest(&root().join("crates/core"));
    let features =
        manifest["dependencies"]["tokio"].get("features").and_then(Value::as_array).expect("tokio's features");
    for feature in features.iter().filter_map(Value::as_str) {
        assert!(!matches!(feature, "net" | "full" | "fs" | "process"), "core has tokio's feature `{feature}`");
    }
    for file in sources(&root().join("crates/core/src")) {
        for (line, code) in code_of(&file) {
            assert!(!code.contains("std::net") && !code.contains("tokio::net"), "{}:{line}", file.display());
            let is_allowed = code.trim() == "use http::Extensions;";
            assert!(is_allowed || !code.contains("http::"), "{}:{line}", file.display());
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
        let exception = rules["licenses"]["exceptions"].as_array().expect("a list").iter();
        let exception = exception.filter(|exception| exception["crate"].as_str() == Some(name));
        let excepted: BTreeSet<_> = exception.flat_map(|exception| texts(&exception["allow"], None)).collect();
        let is_allowed = |choice: &str| {
            let choice = choice.trim_matches(['(', ')', ' ']);
            allowed.contains(choice) || excepted.contains(choice)
        };
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

/// What a program compiles that embeds routes over HTTP: `tls` and `zstd` bring C libraries, and a third of the time.
#[test]
fn a_build_for_http_alone_has_no_c_code_and_no_tls() {
    let crates = |features: &str| -> BTreeSet<String> {
        let tree = cargo_tree(&["--edges", "normal,build", "--no-default-features", "--features", features]);
        tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    };
    let has = |crates: &BTreeSet<String>| ["cc", "ring", "rustls", "zstd-sys"].map(|name| crates.contains(name));
    let http = crates("http");
    assert_eq!(has(&http), [false; 4]);
    assert!(http.len() <= 145, "{} crates", http.len());
    assert_eq!(has(&crates("http,tls,zstd")), [true; 4]);
}
