//! The knobs of stages and the limits of routes.

use super::*;
#[cfg(feature = "onnx")]
use crate::stage::COMMON;

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
            "affinity = [[1, 1]]",
            "affinity: expected the cores of each replica by their numbers from 0 to 8191, such as [0, 1] or [[0, 1], \
             [2, 3]], found a value of type array",
        ),
        (
            "affinity = [[0, 1]]",
            "affinity: it has no effect with several cores for one replica, on a stage whose replicas are threads: \
             write one core for each",
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

#[cfg(feature = "onnx")]
#[test]
fn the_python_package_knows_the_keys_of_a_model() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/src/callboard/_compose.py");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, keys) = text.split_once("_ONNX_KEYS = (").unwrap();
    let keys: Vec<&str> = keys.split_once(')').unwrap().0.split('"').skip(1).step_by(2).collect();
    let missing: Vec<_> = COMMON.into_iter().filter(|key| *key != "kind" && !keys.contains(key)).collect();
    assert_eq!(missing, [""; 0]);
    for key in keys.into_iter().filter(|key| !["name", "route"].contains(key)) {
        let stage = format!("[[stage]]\nname = \"a\"\nkind = \"onnx\"\nmodel = \"a.onnx\"\n{key} = {{}}\n");
        let target = Target::File { path: PathBuf::from("f"), text: stage };
        let error = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap_err().to_string();
        assert!(!error.contains("unknown key"), "{error}");
    }
}
