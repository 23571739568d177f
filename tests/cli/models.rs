//! Models with `serve`: their default batching, and the accuracy of the protocol's metadata.

use serde_json::{Value, json};

use crate::support::{Server, callboard, directory_with, failure, run};

const MODEL: &str = "examples/digits/digits.onnx";

fn get(server: &Server, path: &str) -> Value {
    let answer = server.request(&format!("GET {path} HTTP/1.1"), b"");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.request(&format!("POST {path} HTTP/1.1"), body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

/// A file with one stage over the digits, and these lines in it.
fn with_file(lines: &str) -> Server {
    let model = std::path::absolute(MODEL).unwrap();
    let directory = directory_with(&format!(
        "[[stage]]\nname = \"digits\"\nkind = \"onnx\"\nmodel = {model:?}\n{lines}\n\
         [[route]]\npath = \"/digits\"\nstages = \"digits\"\n"
    ));
    Server::start(callboard(["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0"]))
}

/// The configuration of batches, and the number of batches made from 64 simultaneous items.
fn batching(server: &Server) -> (Value, Value, u64) {
    let config = get(server, "/v2/models/digits/config");
    let pixels = vec![0; 64 * 64];
    let input = json!({ "name": "image", "datatype": "FP32", "shape": [64, 1, 8, 8], "data": pixels });
    let answer = post(server, "/v2/models/digits/infer", &json!({ "inputs": [input] }));
    assert_eq!(answer["outputs"][0]["shape"], json!([64, 10]));
    let batches = get(server, "/v2/models/digits/stats")["model_stats"][0]["execution_count"].as_u64().unwrap();
    (config["max_batch_size"].clone(), config["dynamic_batching"]["preferred_batch_size"].clone(), batches)
}

#[test]
fn a_model_with_a_batch_axis_batches_by_default_and_declares_it() {
    for server in [Server::start(callboard(["serve", MODEL, "--http", "127.0.0.1:0"])), with_file("")] {
        let (max, preferred, batches) = batching(&server);
        assert_eq!((max, preferred), (json!(32), json!([32])));
        assert!(batches < 32, "64 items ran as {batches} batches");
    }
    let (max, preferred, batches) = batching(&with_file("max_batch_size = 1"));
    assert_eq!((max, preferred, batches), (json!(1), json!([1]), 64));
    let (max, preferred, _) = batching(&with_file("max_batch_size = 8"));
    assert_eq!((max, preferred), (json!(8), json!([8])));
}

#[test]
fn a_model_without_a_batch_axis_runs_one_item_at_a_time() {
    let server = with_file("batched = false");
    let config = get(&server, "/v2/models/digits/config");
    assert_eq!((&config["max_batch_size"], config.get("dynamic_batching")), (&json!(0), None));
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    assert!(metrics.contains("callboard"), "{metrics}");
}

/// The child processes of a process.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = status.rsplit(") ").next().unwrap_or_default();
        after_name.split(' ').nth(1) == Some(parent.to_string().as_str()) && !after_name.starts_with('Z')
    };
    processes.filter(is_child).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn an_isolated_model_that_crashes_costs_a_replica_and_no_call() {
    let server = with_file("isolate = true\nreplicas = 2\nthreads = 1");
    let (max, ..) = batching(&server);
    assert_eq!(max, json!(32));
    let replicas = children(server.id());
    assert_eq!(replicas.len(), 2);
    // Rust's own handler takes the first signal, and two at once are one.
    let crash = format!("while kill -SEGV {} 2>/dev/null; do sleep 0.01; done", replicas[0]);
    assert!(std::process::Command::new("sh").args(["-c", &crash]).status().unwrap().success());
    let restarted = "callboard_stage_restarts_total{stage=\"digits\"} 1";
    while !server.request("GET /metrics HTTP/1.1", b"").body.contains(restarted) {}
    batching(&server);
    assert!(!children(server.id()).contains(&replicas[0]));
}

/// The lines are no log: the filter does not hide them.
#[test]
fn the_start_lines_say_what_runs_a_model() {
    let serve = |log: &str| {
        let command = callboard(["serve", MODEL, "--http", "127.0.0.1:0", "--log", log]);
        Server::start_and_wait_for(command, "  stage digits runs on ")
    };
    serve("off");
    serve("warn");
}

/// An axis that the model has not is an error before anything starts.
#[test]
fn padding_is_explained_and_checked_against_the_model() {
    let model = std::path::absolute(MODEL).unwrap();
    let directory = directory_with(&format!(
        "[[stage]]\nname = \"digits\"\nkind = \"onnx\"\nmodel = {model:?}\npad = {{ axis = \"sequence\" }}\n\
         [[route]]\npath = \"/digits\"\nstages = \"digits\"\n"
    ));
    let explained = run(&["serve", directory.to_str().unwrap(), "--explain"]).stdout;
    let text = String::from_utf8(explained).unwrap();
    let cost = text.lines().find(|line| line.trim_start().starts_with("cost ")).unwrap_or_default();
    assert!(cost.contains("tokens") && text.contains("{ axis = \"sequence\" }"), "{text}");
    let (error, code) = failure(callboard(["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0"]));
    assert!(error.contains("no input has an axis `sequence` of any length") && code == 1, "{error}");
}

#[test]
fn explain_shows_the_defaults_of_a_model() {
    let text = String::from_utf8(run(&["serve", MODEL, "--explain"]).stdout).unwrap();
    let row = |key: &str| text.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default().to_owned();
    assert!(row("max_batch_size").contains("32 (1 without a batch axis)"), "{text}");
    assert!(row("cost ").contains("entries (rows where items differ in length)"), "{text}");
}

/// Metadata, configuration and answer name the same datatype, even of a tensor that an ensemble passes through.
#[test]
fn the_metadata_of_an_ensembles_tensor_matches_its_data() {
    let server = Server::start(callboard(["serve", "examples/graph", "--http", "127.0.0.1:0"]));
    let member_of = |list: &Value, key: &str| {
        let logits = list.as_array().unwrap().iter().find(|tensor| tensor["name"] == "logits").unwrap();
        logits[key].as_str().unwrap().to_owned()
    };
    let metadata = get(&server, "/v2/models/both");
    let config = get(&server, "/v2/models/both/config");
    let seven = callboard::codec::Value::Bytes(std::fs::read("examples/digits/seven.png").unwrap().into());
    // Bytes are base64 in JSON.
    let seven: Value = serde_json::from_slice(&seven.encode(callboard::codec::Format::Json).unwrap()).unwrap();
    let input = json!({ "name": "image", "datatype": "BYTES", "shape": [1], "parameters": { "content_type": "base64" },
                        "data": [seven] });
    let answer = post(&server, "/v2/models/both/infer", &json!({ "inputs": [input] }));
    let datatypes = [
        member_of(&metadata["outputs"], "datatype"),
        member_of(&config["output"], "data_type"),
        member_of(&answer["outputs"], "datatype"),
    ];
    assert_eq!(datatypes, ["FP32", "TYPE_FP32", "FP32"]);
}
