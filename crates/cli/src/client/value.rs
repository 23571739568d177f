//! The same inputs as values and calls for QUIC. There are no media types, so the extension of a file gives its format.

use std::path::Path;

use callboard_codec::{DecodeLimits, Format, Map, Value};
use callboard_core::CallError;
use callboard_http::media_type_of;
use callboard_net::Prepared;

use super::arguments;
use super::form::FormPart;
use super::payload::{BodySource, read};
use crate::error::CliError;

impl BodySource {
    /// Reads or generates all inputs, as prepared calls of this route or function: at least one.
    pub(crate) fn prepared(&self, route: &str) -> Result<Vec<Prepared>, CliError> {
        let failed = |error: CallError| CliError::Usage(error.to_string());
        let values = match self {
            Self::Arguments(texts) => {
                return Ok(vec![Prepared::function(route, arguments::call(texts)?).map_err(failed)?]);
            }
            Self::Nothing => {
                let expected = "--json, --file, --form, --arg or --random-tensor";
                return Err(CliError::Usage(format!("a call over QUIC has an input: give it by {expected}")));
            }
            Self::Json(text) => vec![json(text)?],
            Self::Files(paths) => paths.iter().map(|path| file(path)).collect::<Result<_, _>>()?,
            Self::Form(parts) => vec![form(parts)?],
            Self::Tensor(spec, _, seed) => vec![spec.generate(*seed)],
        };
        values.into_iter().map(|value| Prepared::new(route, value).map_err(failed)).collect()
    }
}

/// The value of this JSON.
pub(crate) fn json(text: &str) -> Result<Value, CliError> {
    let decoded = Value::decode(Format::Json, &text.to_owned().into(), &DecodeLimits::default());
    decoded.map_err(|error| CliError::Usage(format!("not valid JSON: {error}")))
}

/// The value in this file, or its bytes if the extension names no format.
pub(crate) fn file(path: &Path) -> Result<Value, CliError> {
    let bytes = read(path)?;
    let Some(format) = Format::from_media_type(media_type_of(path)) else {
        return Ok(Value::Bytes(bytes.into()));
    };
    let decoded = Value::decode(format, &bytes.into(), &DecodeLimits::default());
    decoded.map_err(|error| CliError::Usage(format!("{} is not valid {format}: {error}", path.display())))
}

/// A map with these texts, and the bytes of these files.
pub(crate) fn form(parts: &[FormPart]) -> Result<Value, CliError> {
    let fields = parts.iter().map(|part| {
        Ok(match part.text() {
            Ok(text) => (part.name().to_owned(), Value::from(text)),
            Err(path) => (part.name().to_owned(), Value::Bytes(read(path)?.into())),
        })
    });
    fields.collect::<Result<Map, CliError>>().map(Value::Map)
}
