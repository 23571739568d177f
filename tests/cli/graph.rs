//! Graphs from a file: ensembles and switches, and their documentation.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Answer, Server, callboard, directory_with, run};

fn serve() -> Server {
    Server::start(callboard(["serve", "examples/graph", "--http", "127.0.0.1:0"]))
}

fn picture(server: &Server, route: &str) -> Answer {
    let seven = fs::read("examples/digits/seven.png").unwrap();
    server.request(&format!("POST {route} HTTP/1.1\r\ncontent-type: image/png"), &seven)
}

/// The picture of a seven as the form field `image` or another one, and the field `want`.
fn form(server: &Server, route: &str, field: &str, want: &str) -> (u16, Value) {
    let seven = fs::read("examples/digits/seven.png").unwrap();
    let mut body = format!(
        "--x\r\ncontent-disposition: form-data; name=\"want\"\r\n\r\n{want}\r\n\
         --x\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"seven.png\"\r\ncontent-type: image/png\r\n\r\n"
    )
    .into_bytes();
    body.extend(seven);
    body.extend(b"\r\n--x--\r\n");
    let answer =
        server.request(&format!("POST {route} HTTP/1.1\r\ncontent-type: multipart/form-data; boundary=x"), &body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}")))
}

#[test]
fn an_ensemble_answers_a_map_in_member_order() {
    let answer = picture(&serve(), "/both");
    assert_eq!(answer.status, 200, "{answer:?}");
    let members: serde_json::Map<String, Value> = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(members.keys().collect::<Vec<_>>(), ["best", "all", "logits"]);
    assert_eq!(members["best"]["label"], "7");
    assert_eq!(members["all"]["top"].as_array().unwrap().len(), 10);
    assert_eq!(members["logits"].as_array().unwrap().len(), 10);
}

#[test]
fn a_partial_ensemble_fails_only_if_all_members_fail() {
    let server = serve();
    let answer = picture(&server, "/either");
    assert_eq!(answer.status, 200, "{answer:?}");
    let members: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(members["picture"]["label"], "7");
    assert_eq!(members["pixels"]["error"]["kind"], "invalid_input", "{members}");

    let pixels = json!([vec![vec![0.0; 8]; 8]]).to_string();
    let answer = server.request("POST /either HTTP/1.1\r\ncontent-type: application/json", pixels.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let members: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(members["picture"]["error"]["kind"], "invalid_input", "{members}");
    assert!(members["pixels"]["label"].is_string(), "{members}");

    let answer = server.request("POST /either HTTP/1.1\r\ncontent-type: application/json", b"null");
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.body.contains("all 2 members of the ensemble failed"), "{answer:?}");
}

#[test]
fn a_switch_depends_on_the_value_of_a_field_and_has_a_default() {
    let server = serve();
    assert_eq!(form(&server, "/choose", "image", "label"), (200, json!("7")));
    let (status, logits) = form(&server, "/choose", "image", "logits");
    assert_eq!((status, logits.as_array().map(Vec::len)), (200, Some(10)));
    let (status, fallback) = form(&server, "/choose", "image", "anything");
    assert_eq!((status, fallback["label"].as_str()), (200, Some("7")));
    let no_field: Value = serde_json::from_str(&picture(&server, "/choose").body).unwrap();
    assert_eq!(no_field, fallback);
}

#[test]
fn a_value_without_a_case_fails_with_field_value_and_cases() {
    let server = serve();
    let (status, all) = form(&server, "/strict", "picture", "all");
    assert_eq!((status, all["top"].as_array().map(Vec::len)), (200, Some(10)));
    let (status, problem) = form(&server, "/strict", "picture", "some");
    let message = "the field `want` is \"some\", for which there is no case; the cases are best, all";
    assert_eq!((status, problem["details"]["fields"][0]["message"].as_str()), (422, Some(message)), "{problem}");
    assert_eq!(problem["details"]["fields"][0]["path"], "$.want");
    let (status, problem) = form(&server, "/strict", "image", "all");
    let message = "the field `picture` is missing; the fields are want, image";
    assert_eq!((status, problem["details"]["fields"][0]["message"].as_str()), (422, Some(message)), "{problem}");
}

#[test]
fn a_stage_of_several_routes_has_one_pool() {
    let server = serve();
    for route in ["/both", "/choose"] {
        assert_eq!(picture(&server, route).status, 200);
    }
    assert_eq!(form(&server, "/strict", "picture", "all").0, 200);
    let metrics = server.request("GET /metrics HTTP/1.1", b"").body;
    let sum = |family: &str| -> f64 {
        let of_stage = |line: &&str| line.starts_with(family) && line.contains("stage=\"digits\"");
        metrics.lines().filter(of_stage).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    // With one worker per step, there would be eight.
    assert_eq!(sum("callboard_stage_replica_states{"), 1.0, "{metrics}");
    assert_eq!(sum("callboard_stage_batches_total{"), 3.0, "{metrics}");
}

#[test]
fn the_examples_of_all_graphs_run() {
    let output = run(&["check", "examples/graph"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.matches(" example 1: ok in ").count(), 4, "{text}");
}

/// The schema of the input or the answer of a route in the document.
fn schema_of(document: &Value, route: &str, part: &str) -> Value {
    let content = &document["paths"][route]["post"].pointer(part).unwrap()["content"]["application/json"];
    let reference = content["schema"]["$ref"].as_str().unwrap();
    document.pointer(reference.trim_start_matches('#')).unwrap().clone()
}

#[test]
fn the_document_has_the_types_of_graphs() {
    let output = run(&["openapi", "examples/graph"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let input = |route: &str| schema_of(&document, route, "/requestBody");
    let answer = |route: &str| schema_of(&document, route, "/responses/200");

    let ensemble = answer("/both");
    assert_eq!(ensemble["required"], json!(["best", "all", "logits"]));
    assert_eq!(ensemble["properties"]["logits"]["maxItems"], 10, "the type of a passed value is known: {ensemble}");
    assert_eq!(ensemble["properties"]["best"]["properties"]["label"]["type"], "string");
    assert_eq!(input("/both")["required"], json!(["image"]));

    let partial = answer("/either");
    assert_eq!(partial["properties"]["pixels"]["anyOf"][1]["required"], json!(["error"]), "{partial}");
    assert_eq!(input("/either")["anyOf"].as_array().unwrap().len(), 2);

    let switch = answer("/choose");
    assert_eq!(switch["anyOf"][0], json!({ "type": "string" }), "the picked field: {switch}");
    assert_eq!(input("/choose")["required"], json!(["image"]), "`want` may be left out");
    let forms =
        |route: &str| document["paths"][route]["post"]["requestBody"]["content"]["application/json"].to_string();
    assert!(forms("/choose").contains("\"image/*\""), "{}", forms("/choose"));

    let strict = input("/strict");
    assert_eq!(strict["properties"]["want"]["enum"], json!(["best", "all"]));
    assert_eq!(strict["properties"]["picture"]["contentEncoding"], "base64", "the renamed field: {strict}");
    assert_eq!(strict["required"], json!(["picture", "want"]));
    assert!(!forms("/strict").contains("\"image/*\""), "a bare picture has no field `want`");
}

/// Two routes, one with a graph, whose model does not exist: a diagram opens no files.
const DRAWN: &str = r#"
[[stage]]
name = "decode"
kind = "image"

[[stage]]
name = "model"
kind = "onnx"
model = "not/there.onnx"
max_batch_size = 8

[[route]]
path = "/plain"
stages = ["decode", "model"]

[[route]]
path = "/graph"
stages = [
  { switch = "want", cases = { one = { ensemble = { a = "model", b = [] } } }, default = { pick = "x" } },
]
"#;

#[test]
fn explain_lists_and_draws_the_steps_without_loading_a_model() {
    let directory = directory_with(DRAWN);
    let explain = |form: &str| {
        let output =
            callboard(["serve".as_ref(), directory.as_os_str(), Path::new(form).as_os_str()]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain("--explain");
    let rows: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in ["stages switch want{one: (a: model | b: ·) / default: [pick x]} line 18", "contract pure default"] {
        assert!(rows.iter().any(|line| line == row), "{row} is not in {text}");
    }
    assert_eq!(explain("--explain=text"), text);

    let mermaid = r#"flowchart LR
  subgraph f0 ["/plain"]
    n0("call")
    n1["decode"]
    n2["model · batches of 8"]
    n3("reply")
  end
  subgraph f1 ["/graph"]
    n4("call")
    n5{"switch want"}
    n6("all of")
    n7["model · batches of 8"]
    n8("join")
    n9[/"pick x"/]
    n10("reply")
  end
  n0 --> n1
  n1 --> n2
  n2 --> n3
  n4 --> n5
  n5 -->|"one"| n6
  n6 -->|"a"| n7
  n7 --> n8
  n6 -->|"b"| n8
  n5 -->|"default"| n9
  n8 --> n10
  n9 --> n10
  n2 -.- n7
"#;
    assert_eq!(explain("--explain=mermaid"), mermaid);
    let dot = explain("--explain=dot");
    assert!(
        dot.starts_with("digraph callboard {\n  rankdir=LR;\n  subgraph cluster_0 {\n    label=\"/plain\";\n"),
        "{dot}"
    );
    assert!(dot.contains("    n5 [label=\"switch want\", shape=diamond];\n"), "{dot}");
    assert!(dot.contains("  n6 -> n7 [label=\"a\"];\n"), "{dot}");
    assert!(dot.ends_with("  n2 -> n7 [style=dashed, dir=none, constraint=false];\n}\n"), "{dot}");
}
