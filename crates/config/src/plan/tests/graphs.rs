//! The steps of routes: how they are written, displayed and drawn, and the mistakes in them.

use std::collections::BTreeMap;

use callboard_core::Diagram;
use callboard_core::description::PipelinePlan;

use super::*;

/// The steps of a route in one line, or the error without its place in the file.
fn steps(text: &str) -> Result<String, String> {
    let plan = plan(&DIGITS.replacen(STAGES_LINE, &format!("stages = {text}"), 1)).map_err(|error| {
        let prefix = "dir/callboard.toml:17: route `/digits`: ";
        error.strip_prefix(prefix).unwrap_or_else(|| panic!("{error} is not at {prefix}")).to_owned()
    })?;
    Ok(plan.steps_of(&plan.routes[0]).to_string())
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
        is_written_as_by_serde(text);
    }
}

/// Python's description of an app is in the grammar that serde has of a plan.
fn is_written_as_by_serde(text: &str) {
    let plan = plan(&DIGITS.replacen(STAGES_LINE, &format!("stages = {text}"), 1)).unwrap();
    let named = plan.routes[0].steps.value.map(&|index| plan.stages[*index].name.value.clone());
    let in_file: BTreeMap<String, serde_json::Value> = toml::from_str(&format!("stages = {text}")).unwrap();
    assert_eq!(serde_json::to_value(&named).unwrap(), in_file["stages"]);
    let read: PipelinePlan<String> = serde_json::from_str(&serde_json::to_string(&named).unwrap()).unwrap();
    assert_eq!(read, named);
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
            "stages.cases: expected one or more steps by name, found none".to_owned(),
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
    let error = error_of(STAGES_LINE, &text.replace("\"digitz\"", "{ ensemble = {} }"));
    let expected = "dir/callboard.toml:21: route `/digits`: stages[1].cases.b.ensemble: \
                    expected one or more steps by name, found none";
    assert_eq!(error, expected);
}

#[test]
fn nested_steps_have_a_maximum_depth() {
    let nested = |depth: usize| format!("{}\"digits\"{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(steps(&nested(15)).as_deref(), Ok("digits"));
    let error = steps(&nested(16)).unwrap_err();
    assert_eq!(error, format!("stages{}: steps inside steps, more than 16 deep", "[0]".repeat(16)));
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

#[test]
fn the_diagram_of_a_plan_has_the_steps_of_its_explanation() {
    let text = r#"stages = ["decode", { ensemble = { a = { pick = "x" }, b = [] }, partial = true },
      { switch = "want", cases = { b = "digits", c = { rename = { x = "y" } } }, default = [] }]"#;
    let plan = plan(&DIGITS.replacen(STAGES_LINE, text, 1)).unwrap();
    let shown = plan.steps_of(&plan.routes[0]).to_string();
    let sketch = assemble::sketch(&plan);
    assert_eq!(sketch.to_string(), format!("/digits: {shown}\n"));
    let drawn = Diagram::for_routes([("/digits", plan.steps_of(&plan.routes[0]))]);
    assert_eq!(Diagram::for_app(&sketch).to_mermaid(), drawn.to_mermaid());
}
