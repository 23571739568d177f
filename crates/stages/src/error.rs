//! Why a stage cannot be built from its configuration.

use std::io;
use std::path::PathBuf;

/// Why a stage cannot be built from its configuration. The remedy is in the file that configures it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageConfigError {
    /// An invalid value of a key, alone or together with another key.
    #[error("`{key}`: {reason}")]
    Invalid {
        /// The key at fault.
        key: &'static str,
        /// The error in its value.
        reason: String,
    },
    /// A file that the configuration names cannot be read.
    #[error("`{key}`: cannot read {}", path.display())]
    Read {
        /// The key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl StageConfigError {
    pub(crate) fn invalid(key: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { key, reason: reason.into() }
    }
}
