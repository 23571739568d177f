//! `--ca-file PEM`: the CA certificates to trust over https, instead of those of the system.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use callboard_codec::edited_text;
use callboard_http_client::{Origin, Trust};
use clap::{Arg, value_parser};

use crate::error::{CliError, chain};

/// The argument `--ca-file`.
pub(crate) fn arg() -> Arg {
    Arg::new("ca-file")
        .long("ca-file")
        .value_name("PEM")
        .value_parser(value_parser!(PathBuf))
        .help("CA certificates (PEM) to trust over https, instead of the system's")
}

/// Reads the file, or the CA certificates of the system, if one of the origins needs them.
pub(crate) fn read<'a>(
    file: Option<&Path>,
    origins: impl IntoIterator<Item = &'a Origin>,
) -> Result<Option<Trust>, CliError> {
    let secure = origins.into_iter().find(|origin| origin.is_secure());
    match (file, secure) {
        (None, None) => Ok(None),
        (None, Some(origin)) => {
            let failed = |problem| CliError::Usage(format!("{origin}: {problem}; --ca-file PEM names some"));
            system_authorities().map(Some).map_err(failed)
        }
        (Some(_), None) => Err(CliError::Usage("--ca-file: certificates are shown over https only".to_owned())),
        (Some(path), Some(_)) => authorities(path).map(Some).map_err(CliError::Usage),
    }
}

/// The authorities in this file.
///
/// # Errors
///
/// A message with the path: the file cannot be read, is not a regular file, is too large, or has no certificates.
pub(crate) fn authorities(path: &Path) -> Result<Trust, String> {
    let pem = read_bounded(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // A comment may be in any encoding; the certificates themselves are ASCII.
    let pem = String::from_utf8_lossy(&pem);
    Trust::from_pem(edited_text(&pem).as_bytes()).map_err(|error| format!("{}: {}", path.display(), chain(&error)))
}

/// The CA certificates of the system.
///
/// # Errors
///
/// A message: there are none.
pub(crate) fn system_authorities() -> Result<Trust, String> {
    Trust::from_system().map_err(|error| chain(&error))
}

/// A pipe or device might never end.
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

/// All authorities of a system have a twentieth of it.
const MAX_FILE_BYTES: u64 = 4 << 20;
