//! The steps other than stages: each as a function of one item. Pure; an invalid item fails alone.

use crate::error::Failure;
use callboard_codec::{Map, Value};

/// The HTTP status of an item in the wrong form, the same as from the stages.
const SCHEMA_MISMATCH: u16 = 422;

/// The most letters of a value, and of the names of cases or fields, in a message.
const MAX_SHOWN: usize = 60;

pub(super) fn pick(field: &str, item: &Value) -> Result<Value, Failure> {
    fields_of(item)?.get(field).cloned().ok_or_else(|| missing(field, item))
}

/// The item with these fields under their new names, in their old places.
pub(super) fn rename(names: &[(String, String)], item: &Value) -> Result<Value, Failure> {
    let map = fields_of(item)?;
    if let Some((old, _)) = names.iter().find(|(old, _)| !map.contains_key(old)) {
        return Err(missing(old, item));
    }
    let mut renamed = Map::with_capacity(map.len());
    for (field, value) in map.iter() {
        let new = names.iter().find(|(old, _)| old == field).map_or(field, |(_, new)| new);
        if renamed.insert(new, value.clone()).is_some() {
            return Err(mismatch(new, format!("there would be two fields `{new}`")));
        }
    }
    Ok(Value::Map(renamed))
}

/// The reason why an item has no case.
#[derive(Debug)]
pub(super) enum UnmatchedCase {
    /// The item has no such field.
    Missing,
    /// No case has the value of the field.
    Unknown(String),
    /// The field holds a value of this kind, which has no unique text.
    Unwritable(&'static str),
}

/// The case for the value of `field`: a text itself; an integer, true and false in their written form.
pub(super) fn case_of(field: &str, item: &Value, case: impl Fn(&str) -> Option<usize>) -> Result<usize, UnmatchedCase> {
    let value = item.as_map().and_then(|map| map.get(field)).ok_or(UnmatchedCase::Missing)?;
    let written = match value {
        // The usual case, without a copy.
        Value::Str(text) => return case(text).ok_or_else(|| UnmatchedCase::Unknown(format!("{:?}", shortened(text)))),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        other => return Err(UnmatchedCase::Unwritable(other.kind())),
    };
    case(&written).ok_or(UnmatchedCase::Unknown(written))
}

impl UnmatchedCase {
    /// The failure names field, value and cases for the caller.
    pub(super) fn into_failure(self, field: &str, cases: &[String]) -> Failure {
        let found = match self {
            Self::Missing => "is missing".to_owned(),
            Self::Unknown(value) => format!("is {value}, for which there is no case"),
            Self::Unwritable(kind) => format!("is of kind {kind}; expected a text, a whole number, true or false"),
        };
        let message =
            format!("the field `{field}` {found}; the cases are {}", listed(cases.iter().map(String::as_str)));
        mismatch(field, message)
    }
}

fn fields_of(item: &Value) -> Result<&Map, Failure> {
    let wrong = || {
        let message = format!("expected a map, got {}", item.kind());
        refused("$".to_owned(), message)
    };
    item.as_map().ok_or_else(wrong)
}

fn missing(field: &str, item: &Value) -> Failure {
    let fields = match item.as_map() {
        Some(map) if !map.is_empty() => format!("the fields are {}", listed(map.keys())),
        _ => "there are none".to_owned(),
    };
    mismatch(field, format!("the field `{field}` is missing; {fields}"))
}

fn mismatch(field: &str, message: String) -> Failure {
    refused(format!("$.{field}"), message)
}

/// A failure with the path of the field, as stages report it.
fn refused(path: String, message: String) -> Failure {
    let place = Map::from_iter([("path", Value::from(path)), ("message", Value::from(message.clone()))]);
    Failure::invalid_input(message)
        .with_type("wrong_input")
        .with_status(SCHEMA_MISMATCH)
        .with_details(Map::from_iter([("fields", Value::List(vec![place.into()]))]))
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.map(shortened).collect();
    if names.len() > MAX_SHOWN {
        names.truncate(MAX_SHOWN);
        names.push("…".to_owned());
    }
    names.join(", ")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().cloned().collect())
    }

    fn case(item: &Value) -> Result<usize, String> {
        let cases = ["one", "2", "true"].map(str::to_owned);
        let number = |value: &str| cases.iter().position(|case| case == value);
        case_of("want", item, number).map_err(|missed| missed.into_failure("want", &cases).message().to_owned())
    }

    #[test]
    fn a_case_is_found_by_its_value_as_text() {
        let values = [Value::from("one"), Value::Int(2), Value::UInt(2), Value::from("2"), Value::Bool(true)];
        let numbers = values.map(|value| case(&map(&[("want", value)])).unwrap());
        assert_eq!(numbers, [0, 1, 1, 1, 2]);
    }

    #[test]
    fn an_error_of_an_unmatched_case_names_field_value_and_cases() {
        let cases = [
            (map(&[("want", Value::from("on"))]), "is \"on\", for which there is no case"),
            (map(&[("want", Value::Int(-1))]), "is -1, for which there is no case"),
            (map(&[]), "is missing"),
            (Value::Null, "is missing"),
            (map(&[("want", Value::Float(2.0))]), "is of kind float; expected a text, a whole number, true or false"),
        ];
        for (item, found) in cases {
            assert_eq!(case(&item).unwrap_err(), format!("the field `want` {found}; the cases are one, 2, true"));
        }
    }

    #[test]
    fn a_long_value_is_truncated_between_characters() {
        let error = case(&map(&[("want", Value::from("ä".repeat(1000)))])).unwrap_err();
        assert!(error.len() < 300 && error.contains('…'), "{error}");
    }

    #[test]
    fn a_missing_field_is_an_error_that_lists_the_fields() {
        let item = map(&[("a", Value::Int(1)), ("b", Value::Int(2))]);
        assert_eq!(pick("b", &item).unwrap(), Value::Int(2));
        let error = pick("c", &item).unwrap_err();
        assert_eq!(error.message(), "the field `c` is missing; the fields are a, b");
        assert_eq!(pick("c", &Value::Int(1)).unwrap_err().message(), "expected a map, got int");
    }

    #[test]
    fn renamed_fields_keep_their_positions() {
        let item = map(&[("a", Value::Int(1)), ("b", Value::Int(2)), ("c", Value::Int(3))]);
        let names = |names: &[(&str, &str)]| -> Vec<(String, String)> {
            names.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned())).collect()
        };
        let swapped = rename(&names(&[("a", "b"), ("b", "a")]), &item).unwrap();
        assert_eq!(swapped, map(&[("b", Value::Int(1)), ("a", Value::Int(2)), ("c", Value::Int(3))]));
        let keys: Vec<&str> = swapped.as_map().unwrap().keys().collect();
        assert_eq!(keys, ["b", "a", "c"]);
        let error = rename(&names(&[("a", "c")]), &item).unwrap_err();
        assert_eq!(error.message(), "there would be two fields `c`");
        let error = rename(&names(&[("x", "y")]), &item).unwrap_err();
        assert_eq!(error.message(), "the field `x` is missing; the fields are a, b, c");
    }
}
