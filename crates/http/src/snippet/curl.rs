//! A `curl` line per route that works when it is pasted into a shell, for pages, documents and terminals alike.

use std::path::Path;

use callboard_core::edge::Route;

use super::{Body, Example, KEY_VARIABLE, NOTHING, accept};
use crate::describe::openapi::example_of;

/// Longer lines are not pasted by anybody.
const MAX_EXAMPLE_BYTES: usize = 400;

/// The line that calls `route` at `base`, such as `http://localhost:8000`; `file` is one that fits as its body. With `needs_key` it
/// shows the key in the variable `API_KEY`.
///
/// A route for raw bodies is called with a file, named `FILE` where there is none to name. Others are called with the
/// example of the OpenAPI document; there is no line where that has none, or one too long for a person to paste.
#[must_use]
pub fn curl(route: &Route, base: &str, file: Option<&Path>, needs_key: bool) -> Option<String> {
    // A stream is shown as it comes.
    let url = format!("{}{base}{}", if route.streams() { "-N " } else { "" }, route.name());
    let file = file.map(|file| quoted(&file.display().to_string()));
    let line = match (route.input().raw_body(), file) {
        (Some(raw), file) => {
            Some(format!("curl -F {}=@{} {url}", quoted(&raw.field), file.unwrap_or_else(|| "FILE".to_owned())))
        }
        (None, Some(file)) => Some(format!("curl {url} -H 'content-type: application/json' -d @{file}")),
        (None, None) => {
            let json = example_of(route)?.to_string();
            (json.len() <= MAX_EXAMPLE_BYTES)
                .then(|| format!("curl {url} -H 'content-type: application/json' -d {}", quoted(&json)))
        }
    };
    line.map(|line| line + &key(needs_key))
}

/// What a line has behind it where a key is needed.
fn key(needs_key: bool) -> String {
    if needs_key { format!(" -H \"x-api-key: ${KEY_VARIABLE}\"") } else { String::new() }
}

/// A line for each route, with its title above it.
pub(super) fn script(examples: &[Example], base: &str, needs_key: bool) -> String {
    let lines: Vec<String> = examples.iter().map(|example| line(example, base, &key(needs_key))).collect();
    let note = if needs_key { format!("# {KEY_VARIABLE} is one of the server's keys.\n\n") } else { String::new() };
    note + &lines.join("\n")
}

fn line(example: &Example, base: &str, key: &str) -> String {
    let body = match &example.body {
        Body::Nothing => return format!("# {} {NOTHING}\n", example.route),
        Body::Json(json) => format!("-H 'content-type: application/json' -d {}", quoted(&json.to_string())),
        Body::File { path, field: Some(field), .. } => format!("-F {}=@{}", quoted(field), quoted(path)),
        Body::File { path, media_type, field: None } => {
            format!("-H 'content-type: {media_type}' --data-binary @{}", quoted(path))
        }
    };
    let stream = if example.streams { format!("-N -H 'accept: {}' ", accept(true)) } else { String::new() };
    format!("# {}\ncurl {base}{} {stream}{body}{key}\n", example.title(), quoted(&example.route))
}

/// As one word of a POSIX shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_a_shell() {
        assert_eq!(quoted(r#"{"say":"it's"}"#), r#"'{"say":"it'\''s"}'"#);
        assert_eq!(quoted("a dir/seven.png"), "'a dir/seven.png'");
        assert_eq!(quoted("digits/seven.png"), "digits/seven.png");
    }
}
