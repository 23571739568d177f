//! Lines for a shell with curl.

use callboard_http::shell_word;

use super::{Body, Example, KEY_VARIABLE, NOTHING, accept};

/// One line per route, with its title above it.
pub(super) fn program(examples: &[Example], base: &str, needs_key: bool) -> String {
    let key = if needs_key { format!(" -H \"x-api-key: ${KEY_VARIABLE}\"") } else { String::new() };
    let lines: Vec<String> = examples.iter().map(|example| line(example, base, &key)).collect();
    let note = if needs_key { format!("# {KEY_VARIABLE} is one of the server's keys.\n\n") } else { String::new() };
    note + &lines.join("\n")
}

fn line(example: &Example, base: &str, key: &str) -> String {
    let body = match &example.body {
        Body::Nothing => return format!("# {} {NOTHING}\n", example.route),
        Body::Json(json) => format!("-H 'content-type: application/json' -d {}", shell_word(&json.to_string())),
        Body::File { path, field: Some(field), .. } => format!("-F {}=@{}", shell_word(field), shell_word(path)),
        Body::File { path, media_type, field: None } => {
            format!("-H 'content-type: {media_type}' --data-binary @{}", shell_word(path))
        }
    };
    let stream = if example.streams { format!("-N -H 'accept: {}' ", accept(true)) } else { String::new() };
    format!("# {}\ncurl {base}{} {stream}{body}{key}\n", example.title(), shell_word(&example.route))
}
