//! Converts the fields of a form to the types of the route's schema. Pure.
//!
//! A form has only texts and files: `times=2` is a text, and a single file does not look like a list. If the schema of
//! a field allows no text, the text is read as JSON. If it wants a file, the text is the file, byte for byte: base64 is
//! for JSON, which has no bytes; a URL names it. If it requires a list, a single value becomes a list of one, and a
//! missing list becomes empty. A ticked box arrives as `on`: it is true where a boolean fits and a text does not. A
//! field that nobody has filled in arrives as an empty text: where that does not fit, it is left out, or null if it is
//! required. A value that does not fit stays unchanged, so that the error names the original.

use std::sync::LazyLock;

use callboard_codec::{DataType, DecodeLimits, Format, Map, Value};
use serde_json::Value as Schema;

use super::form_schema::{AllowedTypes, object_of, target};
use super::multipart::FormFields;

/// Longer texts are not converted: people do not type them. A part with its own media type may be as long as a body.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Made once: it comes with a schema.
static ANY_VALUE: LazyLock<DataType> = LazyLock::new(DataType::value);

/// The fields of a form for `input`. References in its schema point into its own `$defs`. Converted texts count against
/// the remaining limits; a text beyond them stays a text.
pub(crate) fn fit(fields: FormFields, input: &DataType) -> Map {
    let schema = input.schema();
    let FormFields { values: fields, remaining_limits } = fields;
    let mut fitting = SchemaFit { root: schema, remaining_limits, has_decimals: input.has_decimals() };
    let Some((object, properties)) = object_of(schema) else {
        // The value of the only parameter, by its name.
        let only = input.parameters().filter(|parameters| parameters.is_value).and_then(|all| all.names.first());
        let fitted = fields.into_iter().map(|(name, value)| {
            let value = if only == Some(&name) { fitting.field(value, schema) } else { value };
            (name, value)
        });
        return fitted.collect();
    };
    let required = || object["required"].as_array().into_iter().flatten().filter_map(Schema::as_str);
    let fitted = fields.into_iter().filter_map(|(name, value)| {
        let Some(property) = properties.get(&name) else { return Some((name, value)) };
        let allowed = AllowedTypes::new(property, schema);
        if !is_empty_text(&value) || allowed.takes_empty_text(schema) {
            let fitted = fitting.field(value, property);
            return Some((name, fitted));
        }
        // A list that is left out becomes empty.
        let may_miss = allowed.types == ["array"] || !required().any(|required| required == name);
        match (may_miss, allowed.has("null")) {
            (true, _) => None,
            (false, true) => Some((name, Value::Null)),
            (false, false) => Some((name, value)),
        }
    });
    let mut fields: Map = fitted.collect();
    for name in required() {
        let is_list =
            properties.get(name).is_some_and(|property| AllowedTypes::new(property, schema).types == ["array"]);
        if is_list && fields.get(name).is_none() {
            fields.insert(name.to_owned(), Value::List(Vec::new()));
        }
    }
    fields
}

/// The value of the only parameter, if the fields have it and nothing else, and the value itself is no such map.
/// Without fields it is its default.
pub(crate) fn only_argument(fields: &mut Map, input: &DataType) -> Option<Value> {
    let parameters = input.parameters().filter(|parameters| parameters.is_value)?;
    let allowed = AllowedTypes::new(input.schema(), input.schema());
    if allowed.says_nothing() || allowed.has("object") {
        return None;
    }
    match fields.len() {
        0 => input.default_value(),
        1 => fields.remove(parameters.names.first()?),
        _ => None,
    }
}

fn is_empty_text(value: &Value) -> bool {
    matches!(value, Value::Str(text) if text.is_empty())
}

/// The type of a part of this name that is JSON, if the schema has decimals. A name that comes more than once has
/// items.
pub(crate) fn type_with_decimals(input: &DataType, name: &str) -> Option<DataType> {
    if !input.has_decimals() {
        return None;
    }
    let root = input.schema();
    let property = target(object_of(root)?.1.get(name)?, root);
    let either = [Some(property), property.get("items")];
    let schema = Schema::from_iter([("anyOf", Schema::from_iter(either.into_iter().flatten().cloned()))]);
    Some(ANY_VALUE.clone().with_schema(schema))
}

/// The conversion of one form.
struct SchemaFit<'a> {
    root: &'a Schema,
    remaining_limits: DecodeLimits,
    has_decimals: bool,
}

impl<'a> SchemaFit<'a> {
    fn field(&mut self, value: Value, schema: &'a Schema) -> Value {
        let allowed = AllowedTypes::new(schema, self.root);
        match value {
            Value::List(items) if allowed.has("array") => {
                let takes_empty_text = allowed.takes_empty_text(self.root);
                let items = items.into_iter().filter(|item| takes_empty_text || !is_empty_text(item));
                Value::List(items.map(|item| self.item(item, &allowed)).collect())
            }
            Value::Str(text) => match self.read(&text, schema, &allowed) {
                Some(read) => read,
                None => self.listed(as_file(text, &allowed), &allowed),
            },
            other => self.listed(other, &allowed),
        }
    }

    /// A single value, as a list if only a list is allowed.
    fn listed(&mut self, value: Value, allowed: &AllowedTypes<'a>) -> Value {
        let is_fit = allowed.says_nothing() || !allowed.has("array") || allowed.has("string");
        if is_fit { value } else { Value::List(vec![self.item(value, allowed)]) }
    }

    fn item(&mut self, value: Value, list: &AllowedTypes<'a>) -> Value {
        match (value, list.items) {
            (Value::Str(text), Some(items)) => {
                let allowed = AllowedTypes::new(items, self.root);
                self.read(&text, items, &allowed).unwrap_or_else(|| as_file(text, &allowed))
            }
            (value, _) => value,
        }
    }

    /// A text that stands for something else.
    fn read(&mut self, text: &str, schema: &'a Schema, allowed: &AllowedTypes<'_>) -> Option<Value> {
        self.as_json(text, schema, allowed).or_else(|| as_bool(text, allowed))
    }

    /// The text as JSON, if the schema allows its type and allows no text, or the text is a list or a map.
    fn as_json(&mut self, text: &str, schema: &Schema, allowed: &AllowedTypes<'_>) -> Option<Value> {
        if allowed.says_nothing() || text.len() > MAX_TEXT_BYTES {
            return None;
        }
        // Only schemas with decimals change how a value is read.
        let described = self.has_decimals.then(|| ANY_VALUE.clone().with_schema(schema.clone()));
        let kind = described.as_ref().unwrap_or(&ANY_VALUE);
        let bytes = bytes::Bytes::copy_from_slice(text.as_bytes());
        let read = kind.decode(Format::Json, &bytes, &self.remaining_limits).ok()?.into_inner().ok()?;
        let kinds: &[&str] = match &read {
            Value::Null => &["null"],
            Value::Bool(_) => &["boolean"],
            Value::Int(_) | Value::UInt(_) => &["integer", "number"],
            Value::Float(_) => &["number"],
            Value::List(_) => &["array"],
            Value::Map(_) => &["object"],
            _ => return None,
        };
        let is_structure = matches!(read, Value::List(_) | Value::Map(_));
        let is_meant = kinds.iter().any(|kind| allowed.has(kind))
            && (is_structure || !(allowed.has("string") || allowed.has_file));
        if !is_meant {
            return None;
        }
        self.remaining_limits = self.remaining_limits.left_after(&read);
        Some(read)
    }
}

/// The words of forms for true and false, such as that of a box that is ticked.
fn as_bool(text: &str, allowed: &AllowedTypes<'_>) -> Option<Value> {
    let is_any = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if !allowed.has("boolean") || allowed.has("string") {
        return None;
    }
    match (is_any(&["true", "on", "yes", "1"]), is_any(&["false", "off", "no", "0"])) {
        (true, _) => Some(Value::Bool(true)),
        (_, true) => Some(Value::Bool(false)),
        _ => None,
    }
}

/// The beginnings of a text that stands for a file: its bytes are in it, or somewhere else.
const URLS: [&str; 3] = ["data:", "https://", "http://"];

/// The bytes of a text, if a file and no other text is wanted.
fn as_file(text: String, allowed: &AllowedTypes<'_>) -> Value {
    let is_file = allowed.has_file && !allowed.has("string") && !URLS.iter().any(|url| text.starts_with(url));
    if is_file { Value::Bytes(text.into_bytes().into()) } else { Value::Str(text) }
}

#[cfg(test)]
mod tests {
    use callboard_codec::Parameters;
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        json!({
            "type": "object",
            "required": ["tags", "tone"],
            "properties": {
                "name": { "type": "string" },
                "times": { "type": ["integer", "null"] },
                "size": { "type": "number" },
                "on": { "type": "boolean" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "counts": { "type": "array", "items": { "type": "integer" } },
                "tone": { "oneOf": [{ "const": "warm" }, { "$ref": "#/$defs/Formal" }] },
                "any": {},
                "file": { "type": "string", "contentEncoding": "base64" },
                "maybe": { "anyOf": [{ "type": "string", "contentEncoding": "base64" }, { "type": "null" }] },
                "files": { "type": "array", "items": { "type": "string", "contentEncoding": "base64" } },
                "either": { "anyOf": [{ "type": "string", "contentEncoding": "base64" }, { "type": "string" }] },
                "loop": { "$ref": "#/$defs/Loop" },
            },
            "$defs": {
                "Formal": { "type": "object", "properties": { "title": { "type": "string" } } },
                "Loop": { "$ref": "#/$defs/Loop" },
            },
        })
    }

    fn typed(schema: Schema) -> DataType {
        DataType::value().with_schema(schema)
    }

    fn form<const N: usize>(fields: [(&str, Value); N]) -> FormFields {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        FormFields { values: fields, remaining_limits: DecodeLimits::default() }
    }

    fn fitted(name: &str, value: impl Into<Value>) -> Schema {
        let fitted = fit(form([(name, value.into())]), &typed(schema()));
        let json = fitted.get(name).unwrap().encode(Format::Json).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    #[test]
    fn a_text_becomes_the_type_of_its_schema() {
        assert_eq!(fitted("times", "2"), json!(2));
        assert_eq!(fitted("times", "null"), json!(null));
        assert_eq!(fitted("size", "1.5"), json!(1.5));
        assert_eq!(fitted("on", "true"), json!(true));
        assert_eq!(fitted("tone", r#"{"title":"Dr"}"#), json!({ "title": "Dr" }));
    }

    #[test]
    fn a_text_stays_a_text_if_the_schema_takes_it_or_nothing_else_fits() {
        for (name, text) in [
            ("name", "2"),
            ("name", "{}"),
            ("tone", "warm"),
            ("times", "two"),
            ("any", "3"),
            ("loop", "3"),
            ("other", "4"),
        ] {
            assert_eq!(fitted(name, text), json!(text), "{name}");
        }
        assert_eq!(fitted("on", "maybe"), json!("maybe"));
    }

    #[test]
    fn a_ticked_box_is_true() {
        for (text, value) in [("on", true), ("Yes", true), ("1", true), ("off", false), ("no", false), ("0", false)] {
            assert_eq!(fitted("on", text), json!(value), "{text}");
        }
        assert_eq!(fitted("name", "on"), json!("on"));
    }

    #[test]
    fn a_field_that_is_not_filled_in_is_null_or_missing() {
        assert_eq!(fitted("name", ""), json!(""));
        assert_eq!(fitted("any", ""), json!(""));
        let of = |schema: Schema| fit(form([("n", "".into())]), &typed(schema)).get("n").cloned();
        let number = json!({ "n": { "type": "number" } });
        assert_eq!(of(json!({ "properties": number })), None);
        // It has its default, also where it may be null.
        let nullable = json!({ "n": { "type": ["number", "null"], "default": 5 } });
        assert_eq!(of(json!({ "properties": nullable })), None);
        assert_eq!(of(json!({ "properties": nullable, "required": ["n"] })), Some(Value::Null));
        for text in [
            json!({ "type": "string", "enum": ["red"] }),
            json!({ "const": "red" }),
            json!({ "type": "string", "format": "date" }),
            json!({ "type": "string", "minLength": 1 }),
            json!({ "type": "array", "items": { "type": "integer" } }),
        ] {
            assert_eq!(of(json!({ "properties": { "n": text.clone() } })), None, "{text}");
        }
        for text in [json!({ "type": "string" }), json!({ "enum": ["", "red"] })] {
            assert_eq!(of(json!({ "properties": { "n": text.clone() } })), Some("".into()), "{text}");
        }
        let list =
            |item: Schema| json!({ "properties": { "n": { "type": "array", "items": item } }, "required": ["n"] });
        assert_eq!(of(list(json!({ "type": "integer" }))), Some(Value::List(Vec::new())));
        assert_eq!(of(list(json!({ "type": "string" }))), Some(Value::List(vec!["".into()])));
        // The error names it.
        assert_eq!(of(json!({ "properties": number, "required": ["n"] })), Some("".into()));
    }

    #[test]
    fn the_only_parameter_may_be_a_field_of_its_name() {
        let of = |schema: Schema, name: &str| {
            let parameters = Parameters { names: vec!["n".to_owned()], is_value: true };
            let input = typed(schema).with_parameters(parameters);
            let mut fields = fit(form([(name, "3".into())]), &input);
            only_argument(&mut fields, &input)
        };
        assert_eq!(of(json!({ "type": "integer" }), "n"), Some(Value::Int(3)));
        assert_eq!(
            of(json!({ "type": "array", "items": { "type": "integer" } }), "n"),
            Some(Value::List(vec![Value::Int(3)]))
        );
        // The form itself is the map, or whatever is taken.
        for schema in
            [json!({ "type": "object" }), json!({}), json!({ "anyOf": [{ "type": "object" }, { "type": "null" }] })]
        {
            assert_eq!(of(schema, "n"), None);
        }
        assert_eq!(of(json!({ "type": "integer" }), "other"), None);
        let with_default = typed(json!({ "type": "integer", "default": 7 }));
        let with_default = with_default.with_parameters(Parameters { names: vec!["n".to_owned()], is_value: true });
        assert_eq!(only_argument(&mut Map::new(), &with_default), Some(Value::Int(7)));
    }

    #[test]
    fn decimals_in_a_text_of_json_keep_their_digits() {
        let line = json!({ "properties": { "price": { "type": "string", "format": "decimal" } } });
        let schema =
            json!({ "properties": { "lines": { "type": "array", "items": line }, "n": { "type": "number" } } });
        let form = form([("lines", Value::from(r#"[{"price": 1.10}]"#)), ("n", Value::from("1.10"))]);
        let fitted = Value::Map(fit(form, &typed(schema))).encode(Format::Json).unwrap();
        assert_eq!(fitted, r#"{"lines":[{"price":"1.10"}],"n":1.1}"#);
    }

    #[test]
    fn a_text_in_the_place_of_a_file_is_its_bytes() {
        let fitted =
            |name: &str, text: &str| fit(form([(name, text.into())]), &typed(schema())).get(name).unwrap().clone();
        for text in ["abcd", "null", "{}", ""] {
            let bytes = Value::Bytes(text.to_owned().into());
            assert_eq!((fitted("file", text), fitted("maybe", text)), (bytes.clone(), bytes.clone()));
            assert_eq!(fitted("files", text), Value::List(vec![bytes]));
        }
        for text in ["data:text/plain;base64,YQ==", "https://a.example/b"] {
            assert_eq!(fitted("file", text), Value::from(text));
        }
        assert_eq!(fitted("either", "abcd"), Value::from("abcd"));
    }

    /// As of a model with one input, which may be the whole body, or of a parameter that may be absent.
    #[test]
    fn the_only_choice_that_is_an_object_is_the_form() {
        let number = json!({ "type": "array", "items": { "type": "number" } });
        let object = json!({ "type": "object", "properties": { "a": &number } });
        let choices = |other: &Schema| typed(json!({ "anyOf": [object, other] }));
        let read = |schema: &DataType| fit(form([("a", "[1, 2]".into())]), schema).get("a").unwrap().clone();
        let numbers = Value::List(vec![Value::Int(1), Value::Int(2)]);
        assert_eq!(read(&choices(&number)), numbers);
        assert_eq!(
            read(&typed(json!({ "oneOf": [{ "type": "null" }, { "$ref": "#/$defs/D" }], "$defs": { "D": object } }))),
            numbers
        );
        let other = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        assert_eq!(read(&choices(&other)), Value::from("[1, 2]"));
    }

    #[test]
    fn a_missing_required_list_is_empty() {
        let fitted = fit(form([]), &typed(schema()));
        assert_eq!(fitted, Map::from_iter([("tags".to_owned(), Value::List(Vec::new()))]));
    }

    #[test]
    fn a_single_value_becomes_a_list_if_only_a_list_fits() {
        assert_eq!(fitted("tags", "a"), json!(["a"]));
        assert_eq!(fitted("tags", ""), json!([""]));
        assert_eq!(fitted("counts", "3"), json!([3]));
        assert_eq!(fitted("counts", "[3, 4]"), json!([3, 4]));
        assert_eq!(fitted("counts", Value::List(vec![Value::from("3"), Value::from("x")])), json!([3, "x"]));
    }

    #[test]
    fn all_texts_share_the_decode_limits_of_one_body() {
        let mut form = form([("counts", Value::List(vec![Value::from("[1, 2]"), Value::from("[3, 4]")]))]);
        form.remaining_limits.max_elements = 3;
        let schema = json!({ "properties": { "counts": { "type": "array", "items": { "type": "array" } } } });
        let fitted = fit(form, &typed(schema)).get("counts").unwrap().encode(Format::Json).unwrap();
        assert_eq!(fitted, r#"[[1,2],"[3, 4]"]"#);
    }
}
