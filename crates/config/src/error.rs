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
        /// The part of the file, such as `limits.drain` or ``stage `digits` ``.
        part: Box<str>,
    },
    /// In this environment variable.
    Env(String),
    /// In the value of this flag, named without its dashes.
    Flag(&'static str),
    /// In the plan of a target without a file.
    Target {
        /// The part of the plan, such as ``stage `digits` ``.
        part: Box<str>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, part } if part.is_empty() => {
                write!(f, "{}:{line}", path.display())
            }
            // The lines of a Python file are not those of the configuration that it means.
            Self::File { path, part, .. } if path.extension().is_some_and(|extension| extension == "py") => {
                write!(f, "{}: {part}", path.display())
            }
            Self::File { path, line, part } => write!(f, "{}:{line}: {part}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Target { part } => f.write_str(part),
        }
    }
}

/// The reason why there is no plan. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The path has nothing to serve. Name a directory with a `callboard.toml`, such a file, or an `.onnx` file.
    #[error("{}: {problem}", path.display())]
    Target {
        /// The path as given.
        path: PathBuf,
        /// The missing part.
        problem: String,
    },
    /// The file is not TOML. The line is the first invalid one.
    #[error("{place}: {message}")]
    Syntax {
        /// The line.
        place: Place,
        /// The message of the parser.
        message: String,
    },
    /// The crate of the stage refuses the value.
    #[error("{place}: {message}")]
    Rejected {
        /// The key, or the table around it.
        place: Place,
        /// Its message.
        message: String,
    },
    /// No such key. Usually a typo: take the one in the hint, or delete the line.
    #[error("{place}: unknown key `{key}`; {hint}")]
    UnknownKey {
        /// The line of the key.
        place: Place,
        /// The key as written.
        key: String,
        /// The probable intended name.
        hint: Hint,
    },
    /// A name without a definition: a stage of a route, a kind of stage.
    #[error("{place}: unknown {what} `{name}`; {hint}")]
    UnknownName {
        /// The line of the reference.
        place: Place,
        /// The expected kind of the referenced item.
        what: &'static str,
        /// The name as written.
        name: String,
        /// The probable intended name.
        hint: Hint,
    },
    /// Unknown variable. Every `CALLBOARD_*` variable must be known: a misspelt one would silently do nothing.
    #[error("{name}: unknown environment variable; {hint}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The probable intended name.
        hint: Hint,
    },
    /// The value has the wrong type, does not parse, or is out of range. Write the expected value.
    #[error("{place}: expected {expected}, found {found}")]
    BadValue {
        /// The place of the value.
        place: Place,
        /// The expected value, with its limits.
        expected: String,
        /// The value as written.
        found: String,
    },
    /// A required key is missing. Add it.
    #[error("{place}: `{key}` is missing: expected {expected}")]
    MissingKey {
        /// The table without the key.
        place: Place,
        /// The key to add.
        key: &'static str,
        /// The expected value.
        expected: String,
    },
    /// A name is used twice. Rename one.
    #[error("{place}: there is a {what} `{name}` already, on line {first}")]
    Duplicate {
        /// The second one.
        place: Place,
        /// The kind of the named things.
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
        /// The consequence, or the missing part.
        why: &'static str,
    },
    /// A setting without effect. Leave it out.
    #[error("{what} has no effect here: {why}")]
    NotHere {
        /// The setting, with its value and source.
        what: String,
        /// The reason.
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

/// The messages of an error and its causes, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    message
}
