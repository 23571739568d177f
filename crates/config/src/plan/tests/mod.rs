//! The configuration from the user's view: a file, flags and variables go in; a plan or one helpful line comes out.

mod graphs;
mod knobs;
mod remote;

use std::path::PathBuf;
use std::time::Duration;

use callboard_core::Task;

use crate::*;

const DIGITS: &str = r#"
[[stage]]
name = "decode"
kind = "image"
width = 8
height = 8

[[stage]]
name = "digits"
kind = "onnx"
model = "digits.onnx"
max_batch_size = 32
max_delay = "5ms"

[[route]]
path = "/digits"
stages = ["decode", "digits"]
examples = [{ file = "seven.png" }]

[limits]
queue = 64
"#;

/// A line of it.
const STAGES_LINE: &str = "stages = [\"decode\", \"digits\"]";

const GATEWAY: &str = r#"
[[stage]]
name = "digits"
kind = "remote"

[[route]]
path = "/digits"
stages = "digits"
"#;

fn target(text: &str) -> Target {
    Target::File { path: PathBuf::from("dir/callboard.toml"), text: text.to_owned() }
}

fn plan(text: &str) -> Result<Plan, String> {
    plan_with(text, &[], &[])
}

fn plan_with(text: &str, flags: &[(&'static str, &str)], env: &[(&str, &str)]) -> Result<Plan, String> {
    let flags = flags.iter().map(|(flag, value)| (*flag, (*value).to_owned())).collect();
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Environment::try_new(env)
        .and_then(|env| Plan::resolve(target(text), &flags, &env))
        .map_err(|error| error.to_string())
}

/// `DIGITS` with one line replaced, and the error that it gives.
fn error_of(line: &str, replaced: &str) -> String {
    assert!(DIGITS.contains(line), "{line}");
    plan(&DIGITS.replacen(line, replaced, 1)).expect_err("an error")
}

#[test]
fn the_collector_of_opentelemetrys_variable_is_weaker_than_our_settings() {
    let standard = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://standard:4318");
    let collector = |text: &str, flags: &[(&'static str, &str)], env: &[(&str, &str)]| {
        let endpoint = plan_with(text, flags, env).unwrap().settings.otlp_endpoint;
        (endpoint.value.map(|origin| origin.host().to_owned()), endpoint.source)
    };
    let from_standard = (Some("standard".to_owned()), Source::Env("OTEL_EXPORTER_OTLP_ENDPOINT"));
    assert_eq!(collector(DIGITS, &[], &[standard]), from_standard);
    assert_eq!(collector(DIGITS, &[], &[(standard.0, "")]), (None, Source::Default));
    let with_file = format!("{DIGITS}\n[traces]\nendpoint = \"none\"\n");
    assert_eq!(collector(&with_file, &[], &[standard]).0, None);
    let ours = ("CALLBOARD_OTLP_ENDPOINT", "http://ours:4318");
    assert_eq!(collector(DIGITS, &[], &[standard, ours]).0.as_deref(), Some("ours"));
    assert_eq!(collector(DIGITS, &[("otlp-endpoint", "http://flag:4318")], &[standard]).0.as_deref(), Some("flag"));
    let error = plan_with(DIGITS, &[], &[(standard.0, "unix:///run/collector")]).unwrap_err();
    assert!(error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{error}");
}

#[test]
fn a_file_becomes_a_plan_in_its_own_order() {
    let plan = plan(DIGITS).unwrap();
    let names: Vec<_> = plan.stages.iter().map(|stage| stage.name.value.as_str()).collect();
    assert_eq!(names, ["decode", "digits"]);
    assert_eq!(plan.routes[0].steps.value.stages(), [&0, &1]);
    assert_eq!(plan.stages[1].max_batch_size, Sourced::new(32, Source::File { line: 12 }));
    assert_eq!(plan.stages[1].max_delay.value, Duration::from_millis(5));
    assert!(matches!(&plan.routes[0].examples[..], [ExamplePlan::File(path)] if path == "seven.png"));
    assert_eq!(plan.target.base(), "dir");
}

#[test]
fn a_stage_has_the_queue_of_the_limits_by_default() {
    let plan = plan(&DIGITS.replacen("max_delay = \"5ms\"", "queue = 7", 1)).unwrap();
    assert_eq!(plan.stages[0].queue, Sourced::new(64, Source::File { line: 21 }));
    assert_eq!(plan.stages[1].queue, Sourced::new(7, Source::File { line: 13 }));
}

#[test]
fn flags_override_variables_which_override_the_file() {
    let env = [("CALLBOARD_QUEUE", "2"), ("CALLBOARD_DRAIN", "2s")];
    let settings = plan_with(DIGITS, &[("drain", "1s")], &env).unwrap().settings;
    assert_eq!(settings.drain, Sourced::new(Duration::from_secs(1), Source::Flag("drain")));
    assert_eq!(settings.queue, Sourced::new(2, Source::Env("CALLBOARD_QUEUE")));
    assert_eq!(settings.default_timeout, Sourced::new(Duration::from_secs(30), Source::Default));
    assert_eq!(settings.http.value.to_string(), "127.0.0.1:8000");
}

#[test]
fn every_mistake_in_a_file_is_one_line_with_position_and_remedy() {
    let cases = [
        ("[limits]", "[limit]", "dir/callboard.toml:20: unknown key `limit`; did you mean `limits`?"),
        ("queue = 64", "qeue = 64", "dir/callboard.toml:21: limits: unknown key `qeue`; did you mean `queue`?"),
        (
            "queue = 64",
            "queue = 0",
            "dir/callboard.toml:21: limits.queue: expected a whole number from 1 to 1000000, found 0",
        ),
        (
            "max_batch_size = 32",
            "max_batch = 32",
            "dir/callboard.toml:12: stage `digits`: unknown key `max_batch`; did you mean `max_batch_size`?",
        ),
        (
            "max_delay = \"5ms\"",
            "max_delay_ms = 5",
            "dir/callboard.toml:13: stage `digits`: unknown key `max_delay_ms`; did you mean `max_delay`?",
        ),
        (
            "max_delay = \"5ms\"",
            "max_delay = 5",
            "dir/callboard.toml:13: stage `digits`: max_delay: \
             expected a duration from 0s to 1m, such as \"250ms\" or \"30s\", found 5",
        ),
        (
            "kind = \"onnx\"",
            "kind = \"onxx\"",
            "dir/callboard.toml:10: stage `digits`: kind: unknown stage kind `onxx`; did you mean `onnx`?",
        ),
        (
            "model = \"digits.onnx\"",
            "mdoel = \"digits.onnx\"",
            "dir/callboard.toml:11: stage `digits`: unknown key `mdoel`; did you mean `model`?",
        ),
        (
            "name = \"digits\"",
            "name = \"decode\"",
            "dir/callboard.toml:9: stage[1].name: there is a stage `decode` already, on line 3",
        ),
        (
            "stages = [\"decode\", \"digits\"]",
            "stages = [\"decode\", \"digit\"]",
            "dir/callboard.toml:17: route `/digits`: stages[1]: unknown stage `digit`; did you mean `digits`?",
        ),
        (
            "stages = [\"decode\", \"digits\"]",
            "",
            "dir/callboard.toml:15: route `/digits`: `stages` is missing: \
             expected the names of one or more stages, such as [\"decode\", \"model\"]",
        ),
        (
            "path = \"/digits\"",
            "path = \"digits\"",
            "dir/callboard.toml:16: route `digits`: path: `digits` cannot be a route: a route is a plain path such as `/digits`",
        ),
        (
            "path = \"/digits\"",
            "pth = \"/digits\"",
            "dir/callboard.toml:16: route[0]: unknown key `pth`; did you mean `path`?",
        ),
        (
            "{ file = \"seven.png\" }",
            "\"seven.png\"",
            "dir/callboard.toml:18: route `/digits`: examples[0]: expected a table, found \"seven.png\"",
        ),
    ];
    for (line, replaced, expected) in cases {
        assert_eq!(error_of(line, replaced), expected);
    }
}

#[test]
fn a_missing_key_of_a_kind_names_the_stage() {
    assert_eq!(error_of("model = \"digits.onnx\"", ""), "dir/callboard.toml:8: stage `digits`: missing field `model`");
}

#[test]
fn a_file_without_stages_or_routes_says_what_to_add() {
    assert_eq!(plan("").unwrap_err(), "dir/callboard.toml:1: `stage` is missing: expected at least one [[stage]]");
}

#[test]
fn a_route_has_a_task_that_a_call_by_its_name_can_do() {
    let path = "path = \"/digits\"";
    let with = |line: &str| DIGITS.replacen(path, &format!("{path}\n{line}"), 1);
    assert_eq!(plan(&with("openai = \"embed\"")).unwrap().routes[0].task.value, Some(Task::Embed));
    assert_eq!(plan(DIGITS).unwrap().routes[0].task.value, None);
    let aliases =
        plan(&with("openai = \"embed\"\naliases = [\"a-1\", \"b\"]")).unwrap().routes[0].aliases.value.clone();
    assert_eq!(aliases, ["a-1", "b"]);
    let refused = plan(&with("aliases = [\"a\"]")).unwrap_err();
    assert!(refused.contains("`openai` makes one"), "{refused}");
    let refused = plan(&with("openai = \"embed\"\naliases = [\"a\", \"a\"]")).unwrap_err();
    assert!(refused.contains("different names of a model"), "{refused}");
    let tasks = "expected one of \"chat\", \"complete\", \"embed\", \"rerank\", \"moderate\"";
    let refused = plan(&with("openai = \"draw\"")).unwrap_err();
    assert!(refused.contains(tasks), "{refused}");
    let get = with("openai = \"embed\"\nmethods = [\"GET\"]");
    let parameter = get.replacen(path, "path = \"/digits/{kind}\"", 1).replace("methods = [\"GET\"]", "");
    for text in [get, parameter] {
        let refused = plan(&text).unwrap_err();
        assert!(refused.contains("a model is called by `POST` and its name"), "{refused}");
    }
}

#[test]
fn routes_share_a_path_by_different_methods() {
    let with = |routes: &[(&str, &str)]| {
        let stage = "[[stage]]\nname = \"x\"\nkind = \"labels\"\n".to_owned();
        let route =
            |(path, methods): &(&str, &str)| format!("[[route]]\npath = \"{path}\"\nstages = \"x\"\n{methods}\n");
        plan(&(stage + &routes.iter().map(route).collect::<String>()))
    };
    let (get, put) = ("methods = [\"GET\"]", "methods = [\"PUT\", \"GET\"]");
    let found = with(&[("/a", get), ("/a", ""), ("DELETE /a", ""), ("POST /b", "")]).unwrap();
    let names: Vec<_> = found.routes.iter().map(|route| (&*route.path.value, route.methods.value.join(","))).collect();
    let expected = [("GET /a", "GET"), ("/a", ""), ("DELETE /a", "DELETE"), ("/b", "POST")];
    assert_eq!(names, expected.map(|(name, methods)| (name, methods.to_owned())));
    for (routes, message) in [
        (&[("/a", get), ("GET /a", "")], "there is a route `GET /a` already, on line 5"),
        (&[("/a", get), ("/a", put)], "GET calls both `GET /a` and `PUT /a`: give one of them other `methods`"),
        (&[("/a", ""), ("PUT /b", get)], "`path` begins with PUT, and the methods of the route are GET"),
        (&[("/a", ""), ("FETCH /b", "")], "the methods of the route are GET, POST, PUT, PATCH, DELETE"),
        (&[("/a", ""), ("GET /metrics", "")], "`GET /metrics` cannot be a route"),
    ] {
        let refused = with(routes).unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
}

#[test]
fn a_route_is_a_tool_that_a_call_by_its_name_can_do() {
    let path = "path = \"/digits\"";
    let with = |line: &str| DIGITS.replacen(path, &format!("{path}\n{line}"), 1);
    let tool = plan(&with("mcp = true\ndescription = \"Reads\\na digit.\"")).unwrap().routes.remove(0);
    assert_eq!((tool.mcp.value, tool.description.as_deref()), (true, Some("Reads\na digit.")));
    assert!(!plan(DIGITS).unwrap().routes[0].mcp.value);
    let refused = plan(&with("mcp = true\nmethods = [\"GET\"]")).unwrap_err();
    assert!(refused.contains("a tool is called by `POST` and its name"), "{refused}");
}

#[test]
fn a_body_limit_over_the_byte_budget_is_refused_with_both_sources() {
    let error = plan_with(DIGITS, &[("max-in-flight-bytes", "1MiB")], &[]).unwrap_err();
    assert_eq!(
        error,
        "http.max_body_bytes = 64MiB (default) does not go with limits.max_in_flight_bytes = 1MiB (--max-in-flight-bytes): \
         such a body could never be admitted"
    );
}

#[test]
fn a_bare_model_becomes_one_stage_and_one_route_with_its_name() {
    let target = Target::Model { path: PathBuf::from("models/my model.v2.onnx") };
    let plan = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap();
    assert_eq!(plan.stages[0].name, Sourced::new("my-model.v2".to_owned(), Source::Target));
    assert_eq!(plan.routes[0].path.value, "/my-model.v2");
    assert_eq!(plan.routes[0].steps.value, Steps::Stage(0));
}

#[test]
fn the_file_of_a_program_has_only_settings() {
    let file = |text: &str| Target::Program { file: Some((PathBuf::from("c.toml"), text.to_owned())) };
    let resolve = |text: &str| Plan::resolve(file(text), &Flags::new(), &Environment::default());
    let plan = resolve("[http]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    assert_eq!(plan.settings.http.source, Source::File { line: 2 });
    let error = resolve(DIGITS).unwrap_err().to_string();
    let known = "http, quic, admin, api, mcp, files, models, actors, log, errors, traces, limits";
    let process = if cfg!(feature = "process") { ", process" } else { "" };
    assert_eq!(error, format!("c.toml:2: unknown key `stage`; known: {known}{process}"));
    let error = resolve("[limits]\nqueue = 5\n").unwrap_err().to_string();
    assert_eq!(error, "limits.queue = 5 (line 2) has no effect here: the stages of a program set their own queues");
    let error = resolve("[actors]\nstore = \"memory\"\n").unwrap_err().to_string();
    assert!(error.starts_with("actors.store = memory (line 2) has no effect here: "), "{error}");
}

#[test]
fn the_store_of_keyed_classes_is_a_file_a_server_or_memory() {
    let store =
        |text: &str| plan_with(DIGITS, &[("actor-store", text)], &[]).map(|plan| plan.settings.actor_store.value);
    assert_eq!(store("auto"), Ok(StateStoreAt::Auto));
    assert_eq!(store("memory"), Ok(StateStoreAt::Memory));
    assert_eq!(store("carts.redb"), Ok(StateStoreAt::File("carts.redb".into())));
    assert_eq!(store("env:CARTS"), Ok(StateStoreAt::Server("CARTS".to_owned())));
    assert_eq!(store("./a=b"), Ok(StateStoreAt::File("./a=b".into())));
    for wrong in ["none", "env:", "env:A-B", "", "postgres://db/carts", "postgres:db", "host = db", "Memory", "AUTO"] {
        assert!(store(wrong).unwrap_err().contains("\"env:NAME\" for a variable"), "{wrong}");
    }
    for (typed, shown) in [
        ("postgres://me:hunter2@db/carts", "found \"postgres://…\""),
        ("postgres://me:hunter2", "found \"postgres://…\""),
        ("host=db user=me password=hunter2", "found \"…\""),
    ] {
        let error = store(typed).unwrap_err();
        assert!(error.ends_with(shown) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn no_error_of_a_setting_shows_a_password() {
    for flag in ["otlp-endpoint", "mcp-url", "authorization-servers", "file-hosts", "actor-store"] {
        let error = plan_with(DIGITS, &[(flag, "ftp://me:hunter2@host/x y")], &[]).unwrap_err();
        assert!(!error.contains("hunter2") && error.contains("…"), "{flag}: {error}");
    }
    for (flag, typed) in [
        ("actor-store", "env:postgres://me:hunter2@db"),
        ("actor-store", "user = me pwd = hunter2"),
        ("api-keys", "env:sk-hunter2"),
        ("mcp-url", "tools/mcp?token=hunter2"),
    ] {
        let error = plan_with(DIGITS, &[(flag, typed)], &[]).unwrap_err();
        assert!(!error.contains("hunter2"), "{flag}: {error}");
    }
    let error = plan("[actors]\nstore = \"postgres://me:hunter2@db\"\n").unwrap_err();
    assert!(!error.contains("hunter2") && error.contains("…"), "{error}");
}

#[test]
fn an_explanation_names_the_source_of_every_value() {
    let plan = plan_with(DIGITS, &[("http", "localhost:9000")], &[("CALLBOARD_DRAIN", "5s")]).unwrap();
    let text = Explanation(&plan).to_string();
    let has_row = |cells: &[&str]| {
        text.lines()
            .any(|line| line.split("  ").map(str::trim).filter(|part| !part.is_empty()).eq(cells.iter().copied()))
    };
    assert!(has_row(&["http.listen", "127.0.0.1:9000", "--http"]), "{text}");
    assert!(has_row(&["limits.drain", "5s", "CALLBOARD_DRAIN"]), "{text}");
    assert!(has_row(&["limits.queue", "64", "line 21"]), "{text}");
    assert!(has_row(&["limits.max_in_flight", "16384", "default"]), "{text}");
    assert!(has_row(&["model", "\"digits.onnx\"", "line 11"]), "{text}");
    assert!(has_row(&["max_batch_size", "32", "line 12"]), "{text}");
    assert!(has_row(&["stages", "decode → digits", "line 17"]), "{text}");
    for name in SETTINGS {
        assert!(text.contains(name.key), "{} is missing in {text}", name.key);
    }
}

#[test]
fn an_unused_stage_is_reported() {
    let plan = plan(&DIGITS.replacen("[\"decode\", \"digits\"]", "[\"digits\"]", 1)).unwrap();
    assert_eq!(plan.unused_stages().map(|stage| stage.name.value.as_str()).collect::<Vec<_>>(), ["decode"]);
    assert!(Explanation(&plan).to_string().contains("stage decode is used by no route"));
}

#[test]
fn a_path_that_cannot_be_served_names_its_line() {
    let path_line = "path = \"/digits\"";
    for (path, reason) in [
        ("/a b?c", "`/a b?c` cannot be a route: a route is a plain path such as `/digits`"),
        ("/", "`/` cannot be a route: a route is a plain path such as `/digits`"),
        ("digits", "`digits` cannot be a route: a route is a plain path such as `/digits`"),
        ("/metrics", "`/metrics` cannot be a route: the http edge keeps that path for itself"),
        ("/docs/mine", "`/docs/mine` cannot be a route: the http edge keeps that path for itself"),
        ("@asgi/docs", "`@asgi/docs` cannot be a route: the http edge keeps that path for itself"),
    ] {
        let error = error_of(path_line, &format!("path = {path:?}"));
        assert_eq!(error, format!("dir/callboard.toml:16: route `{path}`: path: {reason}"));
    }
    let target = Target::Model { path: PathBuf::from("models/metrics.onnx") };
    let error = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap_err().to_string();
    assert!(error.starts_with("models/metrics.onnx: rename it: `/metrics` cannot be a route"), "{error}");
}

#[test]
fn a_route_below_an_app_names_both() {
    let app = "[[route]]\npath = \"@asgi/old\"\nstages = [\"digits\"]\n\n";
    let below = app.replace("@asgi/old", "/old/digits");
    let error = plan(&format!("{DIGITS}\n{app}{below}")).unwrap_err();
    assert!(error.ends_with("`/old/digits` is a path of the app that is mounted at `/old`"), "{error}");
    assert!(plan(&format!("{DIGITS}\n{app}")).is_ok());
}

#[test]
fn a_value_over_several_lines_is_explained_on_one_line() {
    let text =
        DIGITS.replacen("model = \"digits.onnx\"", "kind = \"labels\"\nnames = [\n  \"zero\",\n  \"one\",\n]", 1);
    let text = text.replacen("kind = \"onnx\"\n", "", 1);
    let explained = Explanation(&plan(&text).unwrap()).to_string();
    assert!(explained.contains("[ \"zero\", \"one\", ]"), "{explained}");
}

#[cfg(feature = "onnx")]
#[test]
fn too_many_threads_are_refused_with_their_line() {
    let error = error_of("max_batch_size = 32", "threads = 200000");
    let expected = "dir/callboard.toml:12: stage `digits`: threads: invalid value: integer `200000`, expected at most 1024 threads";
    assert_eq!(error, expected);
}
