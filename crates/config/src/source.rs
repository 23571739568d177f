//! The source of a value, kept with the value for `--explain`.

use std::fmt;

/// The layer that decided a value, from the strongest to the weakest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A command-line flag, such as `--http`.
    Flag(&'static str),
    /// An environment variable, such as `CALLBOARD_HTTP`.
    Env(&'static str),
    /// A line of the configuration file.
    File {
        /// Counted from 1.
        line: usize,
    },
    /// A line of `[models.defaults]` in the file beside the models.
    ModelDefaults {
        /// Counted from 1.
        line: usize,
    },
    /// The name of the target: a model without a file names its stage and route.
    Target,
    /// The default.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Env(name) => f.write_str(name),
            Self::File { line } => write!(f, "line {line}"),
            Self::ModelDefaults { line } => write!(f, "callboard.toml line {line}"),
            Self::Target => f.write_str("name of the model"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value with the layer that decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The layer that set it.
    pub source: Source,
}

impl<T> Sourced<T> {
    /// `value`, decided by `source`.
    #[must_use]
    pub const fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }
}
