//! The request bodies. They are made before a connection is opened, so that a missing file is reported first.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use callboard_codec::Format;
use callboard_http::media_type_of;

use super::arguments;
use super::form::{self, FormPart};
use super::tensor::TensorSpec;
use crate::error::CliError;

/// The source of the request bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodySource {
    /// No body.
    Nothing,
    /// This JSON.
    Json(String),
    /// These files, each as one body; `-` is stdin.
    Files(Vec<PathBuf>),
    /// A form of these parts.
    Form(Vec<FormPart>),
    /// A function's arguments.
    Arguments(Vec<String>),
    /// A generated tensor in a format.
    Tensor(TensorSpec, Format, u64),
}

/// One body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) body: Bytes,
    /// The media type; `None` without a body.
    pub(crate) media_type: Option<String>,
}

/// 64 characters that are unlikely in any file.
const BOUNDARY: &str = "callboard-7c1b4f0e9a3d5826-7c1b4f0e9a3d5826";

impl BodySource {
    /// Reads or makes all bodies; at least one.
    pub(crate) fn payloads(&self) -> Result<Vec<Payload>, CliError> {
        let single = |body: Bytes, media_type: &str| vec![Payload { body, media_type: Some(media_type.to_owned()) }];
        Ok(match self {
            Self::Nothing => vec![Payload { body: Bytes::new(), media_type: None }],
            Self::Json(text) => single(Bytes::from(text.clone()), Format::Json.media_type()),
            Self::Files(paths) => {
                let payload = |path: &PathBuf| {
                    let media_type = Some(media_type_of(path).to_owned());
                    Ok::<_, CliError>(Payload { body: read(path)?.into(), media_type })
                };
                paths.iter().map(payload).collect::<Result<_, _>>()?
            }
            Self::Form(parts) => {
                let (body, media_type) = form::body(parts, BOUNDARY, read)?;
                single(body.into(), &media_type)
            }
            Self::Arguments(texts) => single(arguments::body(texts)?, Format::Json.media_type()),
            Self::Tensor(spec, format, seed) => {
                let body = spec.generate(*seed).encode(*format);
                let body =
                    body.map_err(|error| CliError::because(format_args!("{spec} as {}", format.name()), &error))?;
                single(body, format.media_type())
            }
        })
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let outcome = match path.to_str() {
        Some("-") => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes),
        _ => fs::read(path),
    };
    outcome.map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
}
