//! The `content-disposition` of a part of a form: its name, and whether it has a file name.
//!
//! Names of parameters have no case. A value is quoted, with `\"` for a quote, or a word. A file name in another
//! character set comes as `filename*` (RFC 5987) alone; RFC 7578 forbids that, and mail libraries write it.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_DISPOSITION;

/// The `content-disposition` of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Disposition {
    pub(super) name: Option<String>,
    pub(super) has_file_name: bool,
    /// The name of the file is empty: a browser writes so where no file was chosen.
    pub(super) names_no_file: bool,
}

impl Disposition {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let header = headers.get(CONTENT_DISPOSITION).and_then(|value| str::from_utf8(value.as_bytes()).ok());
        Self::parse(header.unwrap_or_default())
    }

    fn parse(header: &str) -> Self {
        let mut disposition = Self::default();
        let (_, mut rest) = header.split_once(';').unwrap_or_default();
        while let Some((name, after)) = rest.split_once('=') {
            let (value, after) = value(after.trim_start());
            match name.trim_matches([' ', '\t', ';']).to_ascii_lowercase().as_str() {
                "name" => disposition.name = disposition.name.or(Some(value)),
                "filename" | "filename*" => {
                    disposition.has_file_name = true;
                    disposition.names_no_file = value.is_empty();
                }
                _ => {}
            }
            rest = after;
        }
        disposition
    }
}

/// The first value of a text, and the text after it.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::with_capacity(quoted.len());
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &quoted[at + 1..]),
            // Browsers on Windows once wrote paths: only a quote is escaped.
            '\\' if chars.next_if(|(_, next)| *next == '"').is_some() => value.push('"'),
            char => value.push(char),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_every_spelling() {
        for (header, name, has_file_name) in [
            ("form-data; name=\"a\"", Some("a"), false),
            ("FORM-DATA; NAME=\"a\"; FILENAME=\"b.txt\"", Some("a"), true),
            ("form-data; filename*=utf-8''%D1%84.png; name=a", Some("a"), true),
            ("form-data; filename=\"name=x; name=y\"; name = \"a\"", Some("a"), true),
            ("form-data; name=\"a\\\"b;c\\d\"", Some("a\"b;c\\d"), false),
            ("form-data; name=\"\u{e4}\"", Some("\u{e4}"), false),
            ("form-data; name=\"open", Some("open"), false),
            ("form-data; name=", Some(""), false),
            ("form-data; filename=\"\"", None, true),
            ("form-data; xname=a", None, false),
            ("form-data", None, false),
            ("", None, false),
        ] {
            let names_no_file = header.contains("filename=\"\"");
            let expected = Disposition { name: name.map(str::to_owned), has_file_name, names_no_file };
            assert_eq!(Disposition::parse(header), expected, "{header}");
        }
    }
}
