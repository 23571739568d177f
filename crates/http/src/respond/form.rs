//! Chooses the form of a response by `Accept` (RFC 9110 §12.5.1) and the route's type.
//!
//! Some forms hold every outcome (JSON, MessagePack, the envelope); others may turn out not to fit: an array is `.npy`,
//! a map is not. So a request accepts a *ranking* of forms, and the first form that fits the outcome is sent. If no
//! available form is accepted, the request is refused before its body is read (406).

use std::borrow::Cow;

use axum::http::header::HeaderValue;
use callboard_codec::{DataType, Format, MediaType};

use super::plain_msgpack::{WITH_EXTENSIONS, asks_for_extensions};
use crate::error::ApiError;
use crate::file_type::known_types;
use crate::request::coding::Compressibility;
use crate::request::media::{OCTET_STREAM, TEXT_PLAIN, is_file, plain_types};

/// A form of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyForm {
    /// An encoded value.
    Encoded(Format),
    /// MessagePack without extension types, unless the client asks for them.
    PlainMsgpack,
    /// A text as it is.
    Text,
    /// A byte string as it is.
    Bytes,
    /// A byte string that begins as a file of this media type.
    File(&'static str),
    /// None but that which its code chooses: an outcome without such a choice does not fit.
    OfCode,
}

impl ReplyForm {
    /// This format, for a client that sent this header.
    pub(crate) fn for_format(format: Format, media_type: &str) -> Self {
        match format {
            Format::Msgpack if !asks_for_extensions(media_type) => Self::PlainMsgpack,
            format => Self::Encoded(format),
        }
    }

    /// Its name in `Accept`.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Encoded(format) => format.media_type(),
            Self::PlainMsgpack => Format::Msgpack.media_type(),
            Self::Text => TEXT_PLAIN,
            Self::Bytes => OCTET_STREAM,
            Self::File(media_type) => media_type,
            Self::OfCode => "*/*",
        }
    }

    /// Its `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Encoded(Format::Msgpack) => WITH_EXTENSIONS,
            Self::Encoded(_) | Self::PlainMsgpack | Self::Bytes | Self::File(_) | Self::OfCode => self.media_type(),
        }
    }

    /// Whether the form holds outcomes of every type. An outcome that it cannot hold is then a defect of the route, and
    /// no other form is tried.
    pub(crate) const fn is_universal(self) -> bool {
        matches!(self, Self::Encoded(Format::Json | Format::Msgpack | Format::Envelope) | Self::PlainMsgpack)
    }

    /// How well it compresses.
    pub(crate) const fn compressibility(self) -> Compressibility {
        match self {
            Self::Encoded(Format::Json) | Self::Text => Compressibility::Text,
            Self::Encoded(format) if format.is_table() => Compressibility::Table,
            Self::Encoded(_) | Self::PlainMsgpack | Self::Bytes | Self::File(_) | Self::OfCode => {
                Compressibility::Dense
            }
        }
    }
}

/// The forms of an outcome of this type, JSON first.
pub(crate) fn offers(output: &DataType) -> Vec<ReplyForm> {
    let plain = plain_types(output).map(|plain| if plain == TEXT_PLAIN { ReplyForm::Text } else { ReplyForm::Bytes });
    let files = file_range(output).map(known_types).unwrap_or_default().into_iter().map(ReplyForm::File);
    output.formats().into_iter().map(|format| ReplyForm::for_format(format, "")).chain(plain).chain(files).collect()
}

/// The media types of the files that an outcome of this type is, if its schema names them.
fn file_range(output: &DataType) -> Option<&str> {
    output.schema()["contentMediaType"].as_str().filter(|_| is_file(output.schema()))
}

/// The forms that a request accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedForms {
    pub(crate) best: ReplyForm,
    /// Tried in this order if the outcome does not fit an earlier form.
    pub(crate) others: Vec<ReplyForm>,
}

impl AcceptedForms {
    /// JSON alone.
    pub(crate) const JSON: Self = Self::only(ReplyForm::Encoded(Format::Json));

    /// What the code chooses, alone.
    pub(crate) const OF_CODE: Self = Self::only(ReplyForm::OfCode);

    /// This form alone.
    const fn only(best: ReplyForm) -> Self {
        Self { best, others: Vec::new() }
    }

    /// The format of the request body alone.
    pub(crate) fn as_asked(format: Format, content_type: &str) -> Self {
        Self::only(ReplyForm::for_format(format, content_type))
    }

    /// The forms of `output` that `accept` allows, or a 406 that lists them.
    pub(crate) fn from_accept(accept: Option<&Cow<'_, HeaderValue>>, output: &DataType) -> Result<Self, ApiError> {
        // Nearly every request: no parsing.
        let Some(accept) = accept else { return Ok(Self::JSON) };
        if **accept == "*/*" || **accept == "application/json" {
            return Ok(Self::JSON);
        }
        let offers = offers(output);
        let media_types: Vec<&str> = offers.iter().map(|form| form.media_type()).collect();
        let accept = accept.to_str().unwrap_or("-");
        let ranked = MediaType::rank(accept, &media_types);
        let mut forms = ranked.into_iter().map(|index| match offers[index] {
            ReplyForm::PlainMsgpack => ReplyForm::for_format(Format::Msgpack, accept),
            form => form,
        });
        match forms.next() {
            Some(best) => Ok(Self { best, others: forms.collect() }),
            None => Err(ApiError::not_acceptable(&media_types.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::Tensor;

    use super::*;

    fn best(accept: &str, output: &DataType) -> Result<&'static str, u16> {
        let accept = Cow::Owned(accept.parse().unwrap());
        let accepted = AcceptedForms::from_accept(Some(&accept), output).map_err(|error| error.status().as_u16())?;
        Ok(accepted.best.media_type())
    }

    #[test]
    fn the_highest_quality_wins_and_json_is_the_default() {
        let any = DataType::value();
        assert_eq!(AcceptedForms::from_accept(None, &any).unwrap(), AcceptedForms::JSON);
        let json = [
            "",
            "*/*",
            "application/*",
            "application/json",
            "text/html, */*;q=0.1",
            "application/msgpack;q=0.5, */*",
            "application/json, text/plain, */*",
        ];
        for accept in json {
            assert_eq!(best(accept, &any), Ok("application/json"), "{accept}");
        }
        let msgpack =
            ["application/msgpack", "application/json;q=0.2, application/msgpack", "*/*, application/json;q=0"];
        for accept in msgpack {
            assert_eq!(best(accept, &any), Ok("application/msgpack"), "{accept}");
        }
        assert_eq!(best("text/*", &any), Ok("text/plain"));
        assert_eq!(best("application/x-npy;q=0.9, application/json;q=0.8", &any), Ok("application/x-npy"));
        for refused in ["text/html", "application/json;q=0", "*/*;q=0", "nonsense"] {
            assert_eq!(best(refused, &any), Err(406), "{refused}");
        }
    }

    #[test]
    fn a_file_is_offered_in_the_media_types_that_its_schema_names() {
        let file = |range: &str| {
            let schema = serde_json::json!({
                "type": "string", "contentEncoding": "base64", "contentMediaType": range,
            });
            DataType::value().with_schema(schema)
        };
        assert_eq!(best("image/jpeg, */*;q=0.1", &file("image/*")), Ok("image/jpeg"));
        assert_eq!(best("image/*", &file("image/*")), Ok("image/png"));
        assert_eq!(best("image/jpeg, */*;q=0.1", &file("image/png")), Ok("application/json"));
        assert_eq!(best("image/png", &file("audio/*")), Err(406));
        assert_eq!(best("image/png", &DataType::for_type::<callboard_codec::Media>()), Err(406));
    }

    #[test]
    fn a_format_is_offered_only_if_the_type_has_it() {
        let (tensor, number) = (DataType::for_type::<Tensor>(), DataType::for_type::<u8>());
        assert_eq!(best("application/x-npy", &tensor), Ok("application/x-npy"));
        assert_eq!(best("application/x-npy", &number), Err(406));
        assert_eq!(best("application/x-npy, */*;q=0.1", &number), Ok("application/json"));
        assert_eq!(best("text/plain", &DataType::for_type::<String>()), Ok("text/plain"));
    }
}
