//! Directories as listings: which models, versions, stages and routes follow.

#![cfg(feature = "onnx")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::super::{Environment, Explanation, Flags, Plan, StageKind};
use super::listing::{FileStamp, Listing, Node, models, parse_version};
use super::*;

fn stamp(bytes: u64) -> FileStamp {
    FileStamp { bytes, modified: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1)), inode: 7 }
}

/// A listing of these paths; a path that ends with `/` is a directory.
fn listing(paths: &[(&str, Node)]) -> Listing {
    let mut root = Listing::new();
    for (path, node) in paths {
        let mut parts: Vec<&str> = path.split('/').collect();
        let last = parts.pop().unwrap();
        let mut at = &mut root;
        for part in parts {
            let entry = at.entry(part.to_owned()).or_insert_with(|| Node::Directory(BTreeMap::new()));
            let Node::Directory(entries) = entry else { panic!("{part} is a file") };
            at = entries;
        }
        if !last.is_empty() {
            at.insert(last.to_owned(), node.clone());
        }
    }
    root
}

fn file() -> Node {
    Node::File(stamp(10))
}

fn settings(text: &str) -> Node {
    Node::Settings(Ok(text.to_owned()))
}

fn plan(paths: &[(&str, Node)]) -> Result<Plan, String> {
    plan_beside(None, paths)
}

/// With this text in the file beside the models.
fn plan_beside(text: Option<&str>, paths: &[(&str, Node)]) -> Result<Plan, String> {
    let path = Path::new("models");
    let models = models(path, &listing(paths)).into_values().collect();
    let file = text.map(|text| (path.join("callboard.toml"), text.to_owned()));
    let target = Target::Models { path: path.to_owned(), models, file };
    Plan::resolve(target, &Flags::new(), &Environment::default()).map_err(|error| error.to_string())
}

/// The routes, each with its stage.
fn routes(paths: &[(&str, Node)]) -> Vec<(String, String)> {
    let plan = plan(paths).unwrap();
    let row = |route: &RoutePlan| (route.path.value.clone(), plan.steps_of(route).to_string());
    plan.routes.iter().map(row).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(route, stage)| ((*route).to_owned(), (*stage).to_owned())).collect()
}

#[test]
fn the_latest_version_and_its_model_have_routes_over_one_stage() {
    let paths = [("digits/1/model.onnx", file()), ("digits/10/model.onnx", file()), ("digits/9/model.onnx", file())];
    assert_eq!(routes(&paths), pairs(&[("/digits", "digits:10"), ("/digits/versions/10", "digits:10")]));
    let plan = plan(&paths).unwrap();
    assert_eq!((plan.stages.len(), plan.stages[0].revision.value), (1, 10));
}

#[test]
fn a_flat_file_is_version_1() {
    let paths = [("a.onnx", file()), ("a.toml", settings("replicas = 3")), ("b/2/model.onnx", file())];
    let expected = [("/a", "a:1"), ("/a/versions/1", "a:1"), ("/b", "b:2"), ("/b/versions/2", "b:2")];
    assert_eq!(routes(&paths), pairs(&expected));
    let plan = plan(&paths).unwrap();
    assert_eq!((plan.stages[0].replicas.value.max, plan.stages[1].replicas.value.max), (3, 1));
}

#[test]
fn the_settings_choose_versions_and_the_default() {
    let with = |text: &str| {
        let paths = [1, 2, 3].map(|version| (format!("m/{version}/model.onnx"), file()));
        let mut paths: Vec<(&str, Node)> = paths.iter().map(|(path, node)| (path.as_str(), node.clone())).collect();
        paths.push(("m/model.toml", settings(text)));
        let routes = routes(&paths).into_iter().map(|(route, stage)| format!("{route} {stage}"));
        routes.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(with("versions = \"latest\""), "/m m:3, /m/versions/3 m:3");
    assert_eq!(with("versions = 2"), "/m/versions/2 m:2, /m m:3, /m/versions/3 m:3");
    assert_eq!(with("versions = [1, 3]\ndefault = 1"), "/m m:1, /m/versions/1 m:1, /m/versions/3 m:3");
    assert_eq!(
        with("versions = \"all\"\ndefault = 2"),
        "/m/versions/1 m:1, /m m:2, /m/versions/2 m:2, /m/versions/3 m:3"
    );
}

/// A key that needs another one is inherited with it only.
#[test]
fn a_model_does_not_inherit_what_its_own_settings_make_useless() {
    let text = "[models.defaults]\nisolate = true\nmemory_limit = \"2GiB\"\nengine = \"onnxruntime\"\nlibrary = \"l.so\"\narena = false\nthreads = 3\n";
    let paths = [
        ("a/1/model.onnx", file()),
        ("b/1/model.onnx", file()),
        ("b/model.toml", settings("isolate = false")),
        ("c/1/model.onnx", file()),
        ("c/model.toml", settings("engine = \"rten\"")),
        ("d/1/model.onnx", file()),
        ("d/model.toml", settings("engine = \"rten\"\narena = false")),
    ];
    let plan = plan_beside(Some(text), &paths).unwrap();
    let keys = |index: usize| {
        let StageKind::Onnx(config) = &plan.stages[index].kind else { panic!() };
        let own: Vec<&str> = plan.stages[index].own.iter().map(|own| own.key.as_str()).collect();
        assert_eq!(own.contains(&"memory_limit"), config.memory_limit.is_some(), "{own:?}");
        assert_eq!(own.contains(&"library"), config.library.is_some(), "{own:?}");
        assert_eq!(config.threads.map(NonZeroUsize::get), Some(3));
        (config.memory_limit.is_some(), config.library.is_some(), config.arena)
    };
    assert_eq!(keys(0), (true, true, false));
    assert_eq!(keys(1), (false, true, false));
    assert_eq!(keys(2), (true, false, true));
    // What it sets itself is refused later as before.
    assert_eq!(keys(3), (true, false, false));
}

/// What a model sets itself wins, and `--explain` shows where a value comes from.
#[test]
fn the_file_beside_the_models_has_defaults_for_all_of_them() {
    let text =
        "[models.defaults]\nreplicas = 2\nengine = \"rten\"\nthreads = 3\nversions = \"all\"\nmax_delay = \"5ms\"\n";
    let paths = [
        ("a/1/model.onnx", file()),
        ("a/2/model.onnx", file()),
        ("b/1/model.onnx", file()),
        ("b/2/model.onnx", file()),
        ("b/model.toml", settings("replicas = 4\nversions = \"latest\"\nthreads = 1")),
    ];
    let plan = plan_beside(Some(text), &paths).unwrap();
    let replicas = plan.stages.iter().map(|stage| (stage.name.value.as_str(), stage.replicas.value.max));
    assert_eq!(replicas.collect::<Vec<_>>(), [("a:1", 2), ("a:2", 2), ("b:2", 4)]);
    let explained = Explanation(&plan).to_string();
    let (_, own) = explained.split_once("stage b:2").unwrap();
    let row = |text: &str, key: &str| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(&explained, "replicas"), "replicas 2 callboard.toml line 2");
    assert_eq!(row(&explained, "engine"), "engine \"rten\" callboard.toml line 3");
    assert_eq!(row(own, "replicas"), "replicas 4 line 1");
    assert_eq!(row(own, "threads"), "threads 1 line 3");
    assert_eq!(row(own, "max_delay"), "max_delay 5ms callboard.toml line 6");
    for (text, expected) in [
        ("replica = 2", "models/callboard.toml:2: models.defaults: unknown key `replica`; did you mean `replicas`?"),
        ("engin = \"rten\"", "unknown key `engin`; did you mean `engine`?"),
        ("default = 1", "unknown key `default`"),
        ("threads = \"many\"", "models/callboard.toml:2: "),
        ("versions = 0", "models/callboard.toml:2: models.defaults.versions: expected \"latest\""),
    ] {
        let error = plan_beside(Some(&format!("[models.defaults]\n{text}\n")), &paths).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_settings_of_the_node_are_not_those_of_a_model_with_that_name() {
    let plan = plan(&[("callboard.onnx", file()), ("callboard.toml", settings("replicas = 3"))]).unwrap();
    assert_eq!(plan.stages[0].replicas.value.max, 1);
}

#[test]
fn wrong_settings_name_file_line_and_key() {
    let with = |text: &str| plan(&[("m/1/model.onnx", file()), ("m/model.toml", settings(text))]).unwrap_err();
    for (text, expected) in [
        ("\nreplica = 2", "models/m/model.toml:2: unknown key `replica`; did you mean `replicas`?"),
        ("engin = \"rten\"", "models/m/model.toml:1: unknown key `engin`; did you mean `engine`?"),
        ("version = 1", "models/m/model.toml:1: unknown key `version`; did you mean `versions`?"),
        ("model = \"x.onnx\"", "models/m/model.toml:1: unknown key `model`"),
        ("revision = 3", "models/m/model.toml:1: unknown key `revision`"),
        ("versions = 0", "models/m/model.toml:1: versions: expected \"latest\", the number of"),
        ("versions = []", "models/m/model.toml:1: versions: expected \"latest\", the number of"),
        ("versions = \"newest\"", "models/m/model.toml:1: versions: expected \"latest\", the number of"),
        ("versions = [1]\ndefault = 2", "models/m/model.toml:2: default: version 2 is not among `versions`"),
        ("replicas = 0", "models/m/model.toml:1: replicas: expected a whole number from 1 to 1024, or bounds"),
    ] {
        let error = with(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_cannot_be_a_model_or_version_is_named_with_its_reason() {
    let found = models(
        Path::new("models"),
        &listing(&[
            ("README.md", file()),
            (".git/1/model.onnx", file()),
            ("scripts/train.py", file()),
            ("a/v2/model.onnx", file()),
            ("a/01/model.onnx", file()),
            ("a/3/", file()),
            ("a/4", file()),
            ("a/5", Node::Outside),
            ("a/model.onnx", file()),
            ("a/notes/", file()),
            ("b/1/model.onnx", Node::File(stamp(0))),
            ("b/2/model.onnx", Node::File(stamp(3 << 30))),
            ("b/3/model.onnx/", file()),
            ("b/4/model.onnx", Node::Outside),
            ("bad name/1/model.onnx", file()),
            ("docs/1/model.onnx", file()),
            ("both.onnx", file()),
            ("both/2/model.onnx", file()),
            ("linked", Node::Outside),
        ]),
    );
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b", "bad name", "both", "docs", "linked"]);
    let refused: BTreeMap<&str, &str> =
        found["a"].refused.iter().map(|refused| (refused.version.as_str(), refused.reason.as_str())).collect();
    assert_eq!(refused.keys().collect::<Vec<_>>(), [&"01", &"3", &"4", &"5", &"model.onnx", &"v2"]);
    assert!(refused["v2"].contains("whole number from 1") && refused["v2"].contains("`v2`"), "{refused:?}");
    assert!(refused["3"].contains("no model.onnx") && refused["5"].contains("outside"), "{refused:?}");
    assert!(refused["model.onnx"].contains("a/1/model.onnx"), "{refused:?}");
    let problems: Vec<&str> = found["b"].versions.values().map(|found| found.problem.as_deref().unwrap()).collect();
    for (problem, expected) in problems.iter().zip(["empty", "2147483648", "is a directory", "outside"]) {
        assert!(problem.contains(expected), "{problem}");
    }
    let problem = |name: &str| found[name].problem.clone().unwrap_or_default();
    assert!(problem("bad name").contains("cannot be a route"), "{}", problem("bad name"));
    assert!(problem("docs").contains("keeps that path"), "{}", problem("docs"));
    assert!(problem("linked").contains("outside"), "{}", problem("linked"));
    assert_eq!(found["both"].versions.keys().collect::<Vec<_>>(), [&2]);
    assert_eq!(found["both"].refused[0].version, "both.onnx");
}

#[test]
fn a_directory_without_a_model_to_serve_says_why() {
    let error = plan(&[("a/v1/model.onnx", file()), ("b.onnx", Node::File(stamp(0)))]).unwrap_err();
    assert!(error.starts_with("models: it has no model that can be served: a version v1: a version is"), "{error}");
    assert!(error.contains("b version 1: the file is empty"), "{error}");
}

#[test]
fn weights_beside_a_model_are_part_of_its_version() {
    let found = models(
        Path::new(""),
        &listing(&[
            ("a.onnx", file()),
            ("a.onnx.data", file()),
            ("ab.onnx", file()),
            ("b/1/model.onnx", file()),
            ("b/1/model.onnx.data", file()),
        ]),
    );
    let files = |name: &str| found[name].versions[&1].files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(files("a"), ["a.onnx", "a.onnx.data"]);
    assert_eq!(files("b"), ["model.onnx", "model.onnx.data"]);
}

#[test]
fn a_version_is_a_plain_number() {
    for text in ["1", "20260101", "9007199254740991"] {
        assert_eq!(parse_version(text).unwrap().to_string(), text);
    }
    for text in ["", "0", "01", "+1", "-1", "1.0", "v1", "９", "9007199254740992", "99999999999999999999"] {
        assert!(parse_version(text).is_err(), "{text}");
    }
}
