//! The form of a body, decided from `Content-Type` and the route's type before anything is read.

use axum::http::header::HeaderValue;
use bytes::Bytes;
use callboard_codec::{DataType, Format, MediaType};

use crate::error::ApiError;

/// The conversion of a body to a payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyForm<'a> {
    /// An encoded value.
    Encoded(Format),
    /// `multipart/form-data` with this boundary.
    Multipart(String),
    /// `application/x-www-form-urlencoded`.
    UrlEncoded,
    /// The bytes are the one field of this name.
    Raw(&'a str),
    /// The body is a text value.
    Text,
    /// The body is a byte string.
    Bytes,
    /// As far as the head tells there is no body, which stands for this JSON: it has no media type and announces no
    /// length.
    Absent(Bytes),
}

impl<'a> BodyForm<'a> {
    /// The form that `content_type` names, or a 415 that lists the accepted types.
    ///
    /// A body without a type is `application/octet-stream` (RFC 9110 §8.3). Only routes with a field for raw bodies
    /// take it without the header: a forgotten header should not turn JSON into bytes.
    pub(crate) fn for_content_type(content_type: Option<&HeaderValue>, input: &'a DataType) -> Result<Self, ApiError> {
        // Nearly every request: no parsing.
        if content_type.is_some_and(|value| value == "application/json") {
            return Ok(Self::Encoded(Format::Json));
        }
        let text = match content_type.map(HeaderValue::to_str) {
            None => None,
            Some(Ok(text)) => Some(text),
            Some(Err(_)) => return Err(ApiError::unsupported_media_type(Some("?"), &accepted(input).join(", "))),
        };
        let essence = MediaType::without_parameters(text.unwrap_or(OCTET_STREAM)).to_ascii_lowercase();
        if let Some(charset) = text.and_then(charset).filter(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
            // Only JSON, texts and forms of texts have a charset here.
            if [Format::Json.media_type(), URL_ENCODED].contains(&&*essence) || essence.starts_with("text/") {
                return Err(ApiError::unsupported_charset(charset));
            }
        }
        if let Some(format) = Format::from_media_type(&essence).filter(|format| formats(input).contains(format)) {
            return Ok(Self::Encoded(format));
        }
        if essence == MULTIPART {
            return boundary(text.unwrap_or_default()).map(Self::Multipart);
        }
        if essence == URL_ENCODED {
            return Ok(Self::UrlEncoded);
        }
        match input.raw_body() {
            Some(raw) if raw.media_types.iter().any(|pattern| MediaType::range_includes(pattern, &essence)) => {
                Ok(Self::Raw(&raw.field))
            }
            _ if essence == TEXT_PLAIN && is_text(input) => Ok(Self::Text),
            _ if essence == OCTET_STREAM && text.is_some() && is_bytes(input) => Ok(Self::Bytes),
            _ => Err(ApiError::unsupported_media_type(text, &accepted(input).join(", "))),
        }
    }
}

fn boundary(media_type: &str) -> Result<String, ApiError> {
    multer::parse_boundary(media_type).map_err(|_| ApiError::bad_multipart("`boundary` is missing or malformed"))
}

/// The boundary of a body that has to be a form.
///
/// # Errors
///
/// 415 for another media type, 400 without a boundary.
pub(crate) fn boundary_of(content_type: Option<&HeaderValue>) -> Result<String, ApiError> {
    let text = content_type.map(|value| value.to_str().unwrap_or("?"));
    match text {
        Some(text) if MediaType::without_parameters(text).eq_ignore_ascii_case(MULTIPART) => boundary(text),
        other => Err(ApiError::unsupported_media_type(other, MULTIPART)),
    }
}

/// The formats that a body may have. Tables are left out for arrays by name and for files, which they do not fit.
fn formats(input: &DataType) -> Vec<Format> {
    let has_tables = input.tensors().is_none() && (input.raw_body().is_none() || input.schema()["type"] != "object");
    input.formats().into_iter().filter(|format| has_tables || !format.is_table()).collect()
}

/// The media types that a route takes.
pub(crate) fn accepted(input: &DataType) -> Vec<&str> {
    let mut accepted: Vec<&str> = formats(input).into_iter().map(Format::media_type).collect();
    accepted.extend([MULTIPART, URL_ENCODED]);
    accepted.extend(input.raw_body().into_iter().flat_map(|raw| &raw.media_types).map(String::as_str));
    accepted.extend(plain_types(input).filter(|plain| !accepted.contains(plain)).collect::<Vec<_>>());
    accepted
}

/// The media types of a body that is the value itself.
pub(crate) fn plain_types(data_type: &DataType) -> impl Iterator<Item = &'static str> {
    let text = is_text(data_type).then_some(TEXT_PLAIN);
    text.into_iter().chain(is_bytes(data_type).then_some(OCTET_STREAM))
}

/// Whether the type is a text or allows one.
fn is_text(data_type: &DataType) -> bool {
    let schema = data_type.schema();
    is_anything(data_type) || schema["type"] == "string" && schema.get("enum").is_none() && !is_file(schema)
}

/// Whether the type is a byte string or allows one.
fn is_bytes(data_type: &DataType) -> bool {
    is_anything(data_type) || is_file(data_type.schema())
}

/// Whether a text of this schema stands for bytes.
pub(crate) fn is_file(schema: &serde_json::Value) -> bool {
    schema["contentEncoding"] == "base64"
}

/// Whether the type is a file whose media types its schema does not name: its code chooses one.
pub(crate) fn is_open_file(data_type: &DataType) -> bool {
    is_file(data_type.schema()) && data_type.schema()["contentMediaType"].is_null()
}

/// Whether the schema allows every value.
fn is_anything(data_type: &DataType) -> bool {
    let schema = data_type.schema();
    *schema == serde_json::Value::Bool(true) || schema["type"].is_null() && says_nothing(schema)
}

/// Whether the schema restricts no value. Annotations do not count.
fn says_nothing(schema: &serde_json::Value) -> bool {
    const WORDS: [&str; 4] = ["title", "description", "examples", "default"];
    schema.as_object().is_some_and(|keywords| keywords.keys().all(|keyword| WORDS.contains(&keyword.as_str())))
}

pub(crate) const MULTIPART: &str = "multipart/form-data";
pub(crate) const URL_ENCODED: &str = "application/x-www-form-urlencoded";
pub(crate) const OCTET_STREAM: &str = "application/octet-stream";
pub(crate) const TEXT_PLAIN: &str = "text/plain";

/// The value of the parameter `charset`.
fn charset(media_type: &str) -> Option<&str> {
    media_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use callboard_codec::{Media, RawBody, Tensor};

    use super::*;

    fn form(content_type: Option<&str>) -> Result<String, u16> {
        let raw = RawBody { field: "image".to_owned(), media_types: vec!["image/*".to_owned()] };
        let input = DataType::value().with_raw_body(raw);
        let header = content_type.map(|text| text.parse().unwrap());
        BodyForm::for_content_type(header.as_ref(), &input)
            .map(|form| format!("{form:?}"))
            .map_err(|error| error.status().as_u16())
    }

    #[test]
    fn knows_each_form_by_its_media_type() {
        assert_eq!(form(Some("application/json")).unwrap(), "Encoded(Json)");
        assert_eq!(form(Some("Application/JSON; charset=utf-8")).unwrap(), "Encoded(Json)");
        assert_eq!(form(Some("application/msgpack")).unwrap(), "Encoded(Msgpack)");
        assert_eq!(form(Some("multipart/form-data; boundary=xyz")).unwrap(), "Multipart(\"xyz\")");
        assert_eq!(form(Some("image/png")).unwrap(), "Raw(\"image\")");
        assert_eq!(form(Some("multipart/form-data")), Err(400));
        assert_eq!(form(Some("application/vnd.apache.arrow.stream")).unwrap(), "Encoded(ArrowStream)");
        assert_eq!(form(Some("application/x-npy")).unwrap(), "Encoded(Npy)");
        assert_eq!(form(Some("text/plain; charset=UTF-8")).unwrap(), "Text");
        assert_eq!(form(Some("application/octet-stream")).unwrap(), "Bytes");
        assert_eq!(form(Some("application/json; charset=utf-16")), Err(415));
        assert_eq!(form(Some("application/x-www-form-urlencoded; charset=UTF-8")).unwrap(), "UrlEncoded");
        assert_eq!(form(Some("application/x-www-form-urlencoded; charset=iso-8859-1")), Err(415));
        for refused in [None, Some(""), Some("text/html"), Some("image")] {
            assert_eq!(form(refused), Err(415), "{refused:?}");
        }
    }

    #[test]
    fn a_type_accepts_only_its_own_formats() {
        let takes = |content_type: &str, input: &DataType| {
            BodyForm::for_content_type(Some(&content_type.parse().unwrap()), input).is_ok()
        };
        let (text, number, tensor) =
            (DataType::for_type::<String>(), DataType::for_type::<u8>(), DataType::for_type::<Tensor>());
        for (input, npy, plain) in [(&text, false, true), (&number, false, false), (&tensor, true, false)] {
            assert_eq!((takes("application/x-npy", input), takes("text/plain", input)), (npy, plain), "{input:?}");
            assert!(takes("application/vnd.callboard.envelope", input) && !takes("application/octet-stream", input));
        }
        assert_eq!(accepted(&text).last(), Some(&"text/plain"));
        let file = DataType::for_type::<Media>();
        assert!(takes("application/octet-stream", &file) && !takes("text/plain", &file));
        let arrow = "application/vnd.apache.arrow.stream";
        let tensors = callboard_codec::TensorFields { fields: Vec::new(), stackable: true };
        assert!(takes(arrow, &DataType::value()) && !takes(arrow, &DataType::value().with_tensors(tensors)));
        let fields = DataType::value().with_schema(serde_json::json!({ "type": "object" }));
        assert!(!takes("application/x-npy", &fields) && takes("application/x-npz", &fields));
    }

    #[test]
    fn a_content_type_that_is_not_ascii_is_not_treated_as_missing() {
        let header = HeaderValue::from_bytes(b"\xff\xfe").unwrap();
        let raw = RawBody { field: "image".to_owned(), media_types: vec!["application/octet-stream".to_owned()] };
        let refused = BodyForm::for_content_type(Some(&header), &DataType::value().with_raw_body(raw)).unwrap_err();
        assert_eq!(refused.status().as_u16(), 415);
    }
}
