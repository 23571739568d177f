//! Every place at which a value does not fit a route's schema, for the 422 that lists them.
//!
//! It runs after reading the value has failed. Serde, which reads the value, stops at its first error; this walk
//! continues, by the JSON Schema of the type. If the two disagree serde is right: its error is always listed. Values
//! that a schema cannot describe (bytes, arrays, tables) fit everything here.
//!
//! The work is bounded for every input: the number of visited places, with long texts and names counting several times,
//! and the number of listed mismatches.

#[cfg(test)]
mod tests;
mod words;

use callboard_codec::{DecodeError, Map, Value};
use callboard_core::edge::nearest;
use callboard_telemetry::truncate_for_log;
use serde_json::Value as Schema;

use self::words::{kind_of, none_of, step, type_name};

/// A body with more errors is of another type.
const MAX_FIELDS: usize = 32;

/// The most places that are visited. [`MAX_FIELDS`] bounds a list that is wrong throughout; this bounds a correct one.
const MAX_STEPS: usize = 20_000;

/// Text of this length takes as long as another place.
const STEP_BYTES: usize = 256;

/// Deeper than hand-written schemas.
const MAX_DEPTH: usize = 64;

/// A place in a value that does not fit, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaMismatch {
    /// As in [`DecodeError::path`].
    pub(crate) path: String,
    pub(crate) message: String,
}

/// The mismatches of `value`, which was refused with `error`. That error comes first if the schema does not find it.
pub(crate) fn mismatches(schema: &Schema, value: &Value, error: &DecodeError) -> Vec<SchemaMismatch> {
    let mut walk = SchemaWalk { root: schema, steps: MAX_STEPS };
    let mut mismatches = walk.visit(schema, value, "$", 0);
    let is_listed = mismatches.iter().any(|mismatch| mismatch.path.starts_with(error.path()));
    if !is_listed {
        mismatches.insert(0, SchemaMismatch::from_error(error));
    }
    mismatches.truncate(MAX_FIELDS);
    mismatches
}

impl SchemaMismatch {
    /// The place of the error that ended the reading.
    pub(crate) fn from_error(error: &DecodeError) -> Self {
        let path = if error.path().is_empty() { "$" } else { error.path() };
        Self { path: path.to_owned(), message: error.message().to_owned() }
    }

    /// As an entry of `details.fields`.
    pub(crate) fn into_value(self) -> Value {
        Map::from_iter([("path", Value::from(self.path)), ("message", Value::from(self.message))]).into()
    }
}

/// A walk over a value and its schema.
struct SchemaWalk<'a> {
    root: &'a Schema,
    steps: usize,
}

impl<'a> SchemaWalk<'a> {
    /// Counts a step, and one more for each piece of a text. `false` when no step is left.
    fn step(&mut self, text_bytes: usize) -> bool {
        let steps = 1 + text_bytes / STEP_BYTES;
        let is_allowed = steps <= self.steps;
        self.steps = self.steps.saturating_sub(steps);
        is_allowed
    }

    fn visit(&mut self, schema: &'a Schema, value: &Value, path: &str, depth: usize) -> Vec<SchemaMismatch> {
        let text_bytes = value.as_str().map_or(0, str::len);
        if depth > MAX_DEPTH || is_opaque(value) || !self.step(text_bytes) {
            return Vec::new();
        }
        let mut found = Vec::new();
        if *schema == Schema::Bool(false) {
            found.push(mismatch(path, "is not allowed here"));
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|reference| self.resolve(reference)) {
            found.extend(self.visit(target, value, path, depth + 1));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            found.extend(self.visit(part, value, path, depth + 1));
        }
        for choices in ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema[keyword].as_array()) {
            found.extend(self.choice(choices, value, path, depth));
        }
        if let Some(message) = own_misfit(schema, value) {
            // The parts of a value of another type are not visited.
            found.push(mismatch(path, message));
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

    fn object(&mut self, schema: &'a Schema, map: &Map, path: &str, depth: usize, found: &mut Vec<SchemaMismatch>) {
        let properties = schema["properties"].as_object();
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Schema::as_str);
        for name in required.filter(|name| !map.contains_key(name)) {
            let is_known = |other: &str| properties.is_some_and(|properties| properties.contains_key(other));
            let others = map.iter().take(MAX_FIELDS).map(|(other, _)| other).filter(|other| !is_known(other));
            let message = match nearest(name, others) {
                Some(other) => format!("is missing; `{}` is not a field of this type", truncate_for_log(other)),
                None => "is missing".to_owned(),
            };
            found.push(mismatch(&step(path, name), message));
        }
        for (name, value) in map {
            if found.len() >= MAX_FIELDS || !self.step(name.len()) {
                return;
            }
            match properties.and_then(|properties| properties.get(name)) {
                Some(property) => found.extend(self.visit(property, value, &step(path, name), depth + 1)),
                None if schema["additionalProperties"] == Schema::Bool(false) => {
                    found.push(mismatch(&step(path, name), "is not a field of this type"));
                }
                None if schema["additionalProperties"].is_object() => {
                    found.extend(self.visit(&schema["additionalProperties"], value, &step(path, name), depth + 1));
                }
                None => {}
            }
        }
    }

    fn array(
        &mut self,
        schema: &'a Schema,
        items: &[Value],
        path: &str,
        depth: usize,
        found: &mut Vec<SchemaMismatch>,
    ) {
        let least = schema["minItems"].as_u64().filter(|least| (items.len() as u64) < *least);
        let most = schema["maxItems"].as_u64().filter(|most| items.len() as u64 > *most);
        if let Some(bound) = least.or(most) {
            let side = if least.is_some() { "at least" } else { "at most" };
            found.push(mismatch(path, format!("has {} items and must have {side} {bound}", items.len())));
        }
        let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
        for (index, item) in items.iter().enumerate() {
            if found.len() >= MAX_FIELDS || !self.step(0) {
                return;
            }
            let of_item = first.get(index).unwrap_or_else(|| &schema["items"]);
            if !of_item.is_null() {
                found.extend(self.visit(of_item, item, &format!("{path}[{index}]"), depth + 1));
            }
        }
    }

    /// One alternative has to fit. Otherwise the closest alternative says what is wrong: the only one that is not null,
    /// or one of the value's kind whose mismatches are deeper.
    fn choice(&mut self, choices: &'a [Schema], value: &Value, path: &str, depth: usize) -> Vec<SchemaMismatch> {
        if let Some((tag, constants)) = tag_of(choices)
            && let Value::Map(map) = value
        {
            let named = map.get(tag).and_then(|tag| constants.iter().position(|constant| is_equal(constant, tag)));
            return match named {
                Some(index) => self.visit(&choices[index], value, path, depth + 1),
                None => vec![mismatch(&step(path, tag), none_of(constants))],
            };
        }
        let mut tried: Vec<Vec<SchemaMismatch>> = Vec::new();
        for choice in choices {
            let found = self.visit(choice, value, path, depth + 1);
            if found.is_empty() {
                return found;
            }
            if choice["type"] != "null" {
                tried.push(found);
            }
        }
        let constants: Option<Vec<&Schema>> = choices.iter().map(|choice| choice.get("const")).collect();
        if let Some(constants) = constants {
            return vec![mismatch(path, none_of(constants))];
        }
        if tried.len() == 1 {
            return tried.swap_remove(0);
        }
        let inner = tried.into_iter().filter(|found| found.iter().all(|mismatch| mismatch.path != path));
        let nearest = inner.min_by_key(Vec::len);
        nearest.unwrap_or_else(|| vec![mismatch(path, format!("fits none of {} alternatives", choices.len()))])
    }
}

/// The field whose constant tells alternatives apart, and the constant of each: how tagged enums are described.
fn tag_of(choices: &[Schema]) -> Option<(&str, Vec<&Schema>)> {
    let (tag, _) =
        choices.first()?["properties"].as_object()?.iter().find(|(_, field)| field.get("const").is_some())?;
    let constants = choices.iter().map(|choice| choice["properties"][tag].get("const")).collect::<Option<_>>()?;
    Some((tag, constants))
}

/// Whether a schema cannot describe the value.
fn is_opaque(value: &Value) -> bool {
    let is_describable = matches!(
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
    !is_describable
}

/// The mismatch of the value itself, without its parts.
fn own_misfit(schema: &Schema, value: &Value) -> Option<String> {
    let types: Vec<&str> = match &schema["type"] {
        Schema::String(name) => vec![name],
        Schema::Array(names) => names.iter().filter_map(Schema::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of_type(value, name)) {
        let expected: Vec<&str> = types.iter().map(|name| type_name(name)).collect();
        return Some(format!("must be {} and is {}", expected.join(" or "), kind_of(value)));
    }
    if let Some(constants) = schema["enum"].as_array()
        && !constants.iter().any(|constant| is_equal(constant, value))
    {
        return Some(none_of(constants));
    }
    if let Some(constant) = schema.get("const")
        && !is_equal(constant, value)
    {
        return Some(none_of([constant]));
    }
    out_of_range(schema, value).or_else(|| wrong_length(schema, value))
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

fn wrong_length(schema: &Schema, value: &Value) -> Option<String> {
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

fn is_equal(constant: &Schema, value: &Value) -> bool {
    match (constant, value) {
        (Schema::Null, Value::Null) => true,
        (Schema::Bool(constant), Value::Bool(value)) => constant == value,
        (Schema::String(constant), Value::Str(value)) => constant == value,
        (Schema::Number(constant), Value::Int(value)) => constant.as_i64() == Some(*value),
        (Schema::Number(constant), Value::UInt(value)) => constant.as_u64() == Some(*value),
        (Schema::Number(constant), Value::Float(value)) => constant.as_f64() == Some(*value),
        _ => false,
    }
}

fn mismatch(path: &str, message: impl Into<String>) -> SchemaMismatch {
    SchemaMismatch { path: path.to_owned(), message: message.into() }
}
