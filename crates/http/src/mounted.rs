//! The path below which the edge is mounted in another router (`nest_service`), which cuts it off: clients write and read
//! whole paths.

use axum::extract::OriginalUri;
use axum::http::{Extensions, Uri};

/// The target as the client wrote it.
pub(crate) fn original_uri<'a>(uri: &'a Uri, extensions: &'a Extensions) -> &'a Uri {
    extensions.get::<OriginalUri>().map_or(uri, |OriginalUri(original)| original)
}

/// The prefix that the router removed, such as `/api`; empty if none.
///
/// Clients may choose a part of it, and it goes into shell commands: a prefix with other characters than letters,
/// digits and `-._~/` counts as empty.
pub(crate) fn prefix<'a>(original: &'a Uri, uri: &Uri) -> &'a str {
    let (original, path) = (original.path(), uri.path());
    // The path of the mount itself may end with a slash or not.
    let prefix = original.strip_suffix(path).or_else(|| (path == "/").then_some(original)).unwrap_or_default();
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte));
    if is_plain { prefix } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_the_removed_start_of_the_path() {
        let prefix = |original: &str, uri: &str| prefix(&original.parse().unwrap(), &uri.parse().unwrap()).to_owned();
        assert_eq!(prefix("/api/double?x", "/double?x"), "/api");
        assert_eq!(prefix("/api/", "/"), "/api");
        assert_eq!(prefix("/api", "/"), "/api");
        assert_eq!(prefix("/double", "/double"), "");
        assert_eq!(prefix("/", "/"), "");
        assert_eq!(prefix("/a;rm/double", "/double"), "", "no word for a shell");
    }
}
