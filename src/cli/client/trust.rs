//! `--ca-file PEM`: whose certificates are believed over https, instead of those of the system's authorities.

use std::fs::{self, File};
use std::io::{self, Read as _};
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
        .help("CA certificates (PEM) to trust over https, instead of the system's")
}

/// Reads the file, or what the system has, where one of the origins needs it.
pub(crate) fn read<'a>(
    file: Option<&Path>,
    origins: impl IntoIterator<Item = &'a Origin>,
) -> Result<Option<Trust>, CliError> {
    let secure = origins.into_iter().find(|origin| origin.is_secure());
    match (file, secure) {
        (None, None) => Ok(None),
        (None, Some(origin)) => {
            let failed = |problem| CliError::Usage(format!("{origin}: {problem}; --ca-file PEM names some"));
            of_system().map(Some).map_err(failed)
        }
        (Some(_), None) => Err(CliError::Usage("--ca-file: certificates are shown over https only".to_owned())),
        (Some(path), Some(_)) => authorities(path).map(Some).map_err(CliError::Usage),
    }
}

/// The authorities in this file.
///
/// # Errors
///
/// In words for people, with the path: a file that cannot be read, that is no file or too large for one of certificates, or has none.
pub(crate) fn authorities(path: &Path) -> Result<Trust, String> {
    let pem = read_bounded(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Trust::from_pem(&pem).map_err(|error| format!("{}: {}", path.display(), chain(&error)))
}

/// The authorities that the system believes.
///
/// # Errors
///
/// In words for people: there are none.
pub(crate) fn of_system() -> Result<Trust, String> {
    Trust::of_system().map_err(|error| chain(&error))
}

/// Of a pipe or device nobody knows whether anything ever comes, or ends.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(content)
}

/// All authorities that systems believe have a twentieth of it.
const MAX_FILE_BYTES: u64 = 4 << 20;
