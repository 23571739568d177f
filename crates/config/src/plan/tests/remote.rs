//! Remote stages of a gateway.

use super::*;

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
