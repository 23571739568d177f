//! `-F name=value` and `-F name=@path`, as curl has them: the parts of a form, and the form as a body (RFC 7578).

use std::path::{Path, PathBuf};
use std::str::FromStr;

use callboard_http::media_type_of;

/// One part, as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormPart {
    name: String,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Text(String),
    File(PathBuf),
}

impl FromStr for FormPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, content) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("expected `name=value` or `name=@path`, found `{text}`"))?;
        let content = match content.strip_prefix('@') {
            Some("") => return Err(format!("`{text}` names no file")),
            Some(path) => Content::File(PathBuf::from(path)),
            None => Content::Text(content.to_owned()),
        };
        Ok(Self { name: name.to_owned(), content })
    }
}

impl FormPart {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its text, or the path of its file.
    pub(super) fn text(&self) -> Result<&str, &Path> {
        match &self.content {
            Content::Text(text) => Ok(text),
            Content::File(path) => Err(path),
        }
    }
}

/// The form of these parts and its media type. `read` gives the content of a file.
pub(crate) fn body<E>(
    parts: &[FormPart],
    boundary: &str,
    read: impl Fn(&Path) -> Result<Vec<u8>, E>,
) -> Result<(Vec<u8>, String), E> {
    let mut body = Vec::new();
    for part in parts {
        let mut head = format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{}\"", quoted(&part.name));
        let bytes = match &part.content {
            Content::Text(text) => text.clone().into_bytes(),
            Content::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                head.push_str(&format!("; filename=\"{}\"\r\ncontent-type: {}", quoted(&name), media_type_of(path)));
                read(path)?
            }
        };
        head.push_str("\r\n\r\n");
        body.extend(head.into_bytes());
        body.extend(bytes);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").into_bytes());
    Ok((body, format!("multipart/form-data; boundary={boundary}")))
}

/// Escapes quotes and line ends as percent codes, as browsers do.
fn quoted(text: &str) -> String {
    text.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(parts: &[&str]) -> String {
        let parts: Vec<FormPart> = parts.iter().map(|part| part.parse().unwrap()).collect();
        let read = |path: &Path| Ok::<_, ()>(path.display().to_string().into_bytes());
        String::from_utf8(body(&parts, "xyz", read).unwrap().0).unwrap()
    }

    #[test]
    fn a_form_has_texts_and_files() {
        let expected = "--xyz\r\ncontent-disposition: form-data; name=\"want\"\r\n\r\na=b\r\n\
                        --xyz\r\ncontent-disposition: form-data; name=\"image\"; filename=\"seven.png\"\r\n\
                        content-type: image/png\r\n\r\ndir/seven.png\r\n--xyz--\r\n";
        assert_eq!(form(&["want=a=b", "image=@dir/seven.png"]), expected);
    }

    #[test]
    fn a_name_cannot_end_its_line() {
        assert!(form(&["a\"\r\nx: y=1"]).contains("name=\"a%22%0D%0Ax: y\"\r\n\r\n1\r\n"));
    }

    #[test]
    fn an_invalid_part_is_refused() {
        for text in ["image", "=x", "image=@"] {
            assert!(text.parse::<FormPart>().is_err(), "{text}");
        }
    }
}
