//! The path below which the edge is mounted in a router of somebody else (`nest_service`), for pages that name whole
//! paths.

use axum::http::Uri;

/// What the router took off the path, such as `/api`; empty where it took nothing off.
///
/// It may hold a parameter of the client's choice, and goes into lines for a shell: a path with anything but letters,
/// digits and `-._~/` counts as none.
pub(super) fn prefix<'a>(original: &'a Uri, uri: &Uri) -> &'a str {
    let (original, path) = (original.path(), uri.path());
    // The path of the mount itself is asked with a slash behind it or without.
    let prefix = original.strip_suffix(path).or_else(|| (path == "/").then_some(original)).unwrap_or_default();
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte));
    if is_plain { prefix } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_what_is_missing_in_front() {
        let prefix = |original: &str, uri: &str| prefix(&original.parse().unwrap(), &uri.parse().unwrap()).to_owned();
        assert_eq!(prefix("/api/double?x", "/double?x"), "/api");
        assert_eq!(prefix("/api/", "/"), "/api");
        assert_eq!(prefix("/api", "/"), "/api");
        assert_eq!(prefix("/double", "/double"), "");
        assert_eq!(prefix("/", "/"), "");
        assert_eq!(prefix("/a;rm/double", "/double"), "", "no word for a shell");
    }
}
