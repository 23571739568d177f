//! `--ca-file PEM`: whose certificates are believed over https. Without it nobody's are.

use std::path::{Path, PathBuf};

use callboard_http::client::{Origin, Trust};
use clap::{Arg, value_parser};

use crate::cli::error::{CliError, chain};

/// The word.
pub(crate) fn arg() -> Arg {
    Arg::new("ca-file")
        .long("ca-file")
        .value_name("PEM")
        .value_parser(value_parser!(PathBuf))
        .help("Over https, the authorities whose certificates are believed")
}

/// Reads the file where one of the origins needs it.
pub(crate) fn read<'a>(
    file: Option<&Path>,
    origins: impl IntoIterator<Item = &'a Origin>,
) -> Result<Option<Trust>, CliError> {
    let secure = origins.into_iter().find(|origin| origin.is_secure());
    match (file, secure) {
        (None, None) => Ok(None),
        (None, Some(origin)) => Err(CliError::Usage(format!(
            "{origin} needs --ca-file PEM, the authorities that are believed; those of the system are often in \
             /etc/ssl/certs/ca-certificates.crt"
        ))),
        (Some(_), None) => Err(CliError::Usage("--ca-file: certificates are shown over https only".to_owned())),
        (Some(path), Some(_)) => {
            let pem = std::fs::read(path);
            let pem = pem.map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))?;
            let trust = Trust::from_pem(&pem);
            trust.map(Some).map_err(|error| CliError::Usage(format!("{}: {}", path.display(), chain(&error))))
        }
    }
}
