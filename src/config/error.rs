//! The errors of a configuration, each on one line: the place, the problem and the expected value.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::nearest::Hint;

/// The place of the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the configuration file.
    File {
        /// The file as it was named on the command line.
        path: Arc<Path>,
        /// Counted from 1.
        line: usize,
        /// What part of the file it belongs to, such as `limits.drain` or ``stage `digits` ``.
        part: Box<str>,
    },
    /// In this environment variable.
    Env(String),
    /// In the value of this flag, named without its dashes.
    Flag(&'static str),
    /// In the plan of a target without a file.
    Target {
        /// What part of the plan it belongs to, such as ``stage `digits` ``.
        part: Box<str>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, part } if part.is_empty() => {
                write!(f, "{}:{line}", path.display())
            }
            Self::File { path, line, part } => write!(f, "{}:{line}: {part}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Target { part } => f.write_str(part),
        }
    }
}

/// Why no plan could be made. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The path has nothing to serve. Name a directory with a `callboard.toml`, such a file, or an `.onnx` file.
    #[error("{}: {problem}", path.display())]
    Target {
        /// As it was given.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// The file is not TOML. The line is the first at which it stops being so.
    #[error("{place}: {message}")]
    Syntax {
        /// The line.
        place: Place,
        /// The parser's words.
        message: String,
    },
    /// The crate of the stage refuses the value, in its own words.
    #[error("{place}: {message}")]
    Rejected {
        /// The key, or the table around it.
        place: Place,
        /// What it said.
        message: String,
    },
    /// No such key. Usually a typo: take the one in the hint, or delete the line.
    #[error("{place}: unknown key `{key}`; {hint}")]
    UnknownKey {
        /// The line of the key.
        place: Place,
        /// As it was written.
        key: String,
        /// What was probably meant.
        hint: Hint,
    },
    /// A name that refers to something which is not there: a stage of a route, a kind of stage.
    #[error("{place}: unknown {what} `{name}`; {hint}")]
    UnknownName {
        /// The line of the reference.
        place: Place,
        /// What it should be the name of.
        what: &'static str,
        /// As it was written.
        name: String,
        /// What was probably meant.
        hint: Hint,
    },
    /// No such variable. Every `CALLBOARD_*` variable has to mean something: a misspelt one would be a setting that
    /// silently does nothing.
    #[error("{name}: unknown environment variable; {hint}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// What was probably meant.
        hint: Hint,
    },
    /// The value has the wrong type, does not parse, or is out of range. Write what is expected.
    #[error("{place}: expected {expected}, found {found}")]
    BadValue {
        /// Where the value stands.
        place: Place,
        /// What would be right, with the limits.
        expected: String,
        /// What was written.
        found: String,
    },
    /// A key that has no default is not there. Add it.
    #[error("{place}: `{key}` is missing: expected {expected}")]
    MissingKey {
        /// The table that lacks it.
        place: Place,
        /// What to add.
        key: &'static str,
        /// What its value should be.
        expected: String,
    },
    /// A name is used twice. Rename one.
    #[error("{place}: there is a {what} `{name}` already, on line {first}")]
    Duplicate {
        /// The second one.
        place: Place,
        /// What they are.
        what: &'static str,
        /// Their name.
        name: String,
        /// The line of the first one.
        first: usize,
    },
    /// Two settings that cannot both hold. Change one.
    #[error("{one} does not go with {other}: {why}")]
    Contradiction {
        /// One, with its source.
        one: String,
        /// The other, with its source.
        other: String,
        /// What would happen, or what is missing.
        why: &'static str,
    },
    /// A setting without effect. Leave it out.
    #[error("{what} has no effect here: {why}")]
    NotHere {
        /// The setting, with its value and source.
        what: String,
        /// Why it has none.
        why: &'static str,
    },
    /// This program was built without a feature that the stage needs. Build it with the feature.
    #[error("{place}: this program was built without the feature `{feature}`, which stages of kind `{kind}` need")]
    Unavailable {
        /// The stage.
        place: Place,
        /// Its kind.
        kind: &'static str,
        /// The feature of the `callboard` package.
        feature: &'static str,
    },
}
