//! Texts for people: quoted input of others, an error with its sources.

use std::error::Error;

/// The longest quotation, in characters.
const MAX_QUOTED: usize = 64;

/// Quotes text that another process wrote, for a log line or a terminal: escaped and cut.
#[must_use]
pub fn quoted(text: &str) -> String {
    let beginning: String = text.chars().take(MAX_QUOTED).collect();
    format!("{beginning:?}{}", if beginning.len() < text.len() { "…" } else { "" })
}

/// An error and its sources, on one line.
#[must_use]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_short_and_has_no_control_characters() {
        assert_eq!(quoted("left"), "\"left\"");
        assert_eq!(quoted("a\u{1b}[2J\nb"), "\"a\\u{1b}[2J\\nb\"");
        let long = quoted(&"\u{7}".repeat(65_000));
        assert!(long.ends_with("\"…") && long.len() < 500, "{long}");
        assert!(quoted(&"x".repeat(64)).ends_with("x\""));
    }
}
