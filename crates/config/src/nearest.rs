//! The hint for an unknown name: the nearest known one, or all of them.
//!
//! Every list of names in the configuration (keys, variables, stages, kinds) goes through here, so that a typo always
//! gets the same kind of answer.

use std::fmt;

use callboard_core::edge::nearest;

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
        match nearest(typed, known.iter().copied()) {
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
