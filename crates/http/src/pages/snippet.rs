//! A `curl` line per route that works when it is pasted into a shell.

use callboard_core::Route;

use crate::openapi::example_of;

/// The line for `route` at `base`, such as `http://localhost:8000`.
pub(super) fn curl(route: &Route, base: &str) -> String {
    let url = format!("{base}{}", route.name());
    match (example_of(route), route.input().raw_body()) {
        (None, Some(raw)) => format!("curl -F {}=@FILE {url}", raw.field),
        (example, _) => {
            let json = example.unwrap_or_default().to_string();
            format!("curl {url} -H 'content-type: application/json' -d {}", quoted(&json))
        }
    }
}

/// As one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_a_shell() {
        assert_eq!(quoted(r#"{"say":"it's"}"#), r#"'{"say":"it'\''s"}'"#);
    }
}
