//! One route as an OpenAPI operation, and the shared parts of operations.
//!
//! People and generators of clients read the document. One form of body and response, JSON, serves both: several forms
//! would be a union of types in every language. An extension (`x-callboard-media-types`) names the other forms. The
//! document for people has forms with files as well, because its page has a button for each.

use std::collections::HashSet;

use callboard_codec::{DataType, Format, MediaType};
use callboard_core::edge::{RequestPlace, Route};
use serde_json::{Map, Value, json};

use super::Audience;
use super::plain::plain;
use super::sample::sample;
use super::schema::Components;
use crate::error::PROBLEM_JSON;
use crate::request::arguments::arguments;
use crate::request::head::{MAX_SESSION_BYTES, X_CALLBOARD_SESSION};
use crate::request::media::{MULTIPART, URL_ENCODED, accepted, is_file};
use crate::respond::stream::StreamForm;
use crate::respond::{ReplyForm, offers};

/// The methods of a route, in lower case.
pub(super) fn methods_of(route: &Route) -> Vec<String> {
    route.methods().map(str::to_ascii_lowercase).collect()
}

/// One method of a route.
pub(super) fn for_route(
    route: &Route,
    method: &str,
    operation_id: String,
    audience: Audience,
    components: &mut Components,
) -> Value {
    let mut operation = json!({
        "tags": ["routes"],
        "operationId": operation_id,
        "summary": match route.summary() {
            "" => format!("Calls `{}`", route.name()),
            summary => summary.to_owned(),
        },
        "parameters": parameters_of(route, audience),
        "requestBody": request_body(route, audience, components),
        "responses": responses(route, audience, components),
    });
    if method == "get" {
        operation.as_object_mut().map(|operation| operation.remove("requestBody"));
    }
    operation
}

/// The parameters of all routes, and what this one reads of a request beside its body. A person who tries a route has
/// no session.
fn parameters_of(route: &Route, audience: Audience) -> Vec<Value> {
    let arguments = route.request_arguments();
    let own = arguments.iter().map(|argument| {
        let mut schema = argument.data_type.schema().clone();
        plain(&mut schema);
        let mut parameter = parameter(argument.place, &argument.name, argument.is_required, schema);
        if argument.place == RequestPlace::Query && argument.data_type.schema()["type"] == "array" {
            parameter["style"] = json!("form");
            parameter["explode"] = json!(false);
        }
        parameter
    });
    let (headers, query) = route.request_fields().map_or((&[][..], &[][..]), |fields| (&fields.headers, &fields.query));
    let headers = headers.iter().filter(|name| ***name != *"cookie").map(|name| (RequestPlace::Header, &**name));
    let listed = headers.chain(route.path_parameters().map(|name| (RequestPlace::Path, name)));
    let listed = listed.chain(query.iter().map(|name| (RequestPlace::Query, &**name)));
    let is_typed = |place, name: &str| arguments.iter().any(|typed| typed.place == place && typed.name == name);
    let untyped = listed.filter(|(place, name)| !is_typed(*place, name));
    let untyped =
        untyped.map(|(place, name)| parameter(place, name, place == RequestPlace::Path, json!({ "type": "string" })));
    let is_read = |name: &str| route.request_fields().is_some_and(|fields| fields.has_header(name));
    let is_of_use = |name: &str| audience == Audience::Programs || name != "Session";
    let shared = PARAMETERS.into_iter().filter(|(name, header, _)| !is_read(header) && is_of_use(name));
    let shared = shared.map(|(name, ..)| json!({ "$ref": format!("#/components/parameters/{name}") }));
    own.chain(untyped).chain(shared).collect()
}

fn parameter(place: RequestPlace, name: &str, is_required: bool, schema: Value) -> Value {
    json!({ "name": name, "in": place.as_str(), "required": is_required, "schema": schema })
}

/// The `POST` that calls any route as a function.
pub(super) fn for_calls(components: &mut Components) -> Value {
    let reference = components.insert("FunctionCall", function_call());
    let formats = arguments().formats().into_iter().map(Format::media_type);
    let also = others(formats.chain([MULTIPART, URL_ENCODED, StreamForm::Envelopes.media_type()]));
    let name = json!({
        "name": "name", "in": "path", "required": true, "schema": { "type": "string" },
        "description": "A route, without its first `/`.",
    });
    let mut parameters = vec![name];
    parameters.extend(PARAMETERS.map(|(name, ..)| json!({ "$ref": format!("#/components/parameters/{name}") })));
    // The output of any route.
    let outcome = content_of(&json!({}), offers(&DataType::value()).into_iter().map(ReplyForm::media_type));
    json!({
        "tags": ["routes"],
        "operationId": "call",
        "summary": "Calls a route as a function, with positional and keyword arguments",
        "parameters": parameters,
        "requestBody": {
            "required": true,
            "content": {
                JSON: { "schema": reference, "example": { "args": [], "kwargs": {} }, ALSO: also },
            },
        },
        "responses": responses_with(200, "What the function returns.", outcome),
    })
}

/// The schema of the arguments of a call.
fn function_call() -> Value {
    json!({
        "type": "object",
        "description": "The arguments of a function: positional ones, and keyword ones by their names.",
        "properties": {
            "args": { "type": "array", "items": {} },
            "kwargs": { "type": "object", "additionalProperties": {} },
        },
        "additionalProperties": false,
    })
}

/// The ids of one document: generators of clients make functions of them, so each must be unique.
#[derive(Debug, Default)]
pub(super) struct OperationIds(HashSet<String>);

impl OperationIds {
    /// `/digits/v2` as `post_digits_v2`, with a number if another route has that id.
    pub(super) fn next(&mut self, method: &str, route: &str) -> String {
        let id = format!("{method}{}", route.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        let mut candidates = std::iter::once(id.clone()).chain((2..).map(|number| format!("{id}_{number}")));
        let free = candidates.find(|candidate| !self.0.contains(candidate)).expect("there is always a higher number");
        self.0.insert(free.clone());
        free
    }
}

fn request_body(route: &Route, audience: Audience, components: &mut Components) -> Value {
    let input = route.input();
    let reference = components.insert(input.name(), input.schema().clone());
    let mut content = content_of(&reference, accepted(input).into_iter());
    if let Some(example) = example_of(route) {
        content[JSON]["example"] = example;
    }
    let has_forms = audience == Audience::People;
    if let Some(form) = has_forms.then(|| form_schema(input, components)).flatten() {
        content.insert(MULTIPART.to_owned(), json!({ "schema": form }));
    }
    json!({ "required": input.default_json().is_none(), "content": content })
}

/// JSON of this schema, and the names of the other forms that it may have.
fn content_of<'a>(schema: &Value, media_types: impl Iterator<Item = &'a str>) -> Map<String, Value> {
    let mut content = json!({ "schema": schema });
    let also = others(media_types);
    if !also.is_empty() {
        content[ALSO] = json!(also);
    }
    Map::from_iter([(JSON.to_owned(), content)])
}

fn others<'a>(media_types: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    media_types.filter(|media_type| *media_type != JSON).collect()
}

const JSON: &str = Format::Json.media_type();

/// Next to a content in JSON: the other media types of the same value.
const ALSO: &str = "x-callboard-media-types";

/// A form with files: the fields of the type if one of them is a file, else the raw body of a route that takes one.
/// Other forms add nothing to JSON.
fn form_schema(input: &DataType, components: &mut Components) -> Option<Value> {
    let form = with_files(input.schema()).or_else(|| {
        let field = &input.raw_body()?.field;
        Some(json!({ "type": "object", "required": [field], "properties": { field.as_str(): binary() } }))
    })?;
    Some(components.insert(&format!("{}Form", input.name()), form))
}

/// The fields of a type, with files in place of base64 texts. `None` without such fields.
fn with_files(schema: &Value) -> Option<Value> {
    let file_of = |field: &Value| match field {
        field if is_file(field) => Some(binary()),
        // A file that may be missing.
        field if field["anyOf"].as_array().is_some_and(|choices| choices.iter().any(is_file)) => Some(binary()),
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

fn binary() -> Value {
    json!({ "type": "string", "format": "binary" })
}

/// The route's own example as JSON, with bytes as base64; else one made from its schema. `None` if it would be too
/// long, or would need invented bytes.
#[must_use]
pub fn example_of(route: &Route) -> Option<Value> {
    let examples = route.examples().iter().filter(|example| example.resident_bytes() <= MAX_EXAMPLE_MEMORY);
    let examples = examples.filter_map(|example| example.encode(Format::Json).ok());
    match examples.into_iter().find(|json| json.len() <= MAX_EXAMPLE_BYTES) {
        Some(json) => serde_json::from_slice(&json).ok(),
        None if route.examples().is_empty() && route.input().raw_body().is_none() => sample(route.input().schema()),
        None => None,
    }
}

/// The longest example.
const MAX_EXAMPLE_BYTES: usize = 4 * 1024;

/// A larger value is not even encoded to measure it.
const MAX_EXAMPLE_MEMORY: usize = 64 * MAX_EXAMPLE_BYTES;

fn responses(route: &Route, audience: Audience, components: &mut Components) -> Value {
    let output = route.output();
    let reference = components.insert(output.name(), output.schema().clone());
    let (description, mut content) = if route.streams() {
        ("A stream of outcomes, as they become available; an error ends it.", stream_content(&reference, output))
    } else {
        ("The outcome.", content_of(&reference, offers(output).into_iter().map(ReplyForm::media_type)))
    };
    // The page has a choice, and shows a picture.
    let files = offers(output).into_iter().filter(|form| matches!(form, ReplyForm::File(_)));
    for form in files.filter(|_| audience == Audience::People && !route.streams()) {
        content.insert(form.media_type().to_owned(), json!({ "schema": binary() }));
    }
    let Some(declared) = route.response() else { return responses_with(200, description, content) };
    if let Some(media_type) = &declared.media_type {
        let media_type = MediaType::without_parameters(media_type);
        content = Map::from_iter([(media_type.to_owned(), json!({ "schema": text_or_bytes(output) }))]);
    }
    let description = declared.description.as_deref().unwrap_or(description);
    responses_with(declared.status.unwrap_or(200), description, content)
}

/// The schema of an output in a media type of its own.
fn text_or_bytes(output: &DataType) -> Value {
    if is_file(output.schema()) { binary() } else { json!({ "type": "string" }) }
}

fn responses_with(status: u16, description: &str, content: Map<String, Value>) -> Value {
    let mut responses = Map::new();
    responses.insert(
        status.to_string(),
        json!({
            "description": description,
            "headers": HEADERS.map(|(name, ..)| (name, json!({ "$ref": format!("#/components/headers/{name}") })))
                .into_iter().filter(|(name, _)| *name != RETRY_AFTER).collect::<std::collections::BTreeMap<_, _>>(),
            "content": content,
        }),
    );
    responses.insert("default".to_owned(), json!({ "$ref": format!("#/components/responses/{PROBLEM}") }));
    Value::Object(responses)
}

/// A stream as events. OpenAPI 3.1 cannot describe the items of a stream, so an extension does.
fn stream_content(item: &Value, output: &DataType) -> Map<String, Value> {
    let events = StreamForm::Events.media_type();
    let forms = StreamForm::all_of(output).iter().copied().map(StreamForm::media_type);
    let also: Vec<&str> = forms.filter(|other| *other != events).collect();
    Map::from_iter([(events.to_owned(), json!({ "schema": event(item), "x-item-schema": item, ALSO: also }))])
}

/// One event of a stream. The description is about the event, not the stream.
fn event(item: &Value) -> Value {
    let end = json!({ "type": "object", "required": ["items"], "properties": { "items": { "type": "integer" } } });
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    json!({
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {
                "type": "string",
                "description": "Absent for an item; `end` after the last item; `error` when the stream fails. With \
                                `x-callboard-explain`, `timeline` precedes `end` or `error`.",
            },
            "id": { "type": "string", "description": "The index of an item in the stream, from 0." },
            "data": {
                "type": "string",
                "contentMediaType": Format::Json.media_type(),
                "contentSchema": { "anyOf": [item, end, reference("Problem"), reference("Timeline")] },
                "description": "The item; with `end` the number of items, with `error` the problem document, with \
                                `timeline` where the request's time went.",
            },
        },
    })
}

const RETRY_AFTER: &str = "retry-after";

/// The response to every failed request. All operations share it, so that a client has one type for it.
const PROBLEM: &str = "Problem";

/// Every error of a user route, and when it happens: for the description of the problem document.
///
/// 405 is missing: it belongs to other methods, which are other operations.
const ERRORS: [(&str, &str); 13] = [
    ("400", "the body is malformed or exceeds a decoder's limit, or a header cannot be read"),
    ("401", "the service requires a key, and none or an invalid one was sent"),
    ("404", "there is no such route"),
    ("406", "the response has no form that `accept` allows"),
    ("408", "the body arrived too slowly"),
    ("413", "the body exceeds the limit"),
    ("415", "the body's media type or encoding is not supported here"),
    ("422", "the body is well-formed but does not fit the type of the route; `details.fields` lists where"),
    ("429", "a limit was reached and nothing was started; `retry-after` says when to retry"),
    ("500", "user code failed, its worker died, or the framework has a defect; `kind` says which"),
    ("503", "the stage is not ready or has failed for good, or the node is draining"),
    ("504", "the deadline passed before the outcome was available"),
    ("others", "a status that the route's own code chose for its failure"),
];

/// All errors as a list, for people.
pub(super) fn errors_in_words() -> String {
    let lines = ERRORS.iter().map(|(status, when)| format!("- {status}: {when}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The responses that operations share.
pub(super) fn error_responses() -> Map<String, Value> {
    let example = json!({
        "type": "urn:callboard:error:overloaded", "title": "Overloaded", "status": 429,
        "detail": "the queue of stage `model` is full", "kind": "overloaded",
        "message": "the queue of stage `model` is full", "retryable": true,
        "request_id": "9173ade7a7758bf8-0000000c",
    });
    let problem = json!({
        "description": "What went wrong (RFC 9457). The schema `Problem` lists the statuses.",
        "headers": { RETRY_AFTER: { "$ref": format!("#/components/headers/{RETRY_AFTER}") } },
        "content": { PROBLEM_JSON: { "schema": { "$ref": "#/components/schemas/Problem" }, "example": example } },
    });
    Map::from_iter([(PROBLEM.to_owned(), problem)])
}

const HEADERS: [(&str, &str); 3] = [
    ("x-request-id", "The request's id: the client's own or a new one."),
    ("server-timing", "Milliseconds in the queue, in the batch, and in user code; for an error also in total."),
    (RETRY_AFTER, "Seconds after which a retry may succeed."),
];

pub(super) fn headers() -> Value {
    let header = |(name, description): (&str, &str)| {
        let kind = if name == RETRY_AFTER { "integer" } else { "string" };
        (name.to_owned(), json!({ "description": description, "schema": { "type": kind } }))
    };
    Value::Object(HEADERS.into_iter().map(header).collect())
}

/// Component, header, description. `grpc-timeout` and `x-callboard-explain` are left out: generated clients have no use
/// for a second name and a debugging tool.
const PARAMETERS: [(&str, &str, &str); 4] = [
    ("Timeout", "x-request-timeout-ms", "How long the client waits; more than an hour counts as an hour."),
    ("Priority", "x-request-priority", "The priority of the request in queues; default: the priority of the route."),
    (
        "Session",
        X_CALLBOARD_SESSION,
        "The session of the call: calls with the same text reach the same replica while it lives.",
    ),
    (
        "RequestId",
        "x-request-id",
        "The client's own id: visible ASCII, at most 128 characters; an invalid one is replaced.",
    ),
];

pub(super) fn parameters() -> Value {
    let parameter = |(component, name, description): (&str, &str, &str)| {
        let schema = match component {
            "Timeout" => json!({ "type": "integer", "minimum": 1 }),
            "Priority" => json!({ "type": "string", "enum": ["high", "normal", "low"] }),
            "Session" => json!({ "type": "string", "minLength": 1, "maxLength": MAX_SESSION_BYTES }),
            // Any text is accepted: an invalid id is replaced.
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
    fn routes_that_differ_in_punctuation_get_different_ids() {
        let mut ids = OperationIds::default();
        let names = ["/na-me", "/na_me", "/na_me_2", "/na.me"].map(|route| ids.next("post", route));
        assert_eq!(names, ["post_na_me", "post_na_me_2", "post_na_me_2_2", "post_na_me_3"]);
    }
}
