//! `callboard export`: writes the configuration file that a Python file means.

use callboard_config::Target;

use crate::error::CliError;
use crate::output;
use crate::service::title;

/// Prints the file, to be changed and served in place of the code's own settings.
pub(crate) fn run(target: &Target) -> Result<(), CliError> {
    match target {
        Target::File { text, .. } => output::result(text.trim_end()),
        Target::Model { .. } | Target::Models { .. } | Target::Program { .. } => {
            Err(CliError::Failed(format!("{}: only a Python file means a configuration file", title(target))))
        }
    }
}
