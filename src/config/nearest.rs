//! Finds the known name that is nearest to an unknown one.
//!
//! Every list of names in the configuration (keys, variables, stages, kinds) goes through here, so that a typo always
//! gets the same kind of answer.

use std::fmt;

/// The hint for an unknown name: the nearest known one, or all of them if none is near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// One name is near enough to be the intended one.
    DidYouMean(String),
    /// No name is near; these exist.
    Known(Vec<String>),
}

impl Hint {
    /// Looks for `typed` among `known`.
    #[must_use]
    pub fn new<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        match nearest(typed, &known) {
            Some(name) => Self::DidYouMean(name.to_owned()),
            None => Self::Known(known.into_iter().map(str::to_owned).collect()),
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DidYouMean(name) => write!(f, "did you mean `{name}`?"),
            Self::Known(names) if names.is_empty() => f.write_str("there are none"),
            Self::Known(names) => write!(f, "known: {}", names.join(", ")),
        }
    }
}

/// The nearest of `known`, the first of equals, if it is near enough.
fn nearest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    known
        .iter()
        .map(|name| (distance(&typed, &name.to_lowercase()), *name))
        .filter(|(distance, name)| *distance <= tolerance(name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The number of wrong letters. A shortened name (`max_batch`) counts as one wrong letter.
fn distance(typed: &str, name: &str) -> usize {
    let is_cut_short = typed.len() >= 3 && name.starts_with(typed) && name != typed;
    if is_cut_short { 1 } else { strsim::damerau_levenshtein(typed, name) }
}

/// A third of the letters may be wrong, and one always may: beyond that a suggestion misleads more often than it helps.
fn tolerance(name: &str) -> usize {
    (name.chars().count() / 3).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEYS: [&str; 4] = ["max_batch_size", "max_delay", "replicas", "queue"];

    #[test]
    fn the_nearest_key_is_named() {
        let hint = Hint::new("max_batchsize", KEYS);
        assert_eq!(hint.to_string(), "did you mean `max_batch_size`?");
        assert_eq!(Hint::new("max_batch", KEYS), hint);
        assert_eq!(Hint::new("Replica", KEYS).to_string(), "did you mean `replicas`?");
    }

    #[test]
    fn all_keys_are_listed_if_none_is_near() {
        assert_eq!(Hint::new("colour", ["width", "height"]).to_string(), "known: width, height");
        assert_eq!(Hint::new("colour", []).to_string(), "there are none");
    }

    proptest! {
        #[test]
        fn a_key_with_one_wrong_letter_is_always_found(index in 0..KEYS.len(), position in 0_usize..5, letter in "[a-z]") {
            let key = KEYS[index];
            let mut typed = key.to_owned();
            typed.replace_range(position..=position, &letter);
            prop_assert_eq!(Hint::new(&typed, KEYS), Hint::DidYouMean(key.to_owned()));
        }
    }
}
