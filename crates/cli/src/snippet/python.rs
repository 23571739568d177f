//! A program for Python's standard library.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Body, Example, KEY_VARIABLE, NOTHING, accept};

const IMPORTS: &str = "import json\nimport urllib.request\n";

const CALL: &str = r#"

def call(route, body, content_type):
    headers = {"content-type": content_type, "accept": "application/json"}
    request = urllib.request.Request(BASE + route, data=body, headers=headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)
"#;

const STREAM: &str = r#"

def stream(route, body, content_type):
    headers = {"content-type": content_type, "accept": "application/x-ndjson"}
    request = urllib.request.Request(BASE + route, data=body, headers=headers)
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            yield json.loads(line)
"#;

/// The helpers that the calls need, then a call for each route.
pub(super) fn program(examples: &[Example], base: &str, needs_key: bool) -> String {
    debug_assert!(CALL.contains(accept(false)) && STREAM.contains(accept(true)));
    let mut program = if needs_key {
        format!("# {KEY_VARIABLE} is one of the server's keys.\n\nimport json\nimport os\nimport urllib.request\n")
    } else {
        IMPORTS.to_owned()
    };
    // Writing to a string cannot fail.
    let _ = write!(program, "\nBASE = {}\n", text(base));
    for (streams, helper) in [(false, CALL), (true, STREAM)] {
        if examples.iter().any(|example| example.streams == streams && example.body != Body::Nothing) {
            let key = format!(", \"x-api-key\": os.environ[\"{KEY_VARIABLE}\"]}}\n");
            program.push_str(&if needs_key { helper.replace("}\n", &key) } else { helper.to_owned() });
        }
    }
    program.push('\n');
    for example in examples {
        let _ = write!(program, "\n{}", called(example));
    }
    program
}

fn called(example: &Example) -> String {
    let route = text(&example.route);
    let (before, indent, body, media_type) = match &example.body {
        Body::Nothing => return format!("# {} {NOTHING}\n", example.route),
        Body::Json(json) => (String::new(), "", format!("json.dumps({}).encode()", literal(json)), "application/json"),
        Body::File { path, media_type, .. } => (
            format!("with open({}, \"rb\") as file:\n", text(path)),
            "    ",
            "file.read()".to_owned(),
            media_type.as_str(),
        ),
    };
    let arguments = format!("{route}, {body}, {}", text(media_type));
    let print = if example.streams {
        format!("{indent}for item in stream({arguments}):\n{indent}    print(item)\n")
    } else {
        format!("{indent}print(call({arguments}))\n")
    };
    format!("# {}\n{before}{print}", example.title())
}

/// A literal of the same value.
pub(super) fn literal(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => text(string),
        Value::Array(items) => format!("[{}]", list(items.iter().map(literal).collect())),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{}: {}", text(name), literal(value));
            format!("{{{}}}", list(members.iter().map(member).collect()))
        }
    }
}

/// A string literal: Python reads the escapes of JSON.
pub(super) fn text(text: &str) -> String {
    Value::from(text).to_string()
}
