//! Compares names, defaults and statuses in the pages with the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callboard::call::Deadline;
use callboard::config::{Environment, Explanation, Flags, Plan, SETTINGS, Target};
use callboard::edge::ErrorParts;
use callboard::node::Limits;
use callboard::stage::StageSettings;
use callboard::{CallError, ErrorKind, RetryPolicy};
use callboard_core::RetryBudget;

#[path = "docs/named_tests.rs"]
mod named_tests;

#[test]
fn operations_lists_every_setting_with_its_names_and_default() {
    let documented = rows("docs/operations/settings.md", "| key in the file |");
    let expected: Vec<Vec<String>> = SETTINGS
        .iter()
        .map(|name| vec![name.key.to_owned(), format!("--{}", name.flag), name.env.to_owned(), name.default.to_owned()])
        .collect();
    assert_eq!(documented, expected);
}

/// Operators of the binary set every limit that a program sets. A field has the setting of its name, or these.
#[test]
fn every_limit_of_the_http_edge_has_a_setting() {
    let other = [
        ("tls", "http.tls_certificate"),
        ("max_body_bytes_by_route", "http.max_body_bytes"),
        ("access_log", "log.access"),
        ("error_traces", "errors.traces"),
        ("shutdown_grace", "limits.drain"),
        // A frame and a body are bounded as a whole.
        ("max_bytes", "http.max_body_bytes"),
    ];
    let fields = |source: &str, name: &str| -> Vec<String> {
        let source = read(source);
        let (_, rest) = source.split_once(&format!("pub struct {name} {{\n")).expect(name);
        let lines = rest.lines().take_while(|line| *line != "}");
        lines.filter_map(|line| Some(line.strip_prefix("    pub ")?.split_once(':')?.0.to_owned())).collect()
    };
    let edge = fields("crates/http/src/config/mod.rs", "HttpConfig");
    let tls = fields("crates/http/src/config/tls.rs", "TlsConfig").into_iter().map(|field| format!("tls_{field}"));
    let decode = fields("crates/codec/src/limits.rs", "DecodeLimits");
    assert!(edge.len() >= 30 && decode.len() > 4, "{edge:?} {decode:?}");
    // `auth` says what the app has, and is no limit.
    for field in edge.into_iter().filter(|field| !["decode", "auth"].contains(&&**field)).chain(tls).chain(decode) {
        let named = other.iter().find(|(name, _)| *name == field).map(|(_, key)| (*key).to_owned());
        let key = named.unwrap_or_else(|| format!("http.{field}"));
        assert!(SETTINGS.iter().any(|setting| setting.key == key), "no setting for the field `{field}`");
    }
}

/// The keys of a kind, besides the common ones.
#[test]
fn operations_lists_the_keys_of_every_kind() {
    let page = read("docs/operations/stages.md");
    for kind in ["onnx", "image", "labels", "remote"] {
        let (_, rest) = page.split_once(&format!("`{kind}` (")).unwrap_or_else(|| panic!("`{kind}` is not described"));
        let (listed, _) = rest.split_once(')').expect("a closing parenthesis");
        let listed: Vec<&str> = listed.split(',').map(|key| key.trim().trim_matches('`')).collect();
        assert_eq!(listed, keys_of(kind), "{kind}");
    }
}

/// Requests a key that resembles no other; the error lists all keys.
fn keys_of(kind: &str) -> Vec<String> {
    let common: Vec<String> = knobs("`[[stage]]`").into_iter().map(|(key, _)| key).collect();
    let is_own = |key: &String| !["name", "kind"].contains(&key.as_str()) && !common.contains(key);
    known_keys(&stage(kind)).into_iter().filter(is_own).collect()
}

/// Every key that a page shows in a block of TOML, or names as a setting or as a key of a stage.
#[test]
fn the_file_takes_every_key_that_a_page_names() {
    let kinds = ["onnx", "image", "labels", "remote", "process", "python"];
    let of_stages: BTreeSet<String> = kinds.iter().flat_map(|kind| known_keys(&stage(kind))).collect();
    let route = format!("{}[[route]]\npath = \"/x\"\nstages = \"x\"\n", stage("image"));
    let of_routes = known_keys(&route);
    let of_processes = known_keys(&format!("{route}[[process]]\nname = \"x\"\ncommand = [\"x\"]\n"));
    let is_setting = |table: &str, key: &str| {
        let key = format!("{table}.{key}");
        SETTINGS.iter().any(|setting| setting.key == key)
    };
    let tables: BTreeSet<&str> = SETTINGS.iter().filter_map(|setting| Some(setting.key.split_once('.')?.0)).collect();
    // Modules and attributes, and a table of settings.
    let others =
        ["http.client", "http.disconnect", "http.server", "http.route", "http.start_server", "models.defaults"];

    let mut unknown = BTreeSet::new();
    for (page, text) in pages_and_docstrings() {
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let table: toml::Table = block.parse().unwrap_or_else(|error| panic!("{page}: {error}\n{block}"));
            for (name, value) in &table {
                let entries = value.as_array().map_or_else(|| vec![value], |entries| entries.iter().collect());
                for key in entries.iter().filter_map(|entry| entry.as_table()).flat_map(|entry| entry.keys()) {
                    let is_known = match name.as_str() {
                        "stage" => of_stages.contains(key),
                        "route" => of_routes.contains(key),
                        "process" => of_processes.contains(key),
                        "models" if key == "defaults" => true,
                        name if tables.contains(name) => is_setting(name, key),
                        _ => true,
                    };
                    unknown.extend((!is_known).then(|| format!("{page}: `{key}` in [{name}]")));
                }
                // A part of a stage or of a route.
                let is_part =
                    value.is_table() && table.len() == 1 || of_stages.contains(name) || of_routes.contains(name);
                let is_known =
                    is_part || ["stage", "route", "process"].contains(&name.as_str()) || tables.contains(name.as_str());
                unknown.extend((!is_known).then(|| format!("{page}: `{name}`")));
            }
        }
        for code in text.split('`').skip(1).step_by(2) {
            let is_word = code.chars().all(|c| c.is_ascii_lowercase() || "._0123456789".contains(c));
            if let Some((table, key)) = code.split_once('.').filter(|_| is_word && !others.contains(&code)) {
                // Files.
                let is_file = ["rs", "py", "toml", "onnx", "json"].contains(&key);
                let is_known = is_file || !tables.contains(table) || key.contains('.') || is_setting(table, key);
                unknown.extend((!is_known).then(|| format!("{page}: `{code}`")));
            }
        }
        for (at, _) in text.match_indices("` of the stage").chain(text.match_indices("` of a stage")) {
            let key = text[..at].rsplit('`').next().unwrap_or_default();
            // `note` is a part of the description of a running stage.
            let is_key = !key.is_empty() && key != "note" && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            unknown.extend((is_key && !of_stages.contains(key)).then(|| format!("{page}: `{key}` of a stage")));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

fn stage(kind: &str) -> String {
    format!("[[stage]]\nname = \"x\"\nkind = \"{kind}\"\n")
}

/// All keys of the last table in this text.
fn known_keys(text: &str) -> Vec<String> {
    let target = Target::File { path: PathBuf::from("f"), text: format!("{text}zzzzzzzzzzzz = 1\n") };
    let error = Plan::resolve(target, &Flags::new(), &Environment::default()).expect_err("an unknown key");
    let error = error.to_string();
    let (_, keys) = error.split_once("known: ").unwrap_or_else(|| panic!("no list in {error}"));
    keys.split(", ").map(str::to_owned).collect()
}

/// The pages of users, and the sources of the Python package, which have its reference.
fn pages_and_docstrings() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "SECURITY.md", "python/README.md"].map(|page| root().join(page)).to_vec();
    for directory in ["docs", "docs/migrate", "docs/operations", "docs/python", "docs/python/cookbook"] {
        paths.extend(markdown(&root().join(directory)));
    }
    let sources = fs::read_dir(root().join("python/src/callboard")).expect("a directory");
    paths.extend(sources.map(|entry| entry.expect("an entry").path()));
    // Not the extension of a developer.
    let is_text = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md" || extension == "py");
    paths
        .into_iter()
        .filter(is_text)
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("a text")))
        .collect()
}

/// Keys and defaults of the first table after this text.
fn knobs(heading: &str) -> Vec<(String, String)> {
    let page = read("docs/operations/stages.md");
    let (_, rest) =
        page.split_once(&format!("Every {heading}")).unwrap_or_else(|| panic!("{heading} is not described"));
    let rows = rest.lines().skip_while(|line| !line.starts_with("| key |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cell = |text: &str| text.trim().trim_matches('`').trim_matches('"').to_owned();
    rows.map(|row| {
        let cells: Vec<String> = row.split('|').map(cell).collect();
        (cells[1].clone(), cells[2].clone())
    })
    .collect()
}

/// The defaults on the page are those of `--explain`.
#[test]
fn operations_lists_the_knobs_of_stages_and_routes_with_their_defaults() {
    let text =
        "[[stage]]\nname = \"x\"\nkind = \"onnx\"\nmodel = \"x.onnx\"\n[[route]]\npath = \"/x\"\nstages = \"x\"\n";
    let target = Target::File { path: PathBuf::from("f"), text: text.to_owned() };
    let plan = Plan::resolve(target, &Flags::new(), &Environment::default()).expect("a plan");
    let explained = Explanation(&plan).to_string();
    let part = |title: &str| -> Vec<(String, String)> {
        let part = explained.split("\n\n").find(|part| part.starts_with(title)).expect(title);
        let columns = part.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let by_default = columns.filter(|columns| columns.last() == Some(&"default"));
        by_default.map(|columns| (columns[0].to_owned(), columns[1].to_owned())).collect()
    };
    let documented = |heading: &str| -> Vec<(String, String)> {
        let default =
            |name: &str| SETTINGS.iter().find(|setting| setting.key == name).map(|setting| setting.default.to_owned());
        knobs(heading).into_iter().map(|(key, value)| (key, default(&value).unwrap_or(value))).collect()
    };
    assert_eq!(documented("`[[stage]]`"), part("stage x"));
    assert_eq!(documented("`[[route]]`"), part("route /x"));
}

#[test]
fn errors_lists_every_kind_with_its_status_and_retryability() {
    let rows = rows("docs/errors.md", "| kind |");
    let kinds: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(kinds, ErrorKind::ALL.map(ErrorKind::as_str));

    for (cells, row) in rows.iter().zip(ErrorKind::TABLE) {
        assert!(cells[1].contains(&row.http_status.to_string()), "{row:?}: {} on the page", cells[1]);
        assert_eq!(cells[2].starts_with("yes"), row.is_retryable, "{row:?}: {} on the page", cells[2]);
        let grpc = cells[3].split(' ').next();
        assert_eq!(grpc, Some(&*row.grpc_status.to_string()), "{row:?}: {} on the page", cells[3]);
    }
}

/// Over HTTP the Python client decides on retries by itself.
#[test]
fn the_python_client_and_the_page_have_the_retries_of_the_policy() {
    let sources = ["policy", "transport"].map(|name| read(&format!("python/src/callboard/client/{name}.py"))).concat();
    let number = |name: &str| -> f64 {
        let line = sources.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no number `{name}`"))
    };
    let policy = RetryPolicy::default();
    let full = |after: Duration| -> CallError {
        ErrorParts { retry_after: Some(after), ..ErrorParts::new(ErrorKind::Overloaded, "full") }.into()
    };
    let pause = |attempt| policy.wait(&full(Duration::ZERO), attempt, 0.5).as_secs_f64();
    let attempts = (1..).find(|attempt| !policy.allows(&full(Duration::ZERO), *attempt)).unwrap_or(0);
    let (first, longest, retry_after) = (pause(1), pause(40), number("LONGEST_RETRY_AFTER"));
    assert_eq!((number("FIRST_PAUSE"), number("LONGEST_PAUSE")), (first, longest));
    assert_eq!(number("attempts: int"), f64::from(attempts));
    let is_allowed = |seconds| policy.allows(&full(Duration::from_secs_f64(seconds)), 1);
    assert!(is_allowed(retry_after) && !is_allowed(retry_after + 0.001), "{retry_after}");
    let budget = [RetryBudget::CALLS_FOR_ONE, RetryBudget::SECONDS, RetryBudget::RESERVE_PER_SECOND];
    assert_eq!(["CALLS_FOR_ONE", "SECONDS", "RESERVE_PER_SECOND"].map(number), budget.map(|number| number as f64));

    let page = read("docs/errors.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        format!("up to {attempts} attempts"),
        format!("doubles from {} ms to {longest} s", first * 1000.0),
        format!("asks for more than {retry_after} s"),
    ] {
        assert!(page.contains(&said), "docs/errors.md does not say `{said}`");
    }
}

#[test]
fn semantics_states_the_actual_bounds() {
    let page = read("docs/semantics.md");
    let bounds = rows("docs/semantics.md", "| what | default |");
    let default = |name: &str| {
        let row = bounds.iter().find(|row| row[0].contains(name)).unwrap_or_else(|| panic!("no bound on {name}"));
        row[1].replace(',', "")
    };
    assert_eq!(default("calls in flight"), Limits::DEFAULT_MAX_IN_FLIGHT.to_string());
    assert_eq!(default("memory that all calls"), format!("{} MiB", Limits::DEFAULT_MAX_IN_FLIGHT_BYTES >> 20));
    assert_eq!(default("entries waiting"), StageSettings::DEFAULT_QUEUE_ENTRIES.to_string());
    assert_eq!(default("time for a call"), format!("{} s", Deadline::DEFAULT_TIMEOUT.as_secs()));
    assert!(page.contains("at most one hour") && Deadline::MAX_TIMEOUT.as_secs() == 3600);
}

/// The buffers of a connection are constants of the HTTP crate, one a line: `const NAME: usize = 128 * 1024;`.
#[test]
fn operations_states_what_a_connection_may_hold() {
    let rows = rows("docs/operations/running.md", "| of one connection |");
    let [connection, windows, config] = ["listener/connection.rs", "listener/windows.rs", "config/mod.rs"]
        .map(|file| read(&format!("crates/http/src/{file}")));
    let number = |source: &str, prefix: &str, suffix: &str| -> u32 {
        let (_, rest) = source.split_once(prefix).unwrap_or_else(|| panic!("no {prefix}"));
        rest.split_once(suffix).and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("{prefix}"))
    };
    let constant = |name: &str| number(&connection, &format!("const {name}: usize = "), " * 1024;");
    let window = number(&config, "            http2_stream_window_bytes: ", " * 1024,");
    let window = window * number(&windows, "const STREAMS_OF_A_WINDOW: u32 = ", ";");
    for (name, kib) in [
        ("HTTP/1 read buffer", constant("MAX_READ_BUFFER")),
        ("HTTP/1 write buffer", constant("MAX_READ_BUFFER")),
        ("HTTP/2 window", window),
        ("HTTP/2 send buffer", constant("MAX_SEND_BUFFER")),
    ] {
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no row for {name}"));
        assert_eq!(row[1], format!("{kib} KiB"), "{name}");
    }
}

/// Settings by their keys, and fields of a program's own configuration by their types.
#[test]
fn security_names_existing_settings() {
    let sources = [
        ("HttpConfig", read("crates/http/src/config/mod.rs")),
        ("NetConfig", read("crates/net/src/server/mod.rs")),
        ("Tuning", read("crates/net/src/endpoint/tuning.rs")),
    ];
    for page in ["SECURITY.md", "docs/operations/running.md", "docs/operations/clusters.md"] {
        for code in read(page).split('`').skip(1).step_by(2) {
            let section = code.split_once('.').map_or("", |(section, _)| section);
            if page == "SECURITY.md" && ["http", "quic", "admin", "limits"].contains(&section) {
                assert!(SETTINGS.iter().any(|setting| setting.key == code), "there is no setting `{code}`");
            }
            let field = code.split_once("::").filter(|(_, field)| field.starts_with(|c: char| c.is_lowercase()));
            let source = field.and_then(|(name, _)| sources.iter().find(|(type_name, _)| *type_name == name));
            if let (Some((_, field)), Some((_, source))) = (field, source) {
                assert!(source.contains(&format!("    pub {field}: ")), "there is no field `{code}`");
            }
        }
    }
}

/// A program finds what it needs at the root; the rest is in modules by subject.
#[test]
fn the_root_of_the_library_has_at_most_sixty_names() {
    let source = read("src/lib.rs");
    let mut names = BTreeSet::new();
    // Items of modules are indented.
    for item in source.split("\npub ").skip(1) {
        let (item, _) = item
            .split_once([';', '{'])
            .filter(|(head, _)| head.starts_with("mod "))
            .unwrap_or_else(|| item.split_once(';').expect("it ends"));
        let list = item.strip_prefix("mod ").unwrap_or_else(|| item.rsplit_once("::").expect("a path").1);
        let list = item.split_once('{').map_or(list, |(_, list)| list);
        names.extend(list.split([',', '}', '\n']).map(str::trim).filter(|name| !name.is_empty()));
    }
    assert!(["Stage", "Server", "prelude", "call"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(names.len() <= 60, "{} names: {names:?}", names.len());
}

#[test]
fn the_page_for_rust_states_the_toolchain_and_features_of_the_manifest() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest is TOML");
    let page = read("docs/rust.md");
    let version = manifest["workspace"]["package"]["rust-version"].as_str().expect("a Rust version");
    assert!(page.contains(&format!("Rust {version} or newer")), "{version}");
    let features = manifest["features"].as_table().expect("features").keys();
    for feature in features.filter(|feature| *feature != "default") {
        assert!(page.contains(&format!("`{feature}`")), "feature `{feature}` is not in docs/rust.md");
    }
}

/// The main command and the tests come first, and CI runs both from there.
#[test]
fn the_readme_starts_with_the_two_commands_of_ci() {
    let readme = read("README.md");
    let mut commands = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let first_two = [commands.next(), commands.next()];
    assert_eq!(first_two, [Some("cargo run --release -- serve examples/digits"), Some("cargo test --workspace")]);
    let ci = read(".ci/run");
    for command in ["cargo run --release -- serve", "cargo test"] {
        assert!(ci.contains(&format!("$(readme_command '{command}')")), "{command}");
    }
}

/// `--help` takes its first sentence from the manifest.
#[test]
fn the_first_sentence_is_the_same_everywhere() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest is TOML");
    let sentence = manifest["workspace"]["package"]["description"].as_str().expect("a description");
    assert_eq!(read("README.md").lines().nth(2), Some(format!("{sentence}.").as_str()));
    assert_eq!(read("src/lib.rs").lines().next(), Some(format!("//! {sentence}.").as_str()));
    assert!(help().starts_with(sentence), "{}", help());
}

/// The commands of clap, in its order.
#[test]
fn pages_list_every_command() {
    let help = help();
    let (_, listed) = help.split_once("Commands:\n").expect("a list of commands");
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let commands: Vec<&str> = names.filter(|name| *name != "help").collect();

    let page = read("docs/operations/running.md");
    let block = page.lines().filter_map(|line| line.strip_prefix("    callboard ")?.split_whitespace().next());
    assert_eq!(block.take(commands.len()).collect::<Vec<_>>(), commands, "docs/operations/running.md");

    let sentence = commands.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for page in ["docs/rust.md", "crates/cli/src/lib.rs"] {
        let text = read(page).replace("\n//!", "").replace('\n', " ");
        assert!(text.contains(&sentence), "{page} does not list {sentence}");
    }
}

fn help() -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_callboard")).arg("--help").output().expect("the help");
    String::from_utf8(output.stdout).expect("the help is text")
}

#[test]
fn every_example_is_on_their_page_and_in_the_justfile() {
    let (page, justfile) = (read("examples/README.md"), read("justfile"));
    let entries =
        fs::read_dir(root().join("examples")).expect("a directory").map(|entry| entry.expect("an entry").path());
    let names = entries.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let names: Vec<String> =
        names.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("| [`{name}.rs`]({name}.rs) |")), "{name} is not in examples/README.md");
        assert!(justfile.contains(&format!("cargo run --example {name}\n")), "{name} is not in the justfile");
    }
}

/// Each word of the glossary has its type.
#[test]
fn the_glossary_names_existing_types() {
    let mut sources = String::new();
    gather(&root().join("crates"), &mut sources);
    let rows = rows("docs/glossary.md", "| word |");
    assert!(rows.len() > 20, "{} words", rows.len());
    for row in rows {
        for name in row[2].split(['`', ',', ' ']).filter(|name| !name.is_empty()) {
            let is_declared = ["struct", "enum", "trait"].into_iter().any(|kind| {
                let declaration = format!(" {kind} {name}");
                let mut rests =
                    sources.match_indices(&declaration).map(|(position, _)| &sources[position + declaration.len()..]);
                rests.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
            });
            assert!(is_declared, "{}: there is no type `{name}`", row[0]);
        }
    }
}

/// The text of all Rust files below a directory, without build outputs.
fn gather(directory: &Path, text: &mut String) {
    for path in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            gather(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// Every link to a file must lead to an existing file.
#[test]
fn links_between_pages_resolve() {
    let mut pages: Vec<PathBuf> = markdown(&root());
    let directories =
        ["docs", "docs/adr", "docs/migrate", "docs/operations", "docs/python", "docs/python/cookbook", "python"];
    for directory in directories {
        pages.extend(markdown(&root().join(directory)));
    }
    pages.extend(["examples/README.md", "examples/digits/README.md"].map(|page| root().join(page)));
    let mut broken = BTreeSet::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if path.contains("://") {
                continue;
            }
            let target = if path.is_empty() { page.clone() } else { page.parent().expect("a directory").join(path) };
            if !target.exists() || !has_heading(&target, anchor) {
                broken.insert(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A block of code with a title quotes the whole file of that name.
#[test]
fn titled_blocks_are_the_files_that_they_name() {
    let mut quoted = 0;
    for page in markdown(&root().join("docs/migrate")) {
        let text = fs::read_to_string(&page).expect("a page");
        for block in text.split("```python title=\"").skip(1) {
            let (path, rest) = block.split_once("\"\n").expect("the end of a title");
            let (code, _) = rest.split_once("```").expect("the end of a block");
            assert_eq!(code, read(path), "{}: {path} has changed", page.display());
            quoted += 1;
        }
    }
    assert!(quoted >= 13, "{quoted}");
}

/// The headers that users' code does not choose.
#[test]
fn the_http_edge_and_the_python_package_keep_the_same_headers_for_themselves() {
    let list = |path: &str, begin: &str, end: char| -> Vec<String> {
        let text = read(path);
        let (_, list) = text.split_once(begin).unwrap_or_else(|| panic!("{path} has no {begin}"));
        let (list, _) = list.split_once(end).expect("the list ends");
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let own = list("crates/http/src/error/mapping.rs", "OWN_HEADERS: [&str; 25] = [", ']');
    assert!(own.len() == 25 && own.contains(&"set-cookie".to_owned()), "{own:?}");
    assert_eq!(own, list("python/src/callboard/_headers.py", "OWN = (", ')'));
}

/// The recipes for additions name the files to touch.
#[test]
fn contributing_names_existing_files() {
    let text = read("CONTRIBUTING.md");
    let paths: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|code| code.contains('/')).collect();
    assert!(paths.len() >= 20, "{paths:?}");
    for path in paths.into_iter().filter(|path| !path.starts_with('.')) {
        assert!(root().join(path).exists(), "there is no `{path}`");
    }
}

fn has_heading(page: &Path, anchor: &str) -> bool {
    let slug = |heading: &str| {
        let slug_text =
            heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
        slug_text.replace(' ', "-")
    };
    anchor.is_empty()
        || fs::read_to_string(page).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix('#'))
                .any(|line| slug(line.trim_matches(['#', ' '])) == anchor)
        })
}

/// The rows of the table with this start of its heading; the cells without code marks.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let text = read(page);
    let mut lines = text.lines().skip_while(|line| !line.starts_with(heading));
    assert!(lines.next().is_some(), "{page} has no table that begins with {heading}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect())
        .collect()
}

fn markdown(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
