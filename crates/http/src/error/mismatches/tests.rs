//! The mismatches of wrong bodies, and the work that a hostile body causes.

use callboard_codec::{DataType, DecodeLimits, Format};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    name: String,
    count: u8,
    #[serde(default)]
    note: Option<String>,
    items: Vec<Item>,
    kind: Kind,
    size: (f64, f64),
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Item {
    id: u32,
    action: Action,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Small,
    Large,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Action {
    Add { amount: f64 },
    Drop { force: bool },
}

fn mismatches_of(body: serde_json::Value) -> Vec<(String, String)> {
    let (order, limits) = (DataType::for_type::<Order>(), DecodeLimits::default());
    let bytes = body.to_string().into();
    let error = order.decode(Format::Json, &bytes, &limits).unwrap_err();
    let value = Value::decode(Format::Json, &bytes, &limits).unwrap();
    mismatches(order.schema(), &value, &error).into_iter().map(|mismatch| (mismatch.path, mismatch.message)).collect()
}

fn good() -> serde_json::Value {
    json!({
        "name": "a", "count": 1, "note": null, "kind": "small", "size": [1, 2.5],
        "items": [
            { "id": 1, "action": { "do": "add", "amount": 1.5 } },
            { "id": 2, "action": { "do": "drop", "force": true } },
        ],
    })
}

/// The valid body with changes at these paths.
fn good_with(changes: &[(&str, serde_json::Value)]) -> serde_json::Value {
    let mut body = good();
    for (pointer, value) in changes {
        *body.pointer_mut(pointer).unwrap() = value.clone();
    }
    body
}

fn paths(listed: &[(String, String)]) -> Vec<&str> {
    listed.iter().map(|(path, _)| path.as_str()).collect()
}

#[test]
fn every_wrong_field_is_listed_with_its_path() {
    let listed = mismatches_of(good_with(&[
        ("/name", json!(7)),
        ("/count", json!(300)),
        ("/note", json!([])),
        ("/kind", json!("huge")),
        ("/size", json!([1])),
        ("/items/0/id", json!(-1)),
        ("/items/1/action/force", json!("yes")),
    ]));
    let expected = ["$.name", "$.count", "$.note", "$.kind", "$.size", "$.items[0].id", "$.items[1].action.force"];
    assert_eq!(paths(&listed), expected);
    assert_eq!(listed[0].1, "must be a text and is a whole number");
    assert_eq!(listed[1].1, "must be at most 255");
    assert_eq!(listed[3].1, r#"must be "small" or "large""#);
    assert_eq!(listed[4].1, "has 1 items and must have at least 2");
    assert_eq!(listed[5].1, "must be at least 0");
    assert_eq!(listed[6].1, "must be true or false and is a text");
}

#[test]
fn missing_and_unknown_fields_are_listed() {
    let listed = mismatches_of(json!({ "name": "a", "count": 1, "kind": "small", "size": [1, 2], "colour": "red" }));
    assert_eq!(
        listed,
        [
            ("$.items".to_owned(), "is missing".to_owned()),
            ("$.colour".to_owned(), "is not a field of this type".to_owned()),
        ]
    );
    assert_eq!(paths(&mismatches_of(json!([]))), ["$"]);
}

#[test]
fn a_value_that_fits_no_alternative_is_listed_once() {
    let listed = mismatches_of(good_with(&[("/items/0/action", json!({ "do": "dance" })), ("/count", json!("1"))]));
    assert_eq!(paths(&listed), ["$.count", "$.items[0].action.do"], "{listed:?}");
    assert_eq!(listed[1].1, r#"must be "add" or "drop""#);
}

#[test]
fn an_error_that_only_serde_finds_is_listed_first() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(try_from = "u8")]
    struct Even(u8);
    impl TryFrom<u8> for Even {
        type Error = String;
        fn try_from(number: u8) -> Result<Self, String> {
            if number.is_multiple_of(2) { Ok(Self(number)) } else { Err("must be even".to_owned()) }
        }
    }
    let (even, limits) = (DataType::for_type::<Even>(), DecodeLimits::default());
    let error = even.decode(Format::Json, &"7".into(), &limits).unwrap_err();
    let listed = mismatches(even.schema(), &Value::Int(7), &error);
    assert_eq!((listed.len(), listed[0].path.as_str(), listed[0].message.as_str()), (1, "$", "must be even"));
}

#[test]
fn a_hostile_value_has_bounded_steps_and_a_bounded_list() {
    let many = json!(vec![json!({ "id": "x" }); 50_000]);
    let listed = mismatches_of(good_with(&[("/items", many), ("/name", json!(1))]));
    assert_eq!(listed.len(), MAX_FIELDS);
    let a = json!({ "anyOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/A" }], "type": "string" });
    let schema = json!({ "$defs": { "A": a }, "$ref": "#/$defs/A" });
    assert_eq!(steps(&schema, &Value::Null), MAX_STEPS, "the walk ends when no step is left");
}

#[test]
fn each_visit_of_a_large_value_takes_its_steps() {
    let two_choices = json!({ "anyOf": [
        { "required": ["x"], "properties": { "a": { "$ref": "#/$defs/A" } } },
        { "required": ["y"], "properties": { "a": { "$ref": "#/$defs/A" } } },
    ] });
    let schema = json!({ "$defs": { "A": two_choices }, "$ref": "#/$defs/A" });
    let nested = |inner: Value| (0..6).fold(inner, |inner, _| Map::from_iter([("a", inner)]).into());
    let empty = steps(&schema, &nested(Map::new().into()));
    let keys: Map = (0..1000).map(|n| (format!("unknown {n}"), Value::Null)).collect();
    let (keys, text) = (steps(&schema, &nested(keys.into())), steps(&schema, &nested(" ".repeat(100_000).into())));
    assert!(empty < 2_000, "{empty}");
    assert!(keys > 10 * empty && text > 10 * empty, "{keys} and {text}, compared with {empty}");
}

/// The steps of a walk over this value.
fn steps(schema: &Schema, value: &Value) -> usize {
    let mut walk = SchemaWalk { root: schema, steps: MAX_STEPS };
    walk.visit(schema, value, "$", 0);
    MAX_STEPS - walk.steps
}

#[test]
fn a_missing_field_is_named_with_the_field_that_was_written_for_it() {
    let mut body = good();
    let item = body.pointer_mut("/items/0").unwrap().as_object_mut().unwrap();
    item.remove("action");
    item.insert("actoin".to_owned(), json!(1));
    let expected = ("$.items[0].action".to_owned(), "is missing; `actoin` is not a field of this type".to_owned());
    assert_eq!(mismatches_of(body), [expected]);
}
