//! Names of routes: a path, and a method of HTTP before it where `POST` does not call the route, such as
//! `GET /items/{item_id}`; which paths a name with parameters takes, and which of several is meant.
//!
//! A parameter is a whole segment, and takes any segment that is not empty. `%2f` does not end a segment. Where several
//! names take a path, a literal segment wins over a parameter, from the left.

/// The name of the route that these methods, in upper case, call at a path: the path, and the first of them before it
/// unless `POST` is among them. None of them means `POST`.
#[must_use]
pub fn route_name(path: &str, methods: &[impl AsRef<str>]) -> String {
    match methods.first() {
        Some(first) if path.starts_with('/') && !methods.iter().any(|method| method.as_ref() == "POST") => {
            format!("{} {path}", first.as_ref())
        }
        _ => path.to_owned(),
    }
}

/// A name of a route as its method, if it begins with one, and its path.
#[must_use]
pub fn split_route_name(name: &str) -> (Option<&str>, &str) {
    match name.split_once(' ') {
        Some((method, path)) if path.starts_with('/') && is_method(method) => (Some(method), path),
        _ => (None, name),
    }
}

fn is_method(word: &str) -> bool {
    (1..=16).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether a name has parameters.
pub(super) fn has_parameters(name: &str) -> bool {
    name.contains('{')
}

/// Whether a route at `template` takes this path.
pub(super) fn takes(template: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || (is_parameter(wanted) && !given.is_empty()) => {}
            _ => return false,
        }
    }
}

/// For each segment whether it is a parameter: of templates that take a path the least one is meant.
pub(super) fn rank(template: &str) -> Vec<bool> {
    template.split('/').map(is_parameter).collect()
}

/// The path without the names of its parameters: the same for all that take the same paths.
pub(super) fn shape(template: &str) -> String {
    let segment = |segment| if is_parameter(segment) { "{}" } else { segment };
    template.split('/').map(segment).collect::<Vec<_>>().join("/")
}

/// The names of its parameters.
pub(super) fn parameters(name: &str) -> impl Iterator<Item = &str> {
    name.split('/').filter(|segment| is_parameter(segment)).map(|segment| &segment[1..segment.len() - 1])
}

/// Whether a segment is a parameter: an identifier in braces.
pub(super) fn is_parameter(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_takes_one_segment_that_is_not_empty() {
        for taken in ["/items/7", "/items/a%2fb", "/items/{x}", "/items/."] {
            assert!(takes("/items/{id}", taken), "{taken}");
        }
        for other in ["/items", "/items/", "/items/7/", "/items/7/8", "/other/7", "items/7", ""] {
            assert!(!takes("/items/{id}", other), "{other}");
        }
        assert!(takes("/a/{x}/b/{y}", "/a/1/b/2") && !takes("/a/{x}/b/{y}", "/a/1/c/2"));
    }

    #[test]
    fn a_literal_segment_wins_over_a_parameter_from_the_left() {
        let mut names = ["/{a}/b", "/{a}/{b}", "/a/{b}", "/a/b"];
        names.sort_by_key(|name| rank(name));
        assert_eq!(names, ["/a/b", "/a/{b}", "/{a}/b", "/{a}/{b}"]);
    }

    #[test]
    fn names_that_differ_in_names_of_parameters_only_stand_for_the_same_paths() {
        assert_eq!(shape("/a/{x}"), shape("/a/{y}"));
        assert!(["/{x}/a", "/a/b", "/a"].iter().all(|other| shape(other) != shape("/a/{x}")));
        assert_eq!(parameters("/a/{x}/b/{y_2}").collect::<Vec<_>>(), ["x", "y_2"]);
    }

    #[test]
    fn a_name_has_a_method_before_its_path_unless_post_calls_it() {
        for (methods, name) in [
            (&[][..], "/items"),
            (&["POST"], "/items"),
            (&["GET", "POST"], "/items"),
            (&["GET"], "GET /items"),
            (&["PUT", "PATCH"], "PUT /items"),
        ] {
            assert_eq!(route_name("/items", methods), name);
            assert_eq!(split_route_name(name), (name.strip_suffix(" /items"), "/items"));
        }
        assert_eq!(route_name("@auth", &["GET"]), "@auth");
        for plain in ["get /items", "GET items", " /items", "/GET /items", "@auth", "GET"] {
            assert_eq!(split_route_name(plain), (None, plain));
        }
    }

    #[test]
    fn a_parameter_is_an_identifier_in_braces() {
        for other in ["{}", "{a", "a}", "{2}", "{a-b}", "x{a}", "{a}x", "{{a}}", ""] {
            assert!(!is_parameter(other), "{other}");
        }
    }
}
