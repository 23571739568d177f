//! Text from outside where people read it: the characters that are not shown as they are.

/// Whether a character would end a line, move a cursor, or change the place or direction of other text: controls (C0,
/// DEL, C1), separators of lines and paragraphs, marks, embeddings, overrides and isolates of direction (Unicode
/// Standard Annex 9), and the byte-order mark, which is not seen.
#[must_use]
pub fn is_active(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}
