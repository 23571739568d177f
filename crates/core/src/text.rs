//! The length limits of texts in errors and log lines: users' code and users' inputs are of any length.

/// The longest message and trace of an error, and the longest text in a line of the log, in characters. A longer text
/// is cut, with a note: `… (12000 more characters)`.
pub const MAX_ERROR_CHARS: usize = 8_000;

/// The longest name of an error's type, in characters.
pub(crate) const MAX_ERROR_TYPE_CHARS: usize = 256;

/// The most bytes of that note.
const ROOM_FOR_THE_REST: usize = 48;

/// Cuts a text that is longer than [`MAX_ERROR_CHARS`] at the end of a character, and adds a note about the rest.
///
/// ```
/// use callboard_core::edge::{MAX_ERROR_CHARS, limit_error_text};
///
/// let text = limit_error_text("é".repeat(20_000));
/// assert!(text.chars().count() <= MAX_ERROR_CHARS);
/// assert!(text.ends_with("é… (12048 more characters)"));
/// assert_eq!(limit_error_text(text.clone()), text);
/// ```
#[must_use]
pub fn limit_error_text(text: String) -> String {
    limit(text, MAX_ERROR_CHARS)
}

/// Cuts a text to this many characters. The end of a cut text says how many are missing.
#[must_use]
pub fn limit(text: String, max_chars: usize) -> String {
    // A character has a byte at least, so nearly every text ends here.
    if text.len() <= max_chars { text } else { cut(text, max_chars) }
}

#[cold]
fn cut(mut text: String, max_chars: usize) -> String {
    let chars = text.chars().count();
    if chars <= max_chars {
        return text;
    }
    let kept_chars = max_chars.saturating_sub(ROOM_FOR_THE_REST);
    let end = text.char_indices().nth(kept_chars).map_or(text.len(), |(end, _)| end);
    text.truncate(end);
    text.push_str(&format!("… ({} more characters)", chars - kept_chars));
    text
}
