//! One route as an OpenAPI operation, and the parts that all operations share.

use std::collections::HashSet;

use callboard_codec::{DataType, Format};
use callboard_core::Route;
use serde_json::{Map, Value, json};

use super::sample::sample;
use super::schema::Components;
use crate::error::PROBLEM_JSON;
use crate::functions;
use crate::request::media::{MULTIPART, is_file, plain_types};
use crate::respond::offers;
use crate::respond::stream::{STREAM_FORMS, StreamForm};

/// The `POST` of a route.
pub(super) fn of_route(route: &Route, operation_id: String, components: &mut Components) -> Value {
    let mut operation = json!({
        "tags": ["routes"],
        "operationId": operation_id,
        "parameters": PARAMETERS.map(|(name, ..)| json!({ "$ref": format!("#/components/parameters/{name}") })),
        "requestBody": { "required": true, "content": request_content(route, components) },
        "responses": responses(route, components),
    });
    if !route.summary().is_empty() {
        operation["summary"] = json!(route.summary());
    }
    operation
}

/// The `POST` that calls any route as a function.
pub(super) fn of_calls(components: &mut Components) -> Value {
    let arguments = components.insert("FunctionCall", functions::arguments().schema().clone());
    let formats = functions::arguments().formats().into_iter().map(Format::media_type);
    let arguments =
        formats.map(|media_type| (media_type.to_owned(), json!({ "schema": schema_in(media_type, &arguments) })));
    let mut content: Map<String, Value> = arguments.collect();
    content[Format::Json.media_type()]["example"] = json!({ "args": [], "kwargs": {} });
    let frames = StreamForm::Envelopes.media_type();
    content.insert(frames.to_owned(), json!({ "schema": binary() }));
    let name = json!({
        "name": "name", "in": "path", "required": true, "schema": { "type": "string" },
        "description": "A route, without its first `/`.",
    });
    let mut parameters = vec![name];
    parameters.extend(PARAMETERS.map(|(name, ..)| json!({ "$ref": format!("#/components/parameters/{name}") })));
    // Whatever the route gives: the forms of any value, and those of streams.
    let mut outcomes = whole_content(&DataType::value(), &json!({}));
    outcomes.extend(stream_content(&json!({})));
    json!({
        "tags": ["routes"],
        "operationId": "call",
        "summary": "Calls a route as a function, with positional and keyword arguments",
        "parameters": parameters,
        "requestBody": { "required": true, "content": content },
        "responses": responses_with("What the function gives.", outcomes),
    })
}

/// The ids of one document: programs that generate clients make functions of them, so no two may be equal.
#[derive(Debug, Default)]
pub(super) struct OperationIds(HashSet<String>);

impl OperationIds {
    /// `/digits/v2` as `post_digits_v2`; where another route has taken that, with a number behind it.
    pub(super) fn next(&mut self, route: &str) -> String {
        let id = format!("post{}", route.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        let mut candidates = std::iter::once(id.clone()).chain((2..).map(|number| format!("{id}_{number}")));
        let free = candidates.find(|candidate| !self.0.contains(candidate)).expect("there is always a higher number");
        self.0.insert(free.clone());
        free
    }
}

fn request_content(route: &Route, components: &mut Components) -> Value {
    let input = route.input();
    let reference = components.insert(input.name(), input.schema().clone());
    let mut content = Map::new();
    for format in input.formats() {
        content.insert(format.media_type().to_owned(), json!({ "schema": schema_in(format.media_type(), &reference) }));
    }
    for plain in plain_types(input) {
        content.insert(plain.to_owned(), json!({ "schema": schema_in(plain, &reference) }));
    }
    if let Some(example) = example_of(route) {
        content[Format::Json.media_type()]["example"] = example;
    }
    if let Some(schema) = form_schema(input, &reference, components) {
        content.insert(MULTIPART.to_owned(), json!({ "schema": schema }));
    }
    for media_type in input.raw_body().into_iter().flat_map(|raw| &raw.media_types) {
        content.insert(media_type.clone(), json!({ "schema": binary() }));
    }
    Value::Object(content)
}

/// A form for a route that takes raw bodies has that body as a file; else it has the fields of the type. What is no object,
/// or may be something else, has none.
fn form_schema(input: &DataType, reference: &Value, components: &mut Components) -> Option<Value> {
    match input.raw_body() {
        Some(raw) => {
            Some(json!({ "type": "object", "required": [raw.field], "properties": { raw.field.as_str(): binary() } }))
        }
        None => (input.schema()["type"] == "object").then(|| match with_files(input.schema()) {
            Some(form) => components.insert(&format!("{}Form", input.name()), form),
            None => reference.clone(),
        }),
    }
}

/// The fields of a type, of which those that stand for bytes are files, so that a page shows a button for them; none where there
/// are no such fields.
fn with_files(schema: &Value) -> Option<Value> {
    let file_of = |field: &Value| match field {
        field if is_file(field) => Some(binary()),
        field if is_file(&field["items"]) => Some(json!({ "type": "array", "items": binary() })),
        _ => None,
    };
    let mut form = schema.clone();
    let fields = form["properties"].as_object_mut()?;
    let files: Vec<_> = fields.iter().filter_map(|(name, field)| Some((name.clone(), file_of(field)?))).collect();
    let has_files = !files.is_empty();
    fields.extend(files);
    has_files.then_some(form)
}

/// What a body of this media type is to a program: the type itself where the form shows its fields, else bytes or a text.
fn schema_in(media_type: &str, reference: &Value) -> Value {
    let shows_fields = [Format::Json, Format::Msgpack].map(Format::media_type);
    match media_type {
        media_type if shows_fields.contains(&media_type) => reference.clone(),
        media_type if media_type.starts_with("text/") => json!({ "type": "string" }),
        _ => binary(),
    }
}

fn binary() -> Value {
    json!({ "type": "string", "format": "binary" })
}

/// The route's own example as JSON, else one made from its schema; none where the input is bytes in the main, or is so long
/// that a document with it would be read by nobody.
pub(crate) fn example_of(route: &Route) -> Option<Value> {
    if route.input().raw_body().is_some() {
        return None;
    }
    let given = route.examples().iter().filter(|example| example.resident_bytes() <= MAX_EXAMPLE_MEMORY);
    let given = given.filter_map(|example| example.encode(Format::Json).ok());
    match given.into_iter().find(|json| json.len() <= MAX_EXAMPLE_BYTES) {
        Some(json) => serde_json::from_slice(&json).ok(),
        None if route.examples().is_empty() => sample(route.input().schema()),
        None => None,
    }
}

/// Longer examples are left out.
const MAX_EXAMPLE_BYTES: usize = 4 * 1024;

/// A value of more than this is not even written down to see how long it is.
const MAX_EXAMPLE_MEMORY: usize = 64 * MAX_EXAMPLE_BYTES;

fn responses(route: &Route, components: &mut Components) -> Value {
    let output = route.output();
    let reference = components.insert(output.name(), output.schema().clone());
    let (description, content) = match route.streams() {
        true => {
            ("A stream of outcomes, as they come; an error within it is its last item.", stream_content(&reference))
        }
        false => ("The outcome.", whole_content(output, &reference)),
    };
    responses_with(description, content)
}

fn responses_with(description: &str, content: Map<String, Value>) -> Value {
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        json!({
            "description": description,
            "headers": HEADERS.map(|(name, ..)| (name, json!({ "$ref": format!("#/components/headers/{name}") })))
                .into_iter().filter(|(name, _)| *name != RETRY_AFTER).collect::<std::collections::BTreeMap<_, _>>(),
            "content": content,
        }),
    );
    for (status, name, _) in ERRORS {
        responses.insert(status.to_owned(), json!({ "$ref": format!("#/components/responses/{name}") }));
    }
    Value::Object(responses)
}

/// One entry for each form that the outcome can have.
fn whole_content(output: &DataType, reference: &Value) -> Map<String, Value> {
    let entry = |media_type: &str| (media_type.to_owned(), json!({ "schema": schema_in(media_type, reference) }));
    offers(output).into_iter().map(|form| entry(form.media_type())).collect()
}

/// The ways to write a stream. OpenAPI 3.1 has no word for the items of one, so that they stand in an extension beside what
/// a stream is.
fn stream_content(item: &Value) -> Map<String, Value> {
    let entry = |form: StreamForm| {
        let whole = match form {
            StreamForm::Envelopes => binary(),
            StreamForm::Lines => json!({ "type": "string" }),
            StreamForm::Events => event(item),
        };
        (form.media_type().to_owned(), json!({ "schema": whole, "x-item-schema": item }))
    };
    STREAM_FORMS.into_iter().map(entry).collect()
}

/// An event as those who read them take it: each of them is described, not the stream.
fn event(item: &Value) -> Value {
    let end = json!({ "type": "object", "required": ["items"], "properties": { "items": { "type": "integer" } } });
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    json!({
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {
                "type": "string",
                "description": "None for an item; `end` for the end, `error` for an end with a problem, before it `timeline` \
                                where `x-callboard-explain` asks for it.",
            },
            "id": { "type": "string", "description": "The place of an item in the stream, from 0." },
            "data": {
                "type": "string",
                "contentMediaType": Format::Json.media_type(),
                "contentSchema": { "anyOf": [item, end, reference("Problem"), reference("Timeline")] },
                "description": "The item; of `end` the number of items, of `error` the problem document, of `timeline` where the \
                                request's time went.",
            },
        },
    })
}

const RETRY_AFTER: &str = "retry-after";

/// Every error of a user route: status, component, and when it happens.
///
/// There is no 405: that is for other methods, which are other operations. What the route's own code may choose for its
/// failures is told as what it is, a range.
const ERRORS: [(&str, &str, &str); 13] = [
    ("400", "BadRequest", "The body is malformed or exceeds a decoder's limit, or a header cannot be read."),
    ("404", "NotFound", "No such route."),
    ("406", "NotAcceptable", "Nothing that `accept` allows can be sent."),
    ("408", "BodyStalled", "The body stopped coming."),
    ("413", "BodyTooLarge", "The body exceeds the limit."),
    ("415", "UnsupportedMediaType", "The body's media type or encoding is not understood here."),
    ("422", "SchemaMismatch", "The body is well-formed and not what the route takes."),
    ("429", "Overloaded", "A bound was reached and nothing was started; `retry-after` says when to come again."),
    ("500", "Failed", "User code failed, its worker died, or the framework has a defect; `kind` tells which."),
    ("503", "Unavailable", "The stage is not ready or has given up, or the node drains."),
    ("504", "DeadlineExceeded", "The deadline passed before the outcome was there."),
    ("4XX", "Chosen", "A status that the route's own code chose for its failure."),
    ("5XX", "Chosen", "A status that the route's own code chose for its failure."),
];

/// The problem documents of all errors.
pub(super) fn error_responses() -> Map<String, Value> {
    let response = |(_, name, description): (&str, &str, &str)| {
        let mut response = problem_response(description);
        if name == "Overloaded" {
            response["headers"] = json!({ RETRY_AFTER: { "$ref": format!("#/components/headers/{RETRY_AFTER}") } });
        }
        (name.to_owned(), response)
    };
    ERRORS.into_iter().map(response).collect()
}

/// A response that is a problem document.
pub(super) fn problem_response(description: &str) -> Value {
    json!({
        "description": description,
        "content": { PROBLEM_JSON: { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}

const HEADERS: [(&str, &str); 4] = [
    ("x-request-id", "The request's id: the client's own or a new one."),
    ("server-timing", "Milliseconds in the queue, in the batch, and in user code; of an error also in total."),
    (
        "x-callboard-timeline",
        "The request's stages, batches and times as JSON, where `x-callboard-explain` asks for it.",
    ),
    (RETRY_AFTER, "Seconds until a retry may fit."),
];

pub(super) fn headers() -> Value {
    let header = |(name, description): (&str, &str)| {
        let kind = if name == RETRY_AFTER { "integer" } else { "string" };
        (name.to_owned(), json!({ "description": description, "schema": { "type": kind } }))
    };
    Value::Object(HEADERS.into_iter().map(header).collect())
}

/// Component, header, description.
const PARAMETERS: [(&str, &str, &str); 5] = [
    ("Timeout", "x-request-timeout-ms", "How long the answer is of use; more than an hour counts as an hour."),
    (
        "GrpcTimeout",
        "grpc-timeout",
        "The same in gRPC's words: digits, and `H`, `M`, `S`, `m`, `u` or `n`. Of two the smaller one counts.",
    ),
    ("Priority", "x-request-priority", "The class of the queues in which the request waits."),
    ("Explain", "x-callboard-explain", "Whether the answer tells where its time went."),
    (
        "RequestId",
        "x-request-id",
        "An id of the client's own: visible ASCII, at most 128 characters; others are replaced.",
    ),
];

pub(super) fn parameters() -> Value {
    let parameter = |(component, name, description): (&str, &str, &str)| {
        let schema = match component {
            "Timeout" => json!({ "type": "integer", "minimum": 1 }),
            "GrpcTimeout" => {
                json!({ "type": "string", "pattern": "^(?=[0-9]*[1-9])[0-9]{1,8}[HMSmun]$" })
            }
            "Priority" => json!({ "type": "string", "enum": ["high", "normal", "low"], "default": "normal" }),
            "Explain" => json!({ "type": "string", "enum": ["0", "1"], "default": "0" }),
            // Whatever it is, it is taken: what is no id is replaced.
            _ => json!({ "type": "string" }),
        };
        let object =
            json!({ "name": name, "in": "header", "required": false, "description": description, "schema": schema });
        (component.to_owned(), object)
    };
    Value::Object(PARAMETERS.into_iter().map(parameter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_differ_in_punctuation_get_ids_of_their_own() {
        let mut ids = OperationIds::default();
        let made = ["/na-me", "/na_me", "/na_me_2", "/na.me"].map(|route| ids.next(route));
        assert_eq!(made, ["post_na_me", "post_na_me_2", "post_na_me_2_2", "post_na_me_3"]);
    }
}
