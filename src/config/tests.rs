//! The configuration from the user's view: a file, flags and variables go in; a plan or one helpful line comes out.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::Diagram;

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
    assert_eq!(plan.routes[0].steps.value.stages(), [0, 1]);
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
    assert_eq!(plan.routes[0].steps.value, StepPlan::Stage(0));
}

#[test]
fn the_file_of_a_program_has_only_settings() {
    let file = |text: &str| Target::Program { file: Some((PathBuf::from("c.toml"), text.to_owned())) };
    let resolve = |text: &str| Plan::resolve(file(text), &Flags::new(), &Environment::default());
    let plan = resolve("[http]\nlisten = \"127.0.0.1:0\"\n").unwrap();
    assert_eq!(plan.settings.http.source, Source::File { line: 2 });
    let error = resolve(DIGITS).unwrap_err().to_string();
    assert_eq!(
        error,
        "c.toml:2: unknown key `stage`; known: http, quic, admin, api, files, models, log, errors, traces, limits, process"
    );
    let error = resolve("[limits]\nqueue = 5\n").unwrap_err().to_string();
    assert_eq!(error, "limits.queue = 5 (line 2) has no effect here: the stages of a program set their own queues");
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
    ] {
        let error = error_of(path_line, &format!("path = {path:?}"));
        assert_eq!(error, format!("dir/callboard.toml:16: route `{path}`: path: {reason}"));
    }
    let target = Target::Model { path: PathBuf::from("models/metrics.onnx") };
    let error = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap_err().to_string();
    assert!(error.starts_with("models/metrics.onnx: rename it: `/metrics` cannot be a route"), "{error}");
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

const STAGES_LINE: &str = "stages = [\"decode\", \"digits\"]";

/// The steps of a route in one line, or the error without its place in the file.
fn steps(text: &str) -> Result<String, String> {
    let plan = plan(&DIGITS.replacen(STAGES_LINE, &format!("stages = {text}"), 1)).map_err(|error| {
        let prefix = "dir/callboard.toml:17: route `/digits`: ";
        error.strip_prefix(prefix).unwrap_or_else(|| panic!("{error} is not at {prefix}")).to_owned()
    })?;
    Ok(plan.shape_of(&plan.routes[0]).to_string())
}

#[test]
fn steps_are_displayed_as_they_are_written() {
    let cases = [
        (r#""digits""#, "digits"),
        (r#"["decode", ["digits"]]"#, "decode → digits"),
        (r#"{ ensemble = { z = "digits", a = [] } }"#, "(z: digits | a: ·)"),
        (r#"[{ ensemble = { z = "digits" }, partial = true }]"#, "(z: digits)?"),
        (
            r#"{ switch = "want", cases = { b = "digits", 2 = ["decode", { pick = "x" }] }, default = [] }"#,
            "switch want{b: digits / 2: decode → [pick x] / default: ·}",
        ),
        (r#"[{ rename = { a = "b", c = "d" } }, "digits"]"#, "[rename a to b, c to d] → digits"),
        (
            r#"["decode", { ensemble = { a = { switch = "s", cases = { x = { ensemble = { n = "digits" } } } } } }]"#,
            "decode → (a: switch s{x: (n: digits)})",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(steps(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn every_mistake_in_a_graph_is_one_line_with_position_and_remedy() {
    const STEP: &str = "expected the name of a stage, a list of steps, or a table with one of the keys ensemble, switch, pick and rename";
    let cases = [
        ("5", format!("stages: {STEP}, found 5")),
        (r#"["digits", {}]"#, format!("stages[1]: {STEP}, found a value of type table")),
        (r#"{ partial = true }"#, format!("stages: {STEP}, found a value of type table")),
        (
            "[]",
            "stages: expected the names of one or more stages, such as [\"decode\", \"model\"], found a value of type array"
                .to_owned(),
        ),
        (
            r#"{ pick = "x" }"#,
            "stages: expected the names of one or more stages, such as [\"decode\", \"model\"], found a value of type table"
                .to_owned(),
        ),
        (
            r#"["decode", { ensemble = { a = "digits", b = ["digts"] } }]"#,
            "stages[1].ensemble.b[0]: unknown stage `digts`; did you mean `digits`?".to_owned(),
        ),
        (
            r#"{ switch = "want", cases = { a = "zzz" } }"#,
            "stages.cases.a: unknown stage `zzz`; known: decode, digits".to_owned(),
        ),
        (r#"{ ensembel = { a = "digits" } }"#, "stages: unknown key `ensembel`; did you mean `ensemble`?".to_owned()),
        (
            r#"{ ensemble = { a = "digits" }, default = "digits" }"#,
            "stages: unknown key `default`; known: ensemble, partial".to_owned(),
        ),
        (
            r#"{ switch = "want", case = { a = "digits" } }"#,
            "stages: unknown key `case`; did you mean `cases`?".to_owned(),
        ),
        (
            r#"{ ensemble = { a = "digits" }, switch = "want", cases = { a = "digits" } }"#,
            "stages: `ensemble` and `switch` are two steps: give each a table of its own".to_owned(),
        ),
        (
            r#"{ ensemble = ["digits"] }"#,
            "stages.ensemble: expected a table of one or more steps by name, such as \
             { digit = [\"model\", \"labels\"], raw = \"model\" }, found a value of type array"
                .to_owned(),
        ),
        (
            r#"{ switch = "want" }"#,
            "stages: `cases` is missing: expected a table of one or more steps by value, such as \
             { small = \"one\", large = \"other\" }"
                .to_owned(),
        ),
        (
            r#"{ switch = "want", cases = {} }"#,
            "stages.cases: expected a table of one or more steps by value, such as \
             { small = \"one\", large = \"other\" }, found a value of type table"
                .to_owned(),
        ),
        (
            r#"{ ensemble = { a = "digits" }, partial = "yes" }"#,
            "stages.partial: expected true or false, found \"yes\"".to_owned(),
        ),
        (
            r#"["digits", { rename = { a = "x", b = "x" } }]"#,
            "stages[1].rename.b: `a` is to be called `x` already".to_owned(),
        ),
        (r#"["digits", { pick = 5 }]"#, "stages[1].pick: expected the name of a field, found 5".to_owned()),
    ];
    for (text, expected) in cases {
        assert_eq!(steps(text), Err(expected), "{text}");
    }
}

#[test]
fn a_nested_mistake_in_a_graph_has_its_own_line() {
    let text = "stages = [\n  \"decode\",\n  { switch = \"want\", cases = {\n    a = \"digits\",\n    b = \"digitz\",\n  } },\n]";
    let error = error_of(STAGES_LINE, text);
    let expected =
        "dir/callboard.toml:21: route `/digits`: stages[1].cases.b: unknown stage `digitz`; did you mean `digits`?";
    assert_eq!(error, expected);
}

#[test]
fn nested_steps_have_a_maximum_depth() {
    let nested = |depth: usize| format!("{}\"digits\"{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(steps(&nested(15)).as_deref(), Ok("digits"));
    let error = steps(&nested(16)).unwrap_err();
    assert!(error.ends_with(": steps inside steps, more than 16 deep"), "{error}");
}

#[test]
fn a_stage_in_a_branch_counts_as_used() {
    let text = r#"stages = ["decode", { switch = "s", cases = { a = [] }, default = { pick = "x" } }]"#;
    let plan = plan(&DIGITS.replacen(STAGES_LINE, text, 1)).unwrap();
    let unused: Vec<&str> = plan.unused_stages().map(|stage| stage.name.value.as_str()).collect();
    assert_eq!(unused, ["digits"]);
    let text = r#"stages = ["decode", { switch = "s", cases = { a = [] }, default = "digits" }]"#;
    assert_eq!(self::plan(&DIGITS.replacen(STAGES_LINE, text, 1)).unwrap().unused_stages().count(), 0);
}

#[cfg(feature = "onnx")]
#[test]
fn the_knobs_of_a_stage_are_read_and_explained_with_their_lines() {
    let knobs = "contract = \"at_most_once\"\ntimeout = \"2s\"\nmax_abandoned_threads = 1\ncost = \"rows\"\n\
                 max_cost = 4096\nageing = \"1s\"\naffinity = [2, 3]\nrevision = 2\nsplit = { 10 = 1, 2 = 9 }";
    let text = DIGITS.replacen("max_delay = \"5ms\"", knobs, 1);
    let plan = plan(&format!("{text}\n[quic]\njoin = [\"127.0.0.1:4433\"]\n")).unwrap();
    let text = Explanation(&plan).to_string();
    let stage = text.split("\n\n").find(|part| part.starts_with("stage digits")).unwrap();
    for row in [
        "contract at_most_once line 13",
        "timeout 2s line 14",
        "max_abandoned_threads 1 line 15",
        "cost rows line 16",
        "max_cost 4096 line 17",
        "ageing 1s line 18",
        "affinity [2, 3] line 19",
        "revision 2 line 20",
        "split { 2 = 9, 10 = 1 } line 21",
    ] {
        let is_listed = stage.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == row);
        assert!(is_listed, "{row} is not in {stage}");
    }
    let decode = text.split("\n\n").find(|part| part.starts_with("stage decode")).unwrap();
    let has_row = |row: &str| decode.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == row);
    assert!(
        has_row("contract pure default") && has_row("timeout none default") && has_row("affinity any default"),
        "{decode}"
    );
    assert!(!decode.contains("max_cost"), "image stages have no cost: {decode}");
}

#[test]
fn the_limits_of_a_route_are_read_and_explained_with_their_lines() {
    let limits =
        format!("{STAGES_LINE}\nmax_in_flight = 3\ntimeout = \"2s\"\npriority = \"low\"\nmax_body_bytes = \"1MiB\"");
    let plan = plan(&DIGITS.replacen(STAGES_LINE, &limits, 1)).unwrap();
    let text = Explanation(&plan).to_string();
    let route = text.split("\n\n").find(|part| part.starts_with("route /digits")).unwrap();
    for row in ["max_in_flight 3 line 18", "timeout 2s line 19", "priority low line 20", "max_body_bytes 1MiB line 21"]
    {
        let is_listed = route.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == row);
        assert!(is_listed, "{row} is not in {route}");
    }
}

#[cfg(feature = "onnx")]
#[test]
fn every_mistake_in_a_knob_is_one_line_with_position_and_remedy() {
    let delay = "max_delay = \"5ms\"";
    let cases = [
        (
            "contract = \"twice\"",
            "contract: expected one of \"at_most_once\", \"idempotent\", \"pure\", found \"twice\"",
        ),
        ("timeout = 5", "timeout: expected a duration from 1ms to 1h, such as \"250ms\" or \"30s\", found 5"),
        (
            "crash_retries = 2\ncontract = \"at_most_once\"",
            "crash_retries: it has no effect under the contract `at_most_once`, which repeats nothing",
        ),
        (
            "max_abandoned_threads = 2",
            "max_abandoned_threads: it has no effect without `timeout`, which decides when a thread hangs",
        ),
        (
            "cache = \"1MiB\"\ncontract = \"idempotent\"",
            "cache: it has no effect without `contract = \"pure\"`: only then an answer depends on nothing but its input",
        ),
        ("cache_shared = true", "cache_shared: it has no effect without `cache`"),
        (
            "scale_delay = \"1s\"\nreplicas = 3",
            "scale_delay: it has no effect without room to grow, such as `replicas = { min = 1, max = 4 }`",
        ),
        (
            "idle = \"1m\"\nreplicas = { min = 1, max = 3 }",
            "idle: it has no effect without `replicas = { min = 0, … }`: the last replica stays",
        ),
        ("replicas = { min = 3, max = 1 }", "replicas: min = 3 is more than max = 1"),
        (
            "pinned = true\nreplicas = { min = 0, max = 3 }",
            "pinned: a pinned stage always has a replica, and `replicas` has `min = 0`",
        ),
        (
            "memory = \"1GiB\"",
            "memory: it has no effect on a stage that is loaded at all times and not `pinned`: its bytes count nowhere",
        ),
        ("cache = \"1KiB\"", "cache: expected a size from 64KiB to 1024GiB, such as \"64MiB\", found \"1KiB\""),
        ("cost = \"bytes\"", "cost: expected one of \"entries\", \"rows\", \"tokens\", found \"bytes\""),
        (
            "max_cost = 64",
            "max_cost: it has no effect without `cost = \"rows\"` or `\"tokens\"`: the number of entries is bounded by \
             `max_batch_size`",
        ),
        ("cost = \"tokens\"", "cost: it has no effect as `tokens` without `pad`, which names the axis that is counted"),
        (
            "affinity = [1, 1]",
            "affinity: expected a list of different cores from 0 to 8191, such as [0, 1], found a value of type array",
        ),
        (
            "split = { 1 = 0 }",
            "split: expected weights from 0 to 1000000 of at most 16 revisions, such as { 1 = 9, 2 = 1 }, \
             found a value of type table",
        ),
        (
            "split = { 01 = 1 }",
            "split: expected weights from 0 to 1000000 of at most 16 revisions, such as { 1 = 9, 2 = 1 }, \
             found a value of type table",
        ),
        ("revision = -1", "revision: expected a whole number from 0 to 999999, found -1"),
        ("affinty = [1]", "unknown key `affinty`; did you mean `affinity`?"),
    ];
    for (line, expected) in cases {
        assert_eq!(error_of(delay, line), format!("dir/callboard.toml:13: stage `digits`: {expected}"));
    }
    let paddings = [
        ("pad = { axis = [] }", "expected the name or the number of an axis"),
        ("pad = { value = 1 }", "missing field `axis`"),
        ("pad = { axis = 1, bucket = [8] }", "unknown field `bucket`, expected one of `axis`, `value`, `values`"),
        ("pad = { axis = 1, buckets = [8, 4] }", "expected ascending lengths from 1 to 1048576"),
    ];
    for (line, expected) in paddings {
        let error = error_of(delay, line);
        assert!(error.starts_with("dir/callboard.toml:13: stage `digits`: pad") && error.contains(expected), "{error}");
    }
    let cost = error_of("height = 8", "height = 8\ncost = \"rows\"");
    assert_eq!(
        cost,
        "dir/callboard.toml:7: stage `decode`: cost: it has no effect on stages of kind `image`, whose items have no rows"
    );
    let labels = "kind = \"labels\"\ntimeout = \"1s\"";
    let text = DIGITS.replacen("model = \"digits.onnx\"\n", "", 1).replacen("kind = \"onnx\"", labels, 1);
    assert_eq!(
        plan(&text).unwrap_err(),
        "dir/callboard.toml:11: stage `digits`: timeout: \
         it has no effect on stages of kind `labels`, which have no threads of their own"
    );
    let route = [
        ("priority = \"urgent\"", "priority: expected one of \"high\", \"normal\", \"low\", found \"urgent\""),
        ("max_in_flight = 0", "max_in_flight: expected a whole number from 1 to 1000000, found 0"),
    ];
    for (line, expected) in route {
        let error = error_of(STAGES_LINE, &format!("{STAGES_LINE}\n{line}"));
        assert_eq!(error, format!("dir/callboard.toml:18: route `/digits`: {expected}"));
    }
}

#[test]
fn the_diagram_of_a_plan_has_the_steps_of_its_explanation() {
    let text = r#"stages = ["decode", { ensemble = { a = { pick = "x" }, b = [] }, partial = true },
      { switch = "want", cases = { b = "digits", c = { rename = { x = "y" } } }, default = [] }]"#;
    let plan = plan(&DIGITS.replacen(STAGES_LINE, text, 1)).unwrap();
    let shown = plan.shape_of(&plan.routes[0]).to_string();
    let sketch = crate::assemble::sketch(&plan);
    assert_eq!(sketch.to_string(), format!("/digits: {shown}\n"));
    let drawn = Diagram::for_routes([("/digits", plan.shape_of(&plan.routes[0]))]);
    assert_eq!(Diagram::for_app(&sketch).to_mermaid(), drawn.to_mermaid());
}

const GATEWAY: &str = r#"
[[stage]]
name = "digits"
kind = "remote"

[[route]]
path = "/digits"
stages = "digits"
"#;

fn gateway(keys: &str) -> Result<Plan, String> {
    let text = GATEWAY.replacen("\n\n[[route]]", &format!("\n{keys}\n[[route]]"), 1);
    plan_with(&text, &[("join", "127.0.0.1:4433")], &[])
}

#[test]
fn a_remote_stage_has_only_a_field_and_a_split() {
    let plan = gateway("field = \"image\"\nsplit = { 1 = 9, 2 = 1 }").unwrap();
    assert!(matches!(&plan.stages[0].kind, StageKind::Remote(config) if config.field.as_deref() == Some("image")));
    assert_eq!(plan.stages[0].split.value, [(1, 9), (2, 1)]);
    let explanation = Explanation(&plan).to_string();
    let stage: Vec<&str> = explanation.lines().skip_while(|line| *line != "stage digits (remote)").take(4).collect();
    let expected = ["  field  \"image\"           line 5", "  split  { 1 = 9, 2 = 1 }  line 6", ""];
    assert_eq!(stage[1..], expected, "{explanation}");
    assert!(explanation.contains("  stages          ↗digits  "), "{explanation}");

    let batches = "the nodes that run it form its batches: set it there";
    let workers = "its workers are on the nodes that run it: set it there";
    let queues = "its calls wait on the nodes that run it: set it there";
    let cases = [
        ("max_batch_size = 8", batches),
        ("max_delay = \"1ms\"", batches),
        ("cost = \"rows\"", batches),
        ("max_cost = 8", batches),
        ("replicas = 2", workers),
        ("scale_delay = \"1s\"", workers),
        ("idle = \"1m\"", workers),
        ("pinned = true", workers),
        ("memory = \"1GiB\"", workers),
        ("affinity = [0]", workers),
        ("max_abandoned_threads = 1", workers),
        ("queue = 8", queues),
        ("ageing = \"1s\"", queues),
        ("contract = \"pure\"", "the nodes that run it say whether it may be run again: set it there"),
        ("crash_retries = 2", workers),
        ("cache = \"1MiB\"", "the nodes that run it keep its answers: set it there"),
        ("revision = 1", "the nodes that run it say which one they run; `split` divides its calls between them"),
        (
            "timeout = \"1s\"",
            "its code runs on other nodes: set it there, or the `timeout` of the route, which holds wherever its stages run",
        ),
    ];
    for (line, reason) in cases {
        let key = line.split(' ').next().unwrap();
        let expected = format!(
            "dir/callboard.toml:5: stage `digits`: {key}: it has no effect on stages of kind `remote`: {reason}"
        );
        assert_eq!(gateway(line).unwrap_err(), expected);
    }
    let prefix = "dir/callboard.toml:5: stage `digits`";
    let unknown_keys = [
        ("model = \"digits.onnx\"", "unknown key `model`; known: name, kind, field, split"),
        ("fild = \"image\"", "unknown key `fild`; did you mean `field`?"),
    ];
    for (line, expected) in unknown_keys {
        assert_eq!(gateway(line).unwrap_err(), format!("{prefix}: {expected}"));
    }
    let empty = gateway("field = \"\"").unwrap_err();
    assert!(empty.starts_with(&format!("{prefix}: field: expected the name of a field")), "{empty}");
}

#[test]
fn a_remote_stage_on_a_single_node_is_refused() {
    let expected = "dir/callboard.toml:3: stage `digits`: kind `remote` is for a node that has others: neither quic.listen \
                    (--quic) nor quic.join (--join) is set";
    assert_eq!(plan(GATEWAY).unwrap_err(), expected);
    for flag in ["quic", "join"] {
        plan_with(GATEWAY, &[(flag, "127.0.0.1:4433")], &[]).unwrap();
    }
}

#[test]
fn more_pinned_stages_than_places_are_refused() {
    let text = GATEWAY.replace("kind = \"remote\"", "kind = \"labels\"\nnames = [\"a\"]\npinned = true");
    let more = format!("[limits]\nmax_loaded = 1\n{text}{}", text.replace("digits", "letters"));
    let error = plan(&more).unwrap_err();
    assert!(error.ends_with("stage `letters`: pinned: more stages are pinned than limits.max_loaded = 1"), "{error}");
    let enough = plan(&more.replace("max_loaded = 1", "max_loaded = 2")).unwrap();
    assert_eq!(enough.settings.max_loaded.value, Some(2));
}

#[cfg(feature = "process")]
#[test]
fn a_spare_of_a_stage_that_may_leave_the_memory_is_refused() {
    let process = "kind = \"process\"\ncommand = [\"worker\"]\nspare = true\nreplicas = { min = 0, max = 1 }";
    let error = plan(&GATEWAY.replace("kind = \"remote\"", process)).unwrap_err();
    let expected = "spare: a spare stays in memory when its stage leaves it, and `replicas` has `min = 0`";
    assert!(error.ends_with(expected), "{error}");
}
