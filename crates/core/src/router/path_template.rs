//! Names of routes with parameters, such as `/items/{item_id}`: which paths they take, and which of several is meant.
//!
//! A parameter is a whole segment, and takes any segment that is not empty. `%2f` does not end a segment. Where several
//! names take a path, a literal segment wins over a parameter, from the left.

/// Whether a name has parameters.
pub(super) fn has_parameters(name: &str) -> bool {
    name.contains('{')
}

/// Whether a route of this name takes this path.
pub(super) fn takes(name: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (name.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || (is_parameter(wanted) && !given.is_empty()) => {}
            _ => return false,
        }
    }
}

/// For each segment whether it is a parameter: of names that take a path the least one is meant.
pub(super) fn rank(name: &str) -> Vec<bool> {
    name.split('/').map(is_parameter).collect()
}

/// Whether two names stand for the same paths.
pub(super) fn same_paths(name: &str, other: &str) -> bool {
    let shape = |name: &str| -> Vec<String> {
        name.split('/').map(|segment| if is_parameter(segment) { "{}" } else { segment }.to_owned()).collect()
    };
    shape(name) == shape(other)
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
        assert!(same_paths("/a/{x}", "/a/{y}"));
        assert!(!same_paths("/a/{x}", "/{x}/a") && !same_paths("/a/{x}", "/a/b") && !same_paths("/a/{x}", "/a"));
        assert_eq!(parameters("/a/{x}/b/{y_2}").collect::<Vec<_>>(), ["x", "y_2"]);
    }

    #[test]
    fn a_parameter_is_an_identifier_in_braces() {
        for other in ["{}", "{a", "a}", "{2}", "{a-b}", "x{a}", "{a}x", "{{a}}", ""] {
            assert!(!is_parameter(other), "{other}");
        }
    }
}
