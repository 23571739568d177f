//! Programs that call the routes of a node, made from each route's own example. They run as they are printed. Pure.
//!
//! A route without a printable example gets a comment instead of a call, so that the rest still runs. No program has an
//! API key in it: where the node needs one, the program reads the variable [`KEY_VARIABLE`].

mod curl;
mod grpc;
mod mcp;
mod openai;
mod python;
mod rust;

use std::path::{Path, PathBuf};

use callboard_core::edge::Route;
use callboard_http::{example_of, media_type_of};
use callboard_mcp::McpProtocol;
use serde_json::Value;

/// The language of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// Lines for a POSIX shell with curl.
    Curl,
    /// A program for Python 3.8 or newer and its standard library.
    Python,
    /// A program with `callboard::http_client`.
    Rust,
    /// A program for Python with OpenAI's library, which calls the routes with a task.
    OpenAi,
    /// A program for Python with grpcio, and with Triton's client for routes of arrays.
    Grpc,
    /// A program for Python with the library of the Model Context Protocol, which calls the tools.
    Mcp,
}

impl Language {
    /// A line for people, and an empty one.
    pub(crate) fn comment(self, words: &str) -> String {
        let mark = if self == Self::Rust { "//" } else { "#" };
        format!("{mark} {words}\n\n")
    }
}

/// What programs are made from.
pub(crate) struct ServedRoutes<'a> {
    /// Each with a file that fits as its body, if it has one.
    pub(crate) routes: &'a [(&'a Route, Option<PathBuf>)],
    /// Such as `http://localhost:8000`.
    pub(crate) base: &'a str,
    /// Whether a program sends an API key.
    pub(crate) needs_key: bool,
    /// Whether the code of a program in Rust has the settings of the routes, not a file or code in Python.
    pub(crate) is_own_program: bool,
    /// The protocols that the node does not answer.
    pub(crate) doors_off: &'a [String],
    /// Which routes are tools.
    pub(crate) tools: &'a McpProtocol,
    /// The part of the configuration of a desktop host that starts the same app.
    pub(crate) desktop_host: &'a Value,
}

impl ServedRoutes<'_> {
    fn examples(&self) -> Vec<Example> {
        self.routes.iter().map(|(route, file)| Example::new(route, file.as_deref())).collect()
    }

    /// The comment in place of all calls, if the node does not answer this protocol.
    fn refusal(&self, door: &str) -> Option<String> {
        let is_off = self.doors_off.iter().any(|off| off == door);
        is_off.then(|| format!("# This node does not answer {door}: the setting http.doors_off names it.\n"))
    }

    /// What the program reads the API key from, and the comment about it.
    fn key(&self) -> (Option<String>, String) {
        let variable = self.needs_key.then(|| format!("os.environ[\"{KEY_VARIABLE}\"]"));
        let note =
            if self.needs_key { format!("# {KEY_VARIABLE} is one of the server's keys.\n") } else { String::new() };
        (variable, note)
    }
}

/// One program that calls all routes that the language has words for. The others get a comment that names the setting
/// which they need.
pub(crate) fn snippet(language: Language, served: &ServedRoutes<'_>) -> String {
    match language {
        Language::Curl => curl::program(&served.examples(), served.base, served.needs_key),
        Language::Python => python::program(&served.examples(), served.base, served.needs_key),
        Language::Rust => rust::program(&served.examples(), served.base, served.needs_key),
        Language::OpenAi => openai::program(served),
        Language::Grpc => grpc::program(served),
        Language::Mcp => mcp::program(served),
    }
}

/// The variable with the API key. Not `CALLBOARD_*`: those are settings of the server.
const KEY_VARIABLE: &str = "API_KEY";

/// A route, and the request that a program sends to it.
#[derive(Clone, Debug, PartialEq)]
struct Example {
    route: String,
    /// One line, or empty.
    summary: String,
    streams: bool,
    body: Body,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq)]
enum Body {
    Json(Value),
    /// The content of a file; as `field` of a form if the route takes raw bodies.
    File {
        path: String,
        media_type: String,
        field: Option<String>,
    },
    /// There is no printable example.
    Nothing,
}

impl Example {
    fn new(route: &Route, file: Option<&Path>) -> Self {
        let body = match (file, route.input().raw_body()) {
            // The programs send a `POST`.
            _ if !route.has_method("POST") => Body::Nothing,
            (Some(file), Some(raw)) => {
                let media_type = media_type_of(file);
                let is_accepted = raw.media_types.iter().any(|accepted| {
                    let kind = accepted.strip_suffix('*').filter(|kind| kind.ends_with('/'));
                    kind.map_or(accepted == media_type, |kind| media_type.starts_with(kind))
                });
                let fallback = raw.media_types.first().filter(|first| !first.contains('*'));
                let media_type = if is_accepted { media_type } else { fallback.map_or(media_type, String::as_str) };
                Body::File {
                    path: file.display().to_string(),
                    media_type: media_type.to_owned(),
                    field: Some(raw.field.clone()),
                }
            }
            (Some(file), None) => {
                Body::File { path: file.display().to_string(), media_type: media_type_of(file).to_owned(), field: None }
            }
            (None, _) => example_of(route).map_or(Body::Nothing, Body::Json),
        };
        let summary = route.summary().split_whitespace().collect::<Vec<_>>().join(" ");
        Self { route: route.name().to_owned(), summary, streams: route.streams(), body }
    }

    /// The comment above a call.
    fn title(&self) -> String {
        let colon = if self.summary.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", self.route, self.summary)
    }
}

/// The schema that a schema of only a reference means.
fn resolved(schema: &Value) -> &Value {
    let target = schema["$ref"].as_str().and_then(|target| schema.pointer(target.strip_prefix('#')?));
    target.unwrap_or(schema)
}

/// The comment in place of a call.
const NOTHING: &str = "has no example that can be shown here";

/// The media type that a program asks for and can print.
fn accept(streams: bool) -> &'static str {
    if streams { "application/x-ndjson" } else { "application/json" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn examples() -> Vec<Example> {
        let example = |route: &str, streams, body| Example {
            route: route.to_owned(),
            summary: "It's \"one\"".to_owned(),
            streams,
            body,
        };
        let file = |field: Option<&str>| Body::File {
            path: "a dir/it's.png".to_owned(),
            media_type: "image/png".to_owned(),
            field: field.map(str::to_owned),
        };
        vec![
            example("/json", false, Body::Json(json!({ "say": "it's \"#1\"\n\\", "on": [true, null, 1.5] }))),
            example("/stream", true, Body::Json(json!(3))),
            example("/file", false, file(Some("image"))),
            example("/bare", false, file(None)),
            example("/none", false, Body::Nothing),
        ]
    }

    #[test]
    fn curl_lines_survive_a_shell() {
        let expected = r##"# /json: It's "one"
curl http://h:1/json -H 'content-type: application/json' -d '{"say":"it'\''s \"#1\"\n\\","on":[true,null,1.5]}'

# /stream: It's "one"
curl http://h:1/stream -N -H 'accept: application/x-ndjson' -H 'content-type: application/json' -d 3

# /file: It's "one"
curl http://h:1/file -F image=@'a dir/it'\''s.png'

# /bare: It's "one"
curl http://h:1/bare -H 'content-type: image/png' --data-binary @'a dir/it'\''s.png'

# /none has no example that can be shown here
"##;
        assert_eq!(curl::program(&examples(), "http://h:1", false), expected);
    }

    #[test]
    fn every_program_reads_a_needed_key_from_its_variable() {
        let (curl, python) = (curl::program(&examples(), "x", true), python::program(&examples(), "x", true));
        assert_eq!(curl.matches(" -H \"x-api-key: $API_KEY\"\n").count(), 4, "{curl}");
        assert_eq!(python.matches(", \"x-api-key\": os.environ[\"API_KEY\"]}\n").count(), 2, "{python}");
        assert!(python.contains("import json\nimport os\nimport urllib"), "{python}");
        let rust = rust::program(&examples(), "x", true);
        let expected = "    let mut call = Call::post(route, media_type, body);
    call.headers.push((\"x-api-key\".to_owned(), std::env::var(\"API_KEY\")?));
    let request = call.prepare(origin, Protocol::Http1)?;\n";
        assert!(rust.contains(expected), "{rust}");
    }

    #[test]
    fn python_has_its_own_literals_and_only_the_helpers_it_uses() {
        let program = python::program(&examples(), "http://h:1", false);
        assert!(program.contains(r##"{"say": "it's \"#1\"\n\\", "on": [True, None, 1.5]}"##), "{program}");
        assert!(program.contains("def stream("), "{program}");
        assert!(!python::program(&examples()[2..3], "x", false).contains("def stream("));
    }

    #[test]
    fn rust_texts_are_quoted() {
        let program = rust::program(&examples(), "http://h:1", false);
        assert!(program.contains(r###"r##"{"say":"it's \"#1\"\n\\","on":[true,null,1.5]}"##"###), "{program}");
        assert!(program.contains(r#"std::fs::read("a dir/it's.png")?"#), "{program}");
    }
}
