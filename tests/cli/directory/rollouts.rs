//! Versions of a model that get a share of the calls, or copies of them, and are promoted or rolled back.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};

use super::Models;
use crate::support::{TEST_TIMEOUT, run};

/// Also that the metrics of a rollout are those of the operations page.
#[test]
fn a_version_is_tried_with_a_share_of_the_calls_and_taken_back() {
    let models = Models::new();
    models.add("add", 1, 1.0);
    models.add("add", 2, 2.0);
    models.write("add/model.toml", b"versions = \"all\"\ndefault = 1\n");
    let node = models.serve(&[]);
    let (code, text) = node.models(&["canary", "add:3", "--share", "50%"]);
    assert!(code == Some(1) && text.contains("version 3 is not served"), "{text}");
    let (code, text) = node.models(&["canary", "add:2", "--share", "50%", "--min-calls", "20"]);
    assert_eq!(code, Some(0), "{text}");
    let rollout = || {
        let status = run(&["status", &node.admin]);
        String::from_utf8(status.stdout).unwrap()
    };
    assert!(rollout().contains("running"), "{}", rollout());
    let answers: Vec<_> = (0..100).map(|_| node.adds("/add").unwrap()).collect();
    let of_current = answers.iter().filter(|answer| **answer == 1.0).count();
    // Each call draws: in 60 of a million runs fewer are of the current version.
    assert!(of_current >= 3 && answers.len() - of_current >= 20, "{answers:?}");
    node.wait_until_adds("/add", Ok(2.0));
    assert!(rollout().contains("promoted") && rollout().contains("0 of 20 calls failed"), "{}", rollout());

    let (code, text) = node.models(&["rollback", "add"]);
    assert!(code == Some(0) && text.contains("rolled_back, by order"), "{text}");
    assert_eq!(node.adds("/add"), Ok(1.0));
    let (code, text) = node.models(&["rollback", "add"]);
    assert!(code == Some(1) && text.contains("no older revision is kept"), "{text}");

    let metrics = node.server.request("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text", b"").body;
    let page = fs::read_to_string("docs/operations/running.md").unwrap();
    let served = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE callboard_rollout_"));
    let documented = page.lines().filter_map(|line| line.strip_prefix("| `callboard_rollout_"));
    let documented = documented.map(|row| row.split(" | ").take(2).collect::<Vec<_>>().join(" ").replace('`', ""));
    assert_eq!(served.collect::<Vec<_>>(), documented.collect::<Vec<_>>());
}

/// A promotion is a decision of the operators: what happens to other versions does not undo it.
#[test]
fn the_default_follows_a_promotion_and_the_replicas_a_replacement() {
    let models = Models::new();
    models.add("add", 1, 1.0);
    models.add("add", 2, 2.0);
    models.write("add/model.toml", b"versions = \"all\"\ndefault = 1\n");
    let node = models.serve(&[]);
    let default = || -> Value {
        let answer = run(&["call", &node.admin, "/v1/models/add"]);
        serde_json::from_slice::<Value>(&answer.stdout).unwrap()["default_version"].clone()
    };
    let (code, text) = node.models(&["canary", "add:2", "--share", "7%"]);
    assert!(code == Some(0) && text.contains("/add: running, canary with 7% of the calls"), "{text}");
    assert_eq!((node.models(&["promote", "add"]).0, default(), node.adds("/add")), (Some(0), json!(2), Ok(2.0)));
    models.add("add", 3, 3.0);
    assert_eq!(node.models(&["load", "add"]).0, Some(0));
    assert_eq!((default(), node.adds("/add"), node.adds("/add/versions/3")), (json!(2), Ok(2.0), Ok(3.0)));

    let replicas = |stage: &str| -> Value {
        let status: Value = serde_json::from_slice(&run(&["status", &node.admin, "--json"]).stdout).unwrap();
        let stages = status["node"]["stages"].as_array().unwrap();
        stages.iter().find(|found| found["name"] == stage && found["part"] == "serving").unwrap()["scaling"]["target"]
            .clone()
    };
    let scaled = run(&["call", &node.admin, "/v1/stages/add:2/replicas", "--json", "{\"replicas\": 3}"]);
    assert!(scaled.status.success(), "{scaled:?}");
    models.add("add", 2, 2.5);
    assert_eq!(node.models(&["load", "add"]).0, Some(0));
    assert_eq!((node.adds("/add"), replicas("add:2"), replicas("add:3")), (Ok(2.5), json!(3), json!(1)));

    // Other settings are another decision.
    models.write("add/model.toml", b"versions = \"all\"\ndefault = 3\nreplicas = 2\n");
    assert_eq!(node.models(&["load", "add"]).0, Some(0));
    assert_eq!((default(), node.adds("/add"), replicas("add:2")), (json!(3), Ok(3.0), json!(2)));
}

#[test]
fn a_version_gets_copies_of_calls_unless_its_contract_forbids_it() {
    let models = Models::new();
    for (name, settings) in [("add", ""), ("once", "contract = \"at_most_once\"\n")] {
        models.add(name, 1, 1.0);
        models.add(name, 2, 2.0);
        models.write(&format!("{name}/model.toml"), format!("versions = \"all\"\ndefault = 1\n{settings}").as_bytes());
    }
    let node = models.serve(&[]);
    let (code, text) = node.models(&["shadow", "once:2", "--share", "100%"]);
    assert!(code == Some(1) && text.contains("at_most_once"), "{text}");
    let (code, text) = node.models(&["shadow", "add:2", "--share", "100%"]);
    assert!(code == Some(0) && text.contains("/add: running, shadow with 100% of the calls"), "{text}");
    let status = || String::from_utf8(run(&["status", &node.admin]).stdout).unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    while !status().contains("rolled_back") {
        assert!(node.adds("/add") == Ok(1.0) && Instant::now() < end, "{}", status());
    }
    assert!(status().contains("answers differ"), "{}", status());
}
