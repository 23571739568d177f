//! The failure of a command: one line for people, one exit code for scripts.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use callboard_config::ConfigError;
use callboard_config::assemble::BuildError;
pub(crate) use callboard_config::chain;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Command line, environment or file are wrong: exit code 2. Nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// As [`Config`](Self::Config), for commands without a configuration.
    #[error("{0}")]
    Usage(String),
    /// A server answered with another status than 2xx: exit code 3 for 3xx, 4 for 4xx, 5 for 5xx.
    #[error("{message}")]
    Answered {
        /// The status.
        status: u16,
        /// The message of the answer.
        message: String,
    },
    /// A signal ended it early: exit code 128 and the number of the signal, as shells have it.
    #[error("{signal}: {message}")]
    Interrupted {
        /// SIGINT or SIGTERM.
        signal: &'static str,
        /// The results so far.
        message: &'static str,
    },
    /// The command failed: exit code 1. The message says why.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// A plan could not be made into an app.
    pub(crate) fn from_build(error: BuildError) -> Self {
        match error {
            BuildError::Config(error) => Self::Config(error),
            other => Self::Failed(chain(&other)),
        }
    }

    /// A failure with the message of an error and its causes, on one line.
    pub(crate) fn because(what: impl std::fmt::Display, error: &dyn Error) -> Self {
        Self::Failed(format!("{what}: {}", chain(error)))
    }

    /// An address cannot be bound; `flag` (without its dashes) sets another one.
    pub(crate) fn not_listening(address: SocketAddr, flag: &str, error: &dyn Error) -> Self {
        Self::Failed(format!("could not listen on {address}: {}; --{flag} ADDR:PORT chooses another one", chain(error)))
    }

    /// The code that the process ends with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Usage(_) => ExitCode::from(2),
            Self::Answered { status, .. } => ExitCode::from(u8::try_from(status / 100).unwrap_or(1)),
            Self::Interrupted { signal: "SIGTERM", .. } => ExitCode::from(143),
            Self::Interrupted { signal: "SIGHUP", .. } => ExitCode::from(129),
            Self::Interrupted { signal: "SIGQUIT", .. } => ExitCode::from(131),
            Self::Interrupted { .. } => ExitCode::from(130),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}
