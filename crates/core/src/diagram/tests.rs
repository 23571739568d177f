//! Golden pictures.

use callboard_codec::Value;

use crate::actor::{Actor, ActorContext, ActorSpec};
use crate::{App, Diagram, Failure, Pipeline, Stage};

fn app() -> App {
    let number = |name: &str| Stage::each(name, |n: &u64| Ok(*n));
    let shared = number("a \"shared\" <one>").replicas(2).max_batch_size(8);
    let both = Pipeline::ensemble_of([shared.clone(), number("other")]);
    let sum = both.map("sum", |members: &Vec<u64>| Ok(members.iter().sum::<u64>()));
    let choice = Pipeline::switch("odd?", |n: &u64| Ok((n % 2) as usize), [shared.into(), Pipeline::pass_through()]);
    App::new().route("/sum", sum).route("/choice", choice)
}

#[test]
fn an_app_in_lines() {
    let lines = app().to_string();
    assert_eq!(lines, "/sum: (a \"shared\" <one> | other) → [sum]\n/choice: odd?{a \"shared\" <one> / ·}\n");
}

#[test]
fn a_remote_stage_says_so() {
    let there = App::new().route("/run", Pipeline::<Value, Value>::remote("classify"));
    let mermaid = Diagram::for_app(&there).to_mermaid();
    assert!(mermaid.contains(r#"["classify · remote"]"#), "{mermaid}");
}

#[test]
fn a_diagram_in_mermaid() {
    let expected = r#"flowchart LR
  subgraph f0 ["/sum"]
    n0("call")
    n1("all of")
    n2["a #34;shared#34; #60;one#62; · 2 replicas · batches of 8"]
    n3["other"]
    n4("join")
    n5[/"sum"/]
    n6("reply")
  end
  subgraph f1 ["/choice"]
    n7("call")
    n8{"odd?"}
    n9["a #34;shared#34; #60;one#62; · 2 replicas · batches of 8"]
    n10("reply")
  end
  n0 --> n1
  n1 --> n2
  n1 --> n3
  n2 --> n4
  n3 --> n4
  n4 --> n5
  n5 --> n6
  n7 --> n8
  n8 -->|"0"| n9
  n9 --> n10
  n8 -->|"1"| n10
  n2 -.- n9
"#;
    assert_eq!(Diagram::for_app(&app()).to_mermaid(), expected);
}

#[test]
fn a_diagram_in_dot() {
    let dot = Diagram::for_app(&app()).to_dot();
    assert!(
        dot.starts_with("digraph callboard {\n  rankdir=LR;\n  subgraph cluster_0 {\n    label=\"/sum\";\n"),
        "{dot}"
    );
    assert!(
        dot.contains("    n2 [label=\"a \\\"shared\\\" <one> · 2 replicas · batches of 8\", shape=box];\n"),
        "{dot}"
    );
    assert!(dot.contains("  n8 -> n9 [label=\"0\"];\n"), "{dot}");
    assert!(dot.ends_with("  n2 -> n9 [style=dashed, dir=none, constraint=false];\n}\n"), "{dot}");
}

#[test]
fn named_members_and_branches_have_their_names() {
    let value = |name: &str| Pipeline::from(Stage::each(name, |value: &Value| Ok(value.clone())));
    let members = vec![("left".to_owned(), value("a")), ("right".to_owned(), Pipeline::pass_through())];
    let either = Pipeline::switch("side?", |_: &Value| Ok(0), vec![value("b"), value("c")]);
    let either = either.labelled(["l \"1\"".to_owned(), "r".to_owned()]);
    let app = App::new().route("/x", Pipeline::ensemble_named_partial(members).then(either));
    assert_eq!(app.to_string(), "/x: (left: a | right: ·)? → side?{l \"1\": b / r: c}\n");
    let expected = r#"flowchart LR
  subgraph f0 ["/x"]
    n0("call")
    n1("any of")
    n2["a"]
    n3("join")
    n4{"side?"}
    n5["b"]
    n6["c"]
    n7("reply")
  end
  n0 --> n1
  n1 -->|"left"| n2
  n2 --> n3
  n1 -->|"right"| n3
  n3 --> n4
  n4 -->|"l #34;1#34;"| n5
  n4 -->|"r"| n6
  n5 --> n7
  n6 --> n7
"#;
    assert_eq!(Diagram::for_app(&app).to_mermaid(), expected);
}

struct Quiet;

impl Actor for Quiet {
    type Message = ();

    async fn handle(&mut self, (): (), _: &ActorContext<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test]
async fn a_running_tree_in_mermaid() {
    let stage = Stage::each("double", |n: &u64| Ok(n * 2)).replicas(2);
    let node = App::new().actor(ActorSpec::new("quiet", |_| Quiet)).route("/double", stage).start().await.unwrap();
    let expected = r#"flowchart LR
  subgraph f0 ["node"]
    n0("node · 0 in flight")
    n1["double · ready · 0 waiting"]
    n2("replica 0 · free")
    n3("replica 1 · free")
    n4["group quiet"]
    n5(["quiet · up · 0 waiting"])
  end
  n0 --> n1
  n1 --> n2
  n1 --> n3
  n0 --> n4
  n4 --> n5
"#;
    assert_eq!(Diagram::for_node(&node.describe()).to_mermaid(), expected);
}
