//! Every place at which a value does not fit a route's schema, for the 422 that lists them.
//!
//! Runs only when reading the value has failed already. Serde, which reads for real, stops at
//! its first error; this goes on, by the JSON Schema that the type itself has given. Where the two disagree serde is right: its
//! error is always told. What a schema has no words for (bytes, arrays, tables) fits everything here.
//!
//! The work is bounded whatever the input: so many places of value and schema are looked at, long texts and names being several,
//! and so many misfits told.

use callboard_codec::{DecodeError, Map, Value};
use serde_json::Value as Schema;

/// A body with this many mistakes is of another type; nobody reads on.
const MAX_FIELDS: usize = 32;

/// Places that are looked at. A large list that is wrong throughout ends at [`MAX_FIELDS`]; this ends one that is right.
const MAX_STEPS: usize = 20_000;

/// So much of a text takes as long as another place.
const STEP_BYTES: usize = 256;

/// Deeper than any schema that is written by people.
const MAX_DEPTH: usize = 64;

/// A place that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// As in [`DecodeError::path`].
    pub(crate) path: String,
    pub(crate) message: String,
}

/// What does not fit of `value`, which was refused with `error`: its place first where the schema does not tell of it.
pub(crate) fn misfits(schema: &Schema, value: &Value, error: &DecodeError) -> Vec<Misfit> {
    let mut walk = Walk { root: schema, steps: MAX_STEPS };
    let mut misfits = walk.of(schema, value, "$", 0);
    let told = misfits.iter().any(|misfit| misfit.path.starts_with(error.path()));
    if !told {
        misfits.insert(0, Misfit::of(error));
    }
    misfits.truncate(MAX_FIELDS);
    misfits
}

impl Misfit {
    /// The place at which reading ended.
    pub(crate) fn of(error: &DecodeError) -> Self {
        let path = if error.path().is_empty() { "$" } else { error.path() };
        Self { path: path.to_owned(), message: error.message().to_owned() }
    }

    /// As it stands in `details.fields`.
    pub(crate) fn into_value(self) -> Value {
        Map::from_iter([("path", Value::from(self.path)), ("message", Value::from(self.message))]).into()
    }
}

/// One walk over value and schema side by side.
struct Walk<'a> {
    root: &'a Schema,
    steps: usize,
}

impl<'a> Walk<'a> {
    /// Takes a step, and one more for each piece of a text that is looked through. `false` when there are none left.
    fn step(&mut self, text_bytes: usize) -> bool {
        let steps = 1 + text_bytes / STEP_BYTES;
        let is_allowed = steps <= self.steps;
        self.steps = self.steps.saturating_sub(steps);
        is_allowed
    }

    fn of(&mut self, schema: &'a Schema, value: &Value, path: &str, depth: usize) -> Vec<Misfit> {
        let text_bytes = value.as_str().map_or(0, str::len);
        if depth > MAX_DEPTH || is_opaque(value) || !self.step(text_bytes) {
            return Vec::new();
        }
        let mut found = Vec::new();
        if *schema == Schema::Bool(false) {
            found.push(misfit(path, "is not allowed here"));
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|reference| self.resolve(reference)) {
            found.extend(self.of(target, value, path, depth + 1));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            found.extend(self.of(part, value, path, depth + 1));
        }
        for choices in ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema[keyword].as_array()) {
            found.extend(self.choice(choices, value, path, depth));
        }
        if let Some(message) = own_misfit(schema, value) {
            // What is of another type is not looked into.
            found.push(misfit(path, message));
            return found;
        }
        match value {
            Value::Map(map) => self.object(schema, map, path, depth, &mut found),
            Value::List(items) | Value::Tuple(items) => self.array(schema, items, path, depth, &mut found),
            _ => {}
        }
        found
    }

    fn resolve(&self, reference: &str) -> Option<&'a Schema> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn object(&mut self, schema: &'a Schema, map: &Map, path: &str, depth: usize, found: &mut Vec<Misfit>) {
        let properties = schema["properties"].as_object();
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Schema::as_str);
        for name in required.filter(|name| !map.contains_key(name)) {
            found.push(misfit(&step(path, name), "is missing"));
        }
        for (name, value) in map {
            if found.len() >= MAX_FIELDS || !self.step(name.len()) {
                return;
            }
            match properties.and_then(|properties| properties.get(name)) {
                Some(property) => found.extend(self.of(property, value, &step(path, name), depth + 1)),
                None if schema["additionalProperties"] == Schema::Bool(false) => {
                    found.push(misfit(&step(path, name), "is not a field of this type"));
                }
                None if schema["additionalProperties"].is_object() => {
                    found.extend(self.of(&schema["additionalProperties"], value, &step(path, name), depth + 1));
                }
                None => {}
            }
        }
    }

    fn array(&mut self, schema: &'a Schema, items: &[Value], path: &str, depth: usize, found: &mut Vec<Misfit>) {
        let least = schema["minItems"].as_u64().filter(|least| (items.len() as u64) < *least);
        let most = schema["maxItems"].as_u64().filter(|most| items.len() as u64 > *most);
        if let Some(bound) = least.or(most) {
            let side = if least.is_some() { "at least" } else { "at most" };
            found.push(misfit(path, format!("has {} items and must have {side} {bound}", items.len())));
        }
        let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
        for (index, item) in items.iter().enumerate() {
            if found.len() >= MAX_FIELDS || !self.step(0) {
                return;
            }
            let of_item = first.get(index).unwrap_or_else(|| &schema["items"]);
            if !of_item.is_null() {
                found.extend(self.of(of_item, item, &format!("{path}[{index}]"), depth + 1));
            }
        }
    }

    /// Of alternatives, one has to fit. Else the one that comes nearest tells what is wrong: the only one that may be something,
    /// or that is of the value's kind and wrong only further in.
    fn choice(&mut self, choices: &'a [Schema], value: &Value, path: &str, depth: usize) -> Vec<Misfit> {
        if let Some((tag, words)) = tag_of(choices)
            && let Value::Map(map) = value
        {
            let named = map.get(tag).and_then(|tag| words.iter().position(|word| is_equal(word, tag)));
            return match named {
                Some(index) => self.of(&choices[index], value, path, depth + 1),
                None => vec![misfit(&step(path, tag), none_of(words))],
            };
        }
        let mut tried: Vec<Vec<Misfit>> = Vec::new();
        for choice in choices {
            let found = self.of(choice, value, path, depth + 1);
            if found.is_empty() {
                return found;
            }
            if choice["type"] != "null" {
                tried.push(found);
            }
        }
        let words: Option<Vec<&Schema>> = choices.iter().map(|choice| choice.get("const")).collect();
        if let Some(words) = words {
            return vec![misfit(path, none_of(words))];
        }
        if tried.len() == 1 {
            return tried.swap_remove(0);
        }
        let inner = tried.into_iter().filter(|found| found.iter().all(|misfit| misfit.path != path));
        let nearest = inner.min_by_key(Vec::len);
        nearest.unwrap_or_else(|| vec![misfit(path, format!("fits none of {} alternatives", choices.len()))])
    }
}

/// The field by whose word alternatives are told apart, and the word of each: how enumerations with a tag are described.
fn tag_of(choices: &[Schema]) -> Option<(&str, Vec<&Schema>)> {
    let (tag, _) =
        choices.first()?["properties"].as_object()?.iter().find(|(_, field)| field.get("const").is_some())?;
    let words = choices.iter().map(|choice| choice["properties"][tag].get("const")).collect::<Option<_>>()?;
    Some((tag, words))
}

/// What a schema has no words for.
fn is_opaque(value: &Value) -> bool {
    let has_words = matches!(
        value,
        Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::UInt(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Map(_)
    );
    !has_words
}

/// What is wrong with the value itself, whatever is in it.
fn own_misfit(schema: &Schema, value: &Value) -> Option<String> {
    let types: Vec<&str> = match &schema["type"] {
        Schema::String(name) => vec![name],
        Schema::Array(names) => names.iter().filter_map(Schema::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of_type(value, name)) {
        let wanted: Vec<&str> = types.iter().map(|name| in_words(name)).collect();
        return Some(format!("must be {} and is {}", wanted.join(" or "), kind_of(value)));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.iter().any(|word| is_equal(word, value))
    {
        return Some(none_of(words));
    }
    if let Some(word) = schema.get("const")
        && !is_equal(word, value)
    {
        return Some(none_of([word]));
    }
    out_of_range(schema, value).or_else(|| of_wrong_length(schema, value))
}

fn out_of_range(schema: &Schema, value: &Value) -> Option<String> {
    let number = match value {
        Value::Int(number) => *number as f64,
        Value::UInt(number) => *number as f64,
        Value::Float(number) => *number,
        _ => return None,
    };
    let bound = |keyword: &str, is_beyond: fn(f64, f64) -> bool| {
        schema[keyword].as_f64().filter(|bound| is_beyond(number, *bound)).map(|_| schema[keyword].to_string())
    };
    let least = bound("minimum", |number, bound| number < bound).map(|bound| format!("must be at least {bound}"));
    let most = || bound("maximum", |number, bound| number > bound).map(|bound| format!("must be at most {bound}"));
    let above =
        || bound("exclusiveMinimum", |number, bound| number <= bound).map(|bound| format!("must be above {bound}"));
    let below =
        || bound("exclusiveMaximum", |number, bound| number >= bound).map(|bound| format!("must be below {bound}"));
    least.or_else(most).or_else(above).or_else(below)
}

fn of_wrong_length(schema: &Schema, value: &Value) -> Option<String> {
    let length = value.as_str()?.chars().count() as u64;
    let short = schema["minLength"].as_u64().filter(|least| length < *least);
    let long = schema["maxLength"].as_u64().filter(|most| length > *most);
    let side = if short.is_some() { "at least" } else { "at most" };
    short.or(long).map(|bound| format!("must have {side} {bound} characters and has {length}"))
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => matches!(value, Value::Null),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_) | Value::UInt(_)),
        "number" => matches!(value, Value::Int(_) | Value::UInt(_) | Value::Float(_)),
        "string" => matches!(value, Value::Str(_)),
        "array" => matches!(value, Value::List(_) | Value::Tuple(_)),
        "object" => matches!(value, Value::Map(_)),
        _ => true,
    }
}

fn in_words(name: &str) -> &str {
    match name {
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a text",
        "array" => "a list",
        "object" => "a map",
        other => other,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Int(_) | Value::UInt(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Str(_) => "a text",
        Value::List(_) | Value::Tuple(_) => "a list",
        Value::Map(_) => "a map",
        _ => "something else",
    }
}

fn is_equal(word: &Schema, value: &Value) -> bool {
    match (word, value) {
        (Schema::Null, Value::Null) => true,
        (Schema::Bool(word), Value::Bool(value)) => word == value,
        (Schema::String(word), Value::Str(value)) => word == value,
        (Schema::Number(word), Value::Int(value)) => word.as_i64() == Some(*value),
        (Schema::Number(word), Value::UInt(value)) => word.as_u64() == Some(*value),
        (Schema::Number(word), Value::Float(value)) => word.as_f64() == Some(*value),
        _ => false,
    }
}

fn none_of<'a>(words: impl IntoIterator<Item = &'a Schema>) -> String {
    let words: Vec<String> = words.into_iter().take(MAX_WORDS).map(Schema::to_string).collect();
    format!("must be {}", words.join(" or "))
}

/// Words of an enumeration that are told.
const MAX_WORDS: usize = 16;

fn misfit(path: &str, message: impl Into<String>) -> Misfit {
    Misfit { path: path.to_owned(), message: message.into() }
}

/// As the paths of [`DecodeError`]: `.name`, or `["what ever"]`, and no more of a key than says which it is.
fn step(path: &str, key: &str) -> String {
    let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
    let more = if shown.len() < key.len() { "…" } else { "" };
    if is_plain { format!("{path}.{shown}{more}") } else { format!("{path}[{:?}]", format!("{shown}{more}")) }
}

const MAX_KEY_CHARS: usize = 64;

#[cfg(test)]
mod tests {
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

    fn told(body: serde_json::Value) -> Vec<(String, String)> {
        let (order, limits) = (DataType::of::<Order>(), DecodeLimits::default());
        let bytes = body.to_string().into();
        let error = order.decode(Format::Json, &bytes, &limits).unwrap_err();
        let value = Value::decode(Format::Json, &bytes, &limits).unwrap();
        misfits(order.schema(), &value, &error).into_iter().map(|misfit| (misfit.path, misfit.message)).collect()
    }

    fn good() -> serde_json::Value {
        json!({
            "name": "a", "count": 1, "note": null, "kind": "small", "size": [1, 2.5],
            "items": [{ "id": 1, "action": { "do": "add", "amount": 1.5 } }, { "id": 2, "action": { "do": "drop", "force": true } }],
        })
    }

    /// The good one with changes at these places.
    fn with(changes: &[(&str, serde_json::Value)]) -> serde_json::Value {
        let mut body = good();
        for (place, value) in changes {
            *body.pointer_mut(place).unwrap() = value.clone();
        }
        body
    }

    fn paths(told: &[(String, String)]) -> Vec<&str> {
        told.iter().map(|(path, _)| path.as_str()).collect()
    }

    #[test]
    fn every_field_that_does_not_fit_is_told_with_its_path() {
        let told = told(with(&[
            ("/name", json!(7)),
            ("/count", json!(300)),
            ("/note", json!([])),
            ("/kind", json!("huge")),
            ("/size", json!([1])),
            ("/items/0/id", json!(-1)),
            ("/items/1/action/force", json!("yes")),
        ]));
        let expected = ["$.name", "$.count", "$.note", "$.kind", "$.size", "$.items[0].id", "$.items[1].action.force"];
        assert_eq!(paths(&told), expected);
        assert_eq!(told[0].1, "must be a text and is a whole number");
        assert_eq!(told[1].1, "must be at most 255");
        assert_eq!(told[3].1, r#"must be "small" or "large""#);
        assert_eq!(told[4].1, "has 1 items and must have at least 2");
        assert_eq!(told[5].1, "must be at least 0");
        assert_eq!(told[6].1, "must be true or false and is a text");
    }

    #[test]
    fn missing_and_unknown_fields_are_told() {
        let told = told(json!({ "name": "a", "count": 1, "kind": "small", "size": [1, 2], "colour": "red" }));
        assert_eq!(
            told,
            [
                ("$.items".to_owned(), "is missing".to_owned()),
                ("$.colour".to_owned(), "is not a field of this type".to_owned()),
            ]
        );
        assert_eq!(paths(&self::told(json!([]))), ["$"]);
    }

    #[test]
    fn an_alternative_that_is_none_of_them_is_told_once() {
        let told = told(with(&[("/items/0/action", json!({ "do": "dance" })), ("/count", json!("1"))]));
        assert_eq!(paths(&told), ["$.count", "$.items[0].action.do"], "{told:?}");
        assert_eq!(told[1].1, r#"must be "add" or "drop""#);
    }

    #[test]
    fn what_only_serde_knows_is_told_first() {
        #[derive(Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "u8")]
        struct Even(u8);
        impl TryFrom<u8> for Even {
            type Error = String;
            fn try_from(number: u8) -> Result<Self, String> {
                if number.is_multiple_of(2) { Ok(Self(number)) } else { Err("must be even".to_owned()) }
            }
        }
        let (even, limits) = (DataType::of::<Even>(), DecodeLimits::default());
        let error = even.decode(Format::Json, &"7".into(), &limits).unwrap_err();
        let told = misfits(even.schema(), &Value::Int(7), &error);
        assert_eq!((told.len(), told[0].path.as_str(), told[0].message.as_str()), (1, "$", "must be even"));
    }

    #[test]
    fn a_hostile_value_is_looked_at_for_so_long_and_told_so_much() {
        let many = json!(vec![json!({ "id": "x" }); 50_000]);
        let told = told(with(&[("/items", many), ("/name", json!(1))]));
        assert_eq!(told.len(), MAX_FIELDS);
        let schema = json!({ "$defs": { "A": { "anyOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/A" }], "type": "string" } }, "$ref": "#/$defs/A" });
        assert_eq!(steps(&schema, &Value::Null), MAX_STEPS, "it comes back when it has none left");
    }

    #[test]
    fn what_is_large_and_looked_at_again_and_again_takes_its_steps_each_time() {
        let twice = json!({ "anyOf": [
            { "required": ["x"], "properties": { "a": { "$ref": "#/$defs/A" } } },
            { "required": ["y"], "properties": { "a": { "$ref": "#/$defs/A" } } },
        ] });
        let schema = json!({ "$defs": { "A": twice }, "$ref": "#/$defs/A" });
        let nested = |inner: Value| (0..6).fold(inner, |inner, _| Map::from_iter([("a", inner)]).into());
        let plain = steps(&schema, &nested(Map::new().into()));
        let many: Map = (0..1000).map(|n| (format!("unknown {n}"), Value::Null)).collect();
        let (many, long) = (steps(&schema, &nested(many.into())), steps(&schema, &nested(" ".repeat(100_000).into())));
        assert!(plain < 2_000, "{plain}");
        assert!(many > 10 * plain && long > 10 * plain, "{many} and {long} beside {plain}");
    }

    /// The steps that are taken to look at this.
    fn steps(schema: &Schema, value: &Value) -> usize {
        let mut walk = Walk { root: schema, steps: MAX_STEPS };
        walk.of(schema, value, "$", 0);
        MAX_STEPS - walk.steps
    }
}
