//! Texts that may have credentials in them, for errors and logs. Pure.

use std::borrow::Cow;

/// Stands for a part that is not shown.
const HIDDEN: &str = "…";

/// Words that name a secret.
const SECRETS: [&str; 4] = ["password", "passwd", "pwd", "secret="];

/// A text that may be an address, as errors show it. Credentials in an address are not shown: a user with a password,
/// a query, the rest of an address of another protocol than HTTP, and any text that names a password.
///
/// ```
/// use callboard_http_client::without_credentials;
///
/// assert_eq!(without_credentials("http://me:secret@host:8000/path"), "http://…@host:8000/path");
/// assert_eq!(without_credentials("http://host:8000/path"), "http://host:8000/path");
/// ```
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let shown = without_user(text);
    match shown.split_once('?') {
        Some((address, _query)) if address.contains('/') => Cow::Owned(format!("{address}?{HIDDEN}")),
        _ => shown,
    }
}

fn without_user(text: &str) -> Cow<'_, str> {
    let lowercase = text.to_ascii_lowercase();
    if SECRETS.iter().any(|word| lowercase.contains(word)) {
        return Cow::Borrowed(HIDDEN);
    }
    let (scheme, rest) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
    let is_http = |scheme: &str| ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http));
    let is_scheme = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    match scheme {
        // A part of a password, or several addresses.
        Some(scheme) if !is_scheme(scheme) => Cow::Borrowed(HIDDEN),
        Some(scheme) if !is_http(scheme) => Cow::Owned(format!("{scheme}://{HIDDEN}")),
        scheme => match rest.rsplit_once('@') {
            None => Cow::Borrowed(text),
            Some((_, host)) => {
                let before = scheme.map_or_else(String::new, |scheme| format!("{scheme}://"));
                Cow::Owned(format!("{before}{HIDDEN}@{host}"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_and_all_else_is_shown() {
        for (text, shown) in [
            ("", ""),
            ("30 seconds", "30 seconds"),
            ("localhost:8000", "localhost:8000"),
            ("which one?", "which one?"),
            ("https://host/a?key=secret", "https://host/a?…"),
            ("https://me:secret@host/a?key=secret", "https://…@host/a?…"),
            ("https://me:se?cret@host", "https://…@host"),
            ("HTTP://host", "HTTP://host"),
            ("http://me:secret@host/x", "http://…@host/x"),
            ("http://me:se@cret/@host/x", "http://…@host/x"),
            ("http://a,https://me:secret@b", "http://…@b"),
            ("me:secret@host", "…@host"),
            ("me:se://cret@host", "…"),
            ("postgres://me:secret@db/carts", "postgres://…"),
            ("postgres://me:secret", "postgres://…"),
            ("xhttp://me:secret", "xhttp://…"),
            ("host=db user=me PassWord=secret", "…"),
            ("user = me pwd = secret", "…"),
        ] {
            assert_eq!(without_credentials(text), shown, "{text}");
        }
    }
}
