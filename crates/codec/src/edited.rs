//! The text of a file that people edit.

use std::borrow::Cow;

/// The text without the byte order mark and the carriage returns that some editors write.
///
/// Every file that an operator writes goes through here, so that all of them are read alike.
///
/// ```
/// assert_eq!(callboard_codec::edited_text("\u{feff}one\r\ntwo\r\n"), "one\ntwo\n");
/// ```
#[must_use]
pub fn edited_text(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains("\r\n") { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) }
}
