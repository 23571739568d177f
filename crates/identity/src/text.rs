//! Texts for people and for files: hexadecimal digits, quoted input of others, an error with its sources.

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

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits.len().is_multiple_of(2).then_some(())?;
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
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

    #[test]
    fn hexadecimal_digits_round_trip_and_other_text_is_refused() {
        assert_eq!(unhex(&hex(&[0, 1, 0xab, 0xff])), Some(vec![0, 1, 0xab, 0xff]));
        assert_eq!(unhex(""), Some(Vec::new()));
        for wrong in ["0", "0g", "é", "+1", "0x"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
