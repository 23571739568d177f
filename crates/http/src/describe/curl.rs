//! A `curl` line that calls a route and works when it is pasted into a shell.

use std::path::Path;

use callboard_core::edge::Route;

use super::openapi::example_of;

/// Longer examples get no line.
const MAX_EXAMPLE_BYTES: usize = 400;

/// The line that calls `route` at `base`, such as `http://localhost:8000`. `file` is a file that fits as its body. With
/// `needs_key` the line sends the key in the variable `API_KEY`.
///
/// The line of a route for raw bodies sends a file, named `FILE` if `file` is `None`. Other lines send the example of
/// the OpenAPI document; without an example, or with one too long to paste, there is no line. Nor is there one of a route
/// with parameters in its path or with methods.
#[must_use]
pub fn curl(route: &Route, base: &str, file: Option<&Path>, needs_key: bool) -> Option<String> {
    if route.request_fields().is_some_and(|fields| fields.path || !fields.methods.is_empty()) {
        return None;
    }
    // Without a buffer, so that a stream shows as it arrives.
    let url = format!("{}{base}{}", if route.streams() { "-N " } else { "" }, route.path());
    let file = file.map(|file| shell_word(&file.display().to_string()));
    let line = match (route.input().raw_body(), file) {
        (Some(raw), file) => {
            Some(format!("curl -F {}=@{} {url}", shell_word(&raw.field), file.unwrap_or_else(|| "FILE".to_owned())))
        }
        (None, Some(file)) => Some(format!("curl {url} -H 'content-type: application/json' -d @{file}")),
        (None, None) => {
            let json = example_of(route)?.to_string();
            (json.len() <= MAX_EXAMPLE_BYTES)
                .then(|| format!("curl {url} -H 'content-type: application/json' -d {}", shell_word(&json)))
        }
    };
    line.map(|line| if needs_key { line + " -H \"x-api-key: $API_KEY\"" } else { line })
}

/// The text as one word of a POSIX shell.
#[must_use]
pub fn shell_word(text: &str) -> String {
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
        assert_eq!(shell_word(r#"{"say":"it's"}"#), r#"'{"say":"it'\''s"}'"#);
        assert_eq!(shell_word("a dir/seven.png"), "'a dir/seven.png'");
        assert_eq!(shell_word("digits/seven.png"), "digits/seven.png");
    }
}
