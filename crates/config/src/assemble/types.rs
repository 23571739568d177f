//! The types of a route, from its steps, for the OpenAPI document.
//!
//! A stage knows its types. The schemas of composed steps are combined; an unknown part allows any value, so the schema
//! never claims too much. There are two walks: the input of a step is derived from the end, because a step that
//! forwards its item needs the input of the next one; the output of a step is derived from the start.

use callboard_codec::{DataType, RawBody, Value};
use callboard_core::description::{Choice, PipelinePlan};
use serde_json::{Map, Value as Json, json};

use super::part::Part;
use crate::Steps;

/// The input that a step needs, with an example if one is known.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    pub(super) input: DataType,
    pub(super) example: Option<Value>,
}

/// The types of the stages of the steps.
#[derive(Clone, Copy)]
pub(super) struct Types<'a>(pub(super) &'a [Option<Part>]);

impl Types<'_> {
    pub(super) fn part(&self, index: usize) -> &Part {
        self.0[index].as_ref().expect("a stage that a route uses is made")
    }

    /// The input that `step` needs if its result goes to a step that needs `after`. `None`: any value.
    pub(super) fn needs(&self, step: &Steps, after: Option<Needs>) -> Option<Needs> {
        match step {
            PipelinePlan::Stage(index) => self.part(*index).needs.clone(),
            PipelinePlan::Sequence(steps) => steps.iter().rev().fold(after, |after, step| self.needs(step, after)),
            PipelinePlan::Ensemble { members, partial } => {
                let members = members.iter().map(|(_, member)| self.needs(member, None)).collect();
                // A partial ensemble has an answer if one of its members accepts the item.
                if *partial { any_of(members) } else { all_of(members) }
            }
            PipelinePlan::Switch { by: Choice::Field(field), cases, default } => {
                let needs = cases.iter().map(|(_, case)| self.needs(case, after.clone())).collect();
                let values: Vec<&str> = cases.iter().map(|(value, _)| value.as_str()).collect();
                match default {
                    None => switched(field, &values, needs),
                    Some(default) => {
                        let default = self.needs(default, after);
                        let any = any_of(needs.into_iter().chain([default]).collect());
                        any.map(|needs| needs.with_optional(field, &values))
                    }
                }
            }
            PipelinePlan::Pick { field } => {
                let inner = after.as_ref().map_or_else(|| json!({}), |after| embedded(&after.input));
                Some(described("Item", object([(field.as_str(), inner)], false)))
            }
            PipelinePlan::Rename { fields } => {
                let old_names = object(fields.iter().map(|(old, _)| (old.clone(), json!({}))), false);
                let Some(after) = after else { return Some(described("Item", old_names)) };
                let schema = merged(old_names, with_old_names(embedded(&after.input), fields));
                let raw_body = after.input.raw_body().cloned().map(|raw| {
                    let old = fields.iter().find(|(_, new)| *new == raw.field).map(|(old, _)| old.clone());
                    RawBody { field: old.unwrap_or(raw.field), ..raw }
                });
                let needs = described("Item", schema);
                Some(match raw_body {
                    Some(raw_body) => Needs { input: needs.input.with_raw_body(raw_body), ..needs },
                    None => needs,
                })
            }
            PipelinePlan::Switch { by: Choice::Code(_), .. } | PipelinePlan::Map(_) | PipelinePlan::Ask(_) => None,
        }
    }

    /// The output of `step` for the input `before`. `None`: unknown.
    pub(super) fn gives(&self, step: &Steps, before: Option<DataType>) -> Option<DataType> {
        match step {
            PipelinePlan::Stage(index) => Some(self.part(*index).output.clone()),
            PipelinePlan::Sequence(steps) => steps.iter().fold(before, |before, step| self.gives(step, before)),
            PipelinePlan::Ensemble { members, partial } => {
                let member = |(name, member): &(String, Steps)| {
                    let output = self.gives(member, before.clone());
                    let output = output.as_ref().map_or_else(|| json!({}), embedded);
                    let output = if *partial { json!({ "anyOf": [output, failed()] }) } else { output };
                    (name.clone(), output)
                };
                let schema = object(members.iter().map(member), true);
                Some(DataType::value().with_name("Members").with_schema(schema))
            }
            PipelinePlan::Switch { .. } => {
                let outputs = step.parts().into_iter().map(|(_, branch)| self.gives(branch, before.clone()));
                let outputs = outputs.collect::<Option<Vec<DataType>>>()?;
                let (first, rest) = outputs.split_first()?;
                if rest.iter().all(|other| other.schema() == first.schema()) {
                    return Some(first.clone());
                }
                Some(DataType::value().with_name("OneOfCases").with_schema(json!({ "anyOf": distinct(&outputs) })))
            }
            PipelinePlan::Pick { field } => {
                let before = before?;
                let schema = before.schema();
                if schema.get("$defs").is_some() {
                    return None;
                }
                let picked = schema.get("properties")?.get(field)?;
                Some(DataType::value().with_name("Picked").with_schema(picked.clone()))
            }
            PipelinePlan::Rename { fields } => {
                // An item that is a map keeps its other fields.
                let known = before.as_ref().map(DataType::schema).filter(|schema| schema.get("$defs").is_none());
                let property = |name: &str| known.and_then(|schema| schema.get("properties")?.get(name)).cloned();
                let fields = fields.iter().map(|(old, new)| (new.clone(), property(old).unwrap_or_else(|| json!({}))));
                Some(DataType::value().with_name("Renamed").with_schema(object(fields, false)))
            }
            PipelinePlan::Map(_) | PipelinePlan::Ask(_) => None,
        }
    }
}

/// The needs of all members together. The raw body is that of the members that have one, if they agree.
fn all_of(members: Vec<Option<Needs>>) -> Option<Needs> {
    let known: Vec<Needs> = members.into_iter().flatten().collect();
    combined(known, "allOf")
}

/// The union of the needs; any value, if one of them takes any value.
fn any_of(members: Vec<Option<Needs>>) -> Option<Needs> {
    combined(members.into_iter().collect::<Option<Vec<Needs>>>()?, "anyOf")
}

fn combined(needs: Vec<Needs>, how: &str) -> Option<Needs> {
    let (first, rest) = needs.split_first()?;
    if rest.iter().all(|other| other.input.schema() == first.input.schema()) {
        return Some(first.clone());
    }
    let inputs: Vec<DataType> = needs.iter().map(|needs| needs.input.clone()).collect();
    let mut input = DataType::value().with_name("Item").with_schema(json!({ how: distinct(&inputs) }));
    if let Some(raw_body) = common_raw_body(&inputs) {
        input = input.with_raw_body(raw_body);
    }
    // If any member suffices, an example for one member is an example for all.
    let example = needs.into_iter().find_map(|needs| needs.example).filter(|_| how == "anyOf");
    Some(Needs { input, example })
}

/// Every item has the field with one of these values, and fulfils the needs of that case.
fn switched(field: &str, values: &[&str], needs: Vec<Option<Needs>>) -> Option<Needs> {
    let choice = |values: &[&str]| object([(field, json!({ "enum": written(values) }))], false);
    let inputs: Vec<Option<Json>> =
        needs.iter().map(|needs| needs.as_ref().map(|needs| embedded(&needs.input))).collect();
    let case = |values: &[&str], input: &Option<Json>| match input {
        Some(input) => merged(choice(values), input.clone()),
        None => choice(values),
    };
    let schema = match inputs.split_first() {
        Some((first, rest)) if rest.iter().all(|other| other == first) => case(values, first),
        _ => {
            json!({ "anyOf": values.iter().zip(&inputs).map(|(value, input)| case(&[*value], input)).collect::<Vec<Json>>() })
        }
    };
    // A raw body cannot carry the field.
    Some(described("Item", schema))
}

impl Needs {
    /// The same, with a field that may be missing.
    fn with_optional(mut self, field: &str, values: &[&str]) -> Self {
        let description = format!("{}; the default for anything else, and without it", values.join(", "));
        let optional = json!({ "type": "object", "properties": { field: { "description": description } } });
        if is_plain(self.input.schema()) {
            let schema = merged(optional, self.input.schema().clone());
            self.input = self.input.with_schema(schema).with_name("Item");
        }
        self
    }
}

/// Both schemas at once: one merged object if both are plain and share no field, else `allOf`.
fn merged(one: Json, other: Json) -> Json {
    let says = |schema: &Json, field: &str| schema["properties"].get(field).is_some_and(|known| *known != json!({}));
    let is_duplicate = |fields: &Map<String, Json>| fields.keys().any(|field| says(&one, field) && says(&other, field));
    let (true, Some(fields)) = (is_plain(&one) && is_plain(&other), one["properties"].as_object()) else {
        return json!({ "allOf": [one, other] });
    };
    if is_duplicate(fields) {
        return json!({ "allOf": [one, other] });
    }
    let mut all = other.clone();
    for (field, schema) in fields.iter().filter(|(field, _)| !says(&other, field)) {
        all["properties"][field.as_str()] = schema.clone();
    }
    let mut required: Vec<Json> = Vec::new();
    for name in [&other, &one].into_iter().filter_map(|schema| schema["required"].as_array()).flatten() {
        if !required.contains(name) {
            required.push(name.clone());
        }
    }
    if !required.is_empty() {
        all["required"] = json!(required);
    }
    all
}

/// Whether the object is described only by its fields and may have others.
fn is_plain(schema: &Json) -> bool {
    let known = ["type", "properties", "required"];
    schema["type"] == "object"
        && schema["properties"].is_object()
        && schema.as_object().is_some_and(|schema| schema.keys().all(|key| known.contains(&key.as_str())))
}

/// The schema of the input of `rename`, from the schema of its output. Unknown parts are left out.
fn with_old_names(schema: Json, names: &[(String, String)]) -> Json {
    let old = |new: &str| names.iter().find(|(_, other)| other == new).map_or(new, |(old, _)| old.as_str()).to_owned();
    let Json::Object(schema) = schema else { return json!({}) };
    let keyword = |(keyword, value): (String, Json)| -> Option<(String, Json)> {
        let value = match (keyword.as_str(), value) {
            ("properties", Json::Object(fields)) => {
                // A renamed field says nothing about an input field of the same name.
                let fields = fields.into_iter().filter(|(name, _)| !is_left(name, names));
                fields.map(|(name, field)| (old(&name), field)).collect::<Map<_, _>>().into()
            }
            ("required", Json::Array(fields)) => {
                let fields = fields.iter().filter_map(Json::as_str).filter(|name| !is_left(name, names));
                fields.map(old).collect()
            }
            ("allOf" | "anyOf", Json::Array(parts)) => {
                parts.into_iter().map(|part| with_old_names(part, names)).collect()
            }
            ("type", value) => value,
            _ => return None,
        };
        Some((keyword, value))
    };
    schema.into_iter().filter_map(keyword).collect::<Map<_, _>>().into()
}

/// Whether the name is renamed and no other field gets it.
fn is_left(name: &str, names: &[(String, String)]) -> bool {
    names.iter().any(|(old, _)| old == name) && !names.iter().any(|(_, new)| new == name)
}

/// All forms in which a client can write these cases: an integer, true and false also as JSON values.
fn written(values: &[&str]) -> Vec<Json> {
    let itself = |value: &str| -> Option<Json> {
        let whole: Option<Json> = serde_json::from_str(value).ok();
        // `1.0` and ` 1` are texts: no number is written like this.
        let is_case = |json: &Json| !json.is_f64() && (json.is_number() || json.is_boolean());
        whole.filter(|json| is_case(json) && serde_json::to_string(json).is_ok_and(|written| written == value))
    };
    values.iter().flat_map(|value| std::iter::once(json!(value)).chain(itself(value))).collect()
}

fn described(name: &str, schema: Json) -> Needs {
    Needs { input: DataType::value().with_name(name).with_schema(schema), example: None }
}

/// An object with these required fields; if closed, with no others.
fn object<K: Into<String>>(fields: impl IntoIterator<Item = (K, Json)>, is_closed: bool) -> Json {
    let properties: Map<String, Json> = fields.into_iter().map(|(name, schema)| (name.into(), schema)).collect();
    let required: Vec<&String> = properties.keys().collect();
    let mut schema = json!({ "type": "object", "required": required, "properties": properties });
    if is_closed {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

/// The value in place of a member that failed.
fn failed() -> Json {
    let text = || json!({ "type": "string" });
    object([("error", object([("kind", text()), ("message", text())], false))], true)
}

/// The schema inside another one. A schema with references is omitted, because they point to its own root.
fn embedded(data_type: &DataType) -> Json {
    match data_type.schema() {
        schema if schema.get("$defs").is_some() => json!({}),
        schema => schema.clone(),
    }
}

fn distinct(types: &[DataType]) -> Vec<Json> {
    let mut schemas: Vec<Json> = Vec::new();
    for schema in types.iter().map(embedded) {
        if !schemas.contains(&schema) {
            schemas.push(schema);
        }
    }
    schemas
}

fn common_raw_body(inputs: &[DataType]) -> Option<RawBody> {
    let mut bodies = inputs.iter().filter_map(DataType::raw_body);
    let first = bodies.next()?;
    bodies.all(|other| other == first).then(|| first.clone())
}
