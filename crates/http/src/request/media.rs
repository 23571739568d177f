//! Which form a body has, and which form its answer gets: decided from `Content-Type` and `Accept` alone.

use axum::http::header::HeaderValue;
use callboard_codec::{DataType, Format};

use crate::error::ApiError;

/// How the bytes of a request become a payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyForm<'a> {
    /// An encoded value.
    Encoded(Format),
    /// `multipart/form-data` with this boundary.
    Multipart(String),
    /// The bytes themselves are the one field of this name.
    Raw(&'a str),
}

impl<'a> BodyForm<'a> {
    /// The form that `content_type` names, or a 415 that lists what the route takes.
    ///
    /// A body without a type is `application/octet-stream` (RFC 9110 §8.3), which only routes for raw bodies take.
    pub(crate) fn of(content_type: Option<&HeaderValue>, input: &'a DataType) -> Result<Self, ApiError> {
        // What nearly every request says, without parsing.
        if content_type.is_some_and(|value| value == "application/json") {
            return Ok(Self::Encoded(Format::Json));
        }
        let text = match content_type.map(HeaderValue::to_str) {
            None => None,
            Some(Ok(text)) => Some(text),
            Some(Err(_)) => return Err(ApiError::unsupported_media_type(Some("?"), &accepted(input).join(", "))),
        };
        let essence = essence(text.unwrap_or(OCTET_STREAM));
        if let Some(charset) = text.and_then(charset).filter(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
            // Of what is read here only JSON and texts have one; a picture does not care.
            if essence == Format::Json.media_type() || essence.starts_with("text/") {
                return Err(ApiError::unsupported_charset(charset));
            }
        }
        if let Some(format) = Format::from_media_type(&essence).filter(|format| BODY_FORMATS.contains(format)) {
            return Ok(Self::Encoded(format));
        }
        if essence == MULTIPART {
            let boundary = multer::parse_boundary(text.unwrap_or_default());
            return boundary
                .map(Self::Multipart)
                .map_err(|_| ApiError::bad_multipart("`boundary` is missing or malformed"));
        }
        match input.raw_body() {
            Some(raw) if raw.media_types.iter().any(|pattern| matches(pattern, &essence)) => Ok(Self::Raw(&raw.field)),
            _ => Err(ApiError::unsupported_media_type(text, &accepted(input).join(", "))),
        }
    }
}

/// The media types that a route takes, for documents and refusals.
pub(crate) fn accepted(input: &DataType) -> Vec<&str> {
    let encoded = BODY_FORMATS.iter().map(|format| format.media_type());
    let raw = input.raw_body().map(|raw| raw.media_types.as_slice()).unwrap_or_default();
    encoded.chain([MULTIPART]).chain(raw.iter().map(String::as_str)).collect()
}

pub(crate) const MULTIPART: &str = "multipart/form-data";
const OCTET_STREAM: &str = "application/octet-stream";

/// The formats of bodies, as they are listed to clients.
pub(crate) const BODY_FORMATS: [Format; 2] = [Format::Json, Format::Msgpack];

/// The formats of answers, the preferred one first.
pub(crate) const REPLY_FORMATS: [Format; 2] = [Format::Json, Format::Msgpack];

/// The answer's format by `Accept` (RFC 9110 §12.5.1): the highest quality wins, JSON where nothing decides.
pub(crate) fn reply_format(accept: Option<&HeaderValue>) -> Result<Format, ApiError> {
    let Some(accept) = accept.filter(|accept| !accept.is_empty()) else { return Ok(Format::Json) };
    if accept == "*/*" || accept == "application/json" {
        return Ok(Format::Json);
    }
    let text = accept.to_str().unwrap_or_default();
    REPLY_FORMATS
        .map(|format| (quality(text, format.media_type()), format))
        .into_iter()
        .rev() // `max_by` keeps the last of equals.
        .filter(|(quality, _)| *quality > 0)
        .max_by_key(|(quality, _)| *quality)
        .map(|(_, format)| format)
        .ok_or_else(|| ApiError::not_acceptable(&REPLY_FORMATS.map(Format::media_type).join(", ")))
}

/// The quality that `accept` gives `media_type`, in thousandths: the most specific range that matches decides.
pub(crate) fn quality(accept: &str, media_type: &str) -> u16 {
    accept
        .split(',')
        .filter_map(|range| {
            let pattern = essence(range);
            matches(&pattern, media_type).then(|| (specificity(&pattern), quality_of(range)))
        })
        .max_by_key(|(specificity, _)| *specificity)
        .map_or(0, |(_, quality)| quality)
}

/// `q=0.8` as 800; without `q`, or with one that is no number, 1000.
fn quality_of(range: &str) -> u16 {
    let q = range.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().ok()).flatten()
    });
    q.map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16)
}

/// An exact type before `image/*` before `*/*`.
fn specificity(pattern: &str) -> u8 {
    match pattern.strip_suffix("/*") {
        Some("*") => 0,
        Some(_) => 1,
        None => 2,
    }
}

/// The value of the parameter `charset`.
fn charset(media_type: &str) -> Option<&str> {
    media_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })
}

/// Type and subtype without parameters, lowercase.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether `pattern`, which may be `*/*` or `image/*`, covers `essence`.
fn matches(pattern: &str, essence: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some("*") => true,
        Some(kind) => essence.split_once('/').is_some_and(|(other, _)| other.eq_ignore_ascii_case(kind)),
        None => pattern.eq_ignore_ascii_case(essence),
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::RawBody;

    use super::*;

    fn form(content_type: Option<&str>) -> Result<String, u16> {
        let raw = RawBody { field: "image".to_owned(), media_types: vec!["image/*".to_owned()] };
        let input = DataType::value().with_raw_body(raw);
        let header = content_type.map(|text| text.parse().unwrap());
        BodyForm::of(header.as_ref(), &input).map(|form| format!("{form:?}")).map_err(|error| error.status().as_u16())
    }

    #[test]
    fn knows_each_form_by_its_media_type() {
        assert_eq!(form(Some("application/json")).unwrap(), "Encoded(Json)");
        assert_eq!(form(Some("Application/JSON; charset=utf-8")).unwrap(), "Encoded(Json)");
        assert_eq!(form(Some("application/msgpack")).unwrap(), "Encoded(Msgpack)");
        assert_eq!(form(Some("multipart/form-data; boundary=xyz")).unwrap(), "Multipart(\"xyz\")");
        assert_eq!(form(Some("image/png")).unwrap(), "Raw(\"image\")");
        assert_eq!(form(Some("multipart/form-data")), Err(400));
        assert_eq!(form(Some("application/vnd.apache.arrow.stream")), Err(415), "known to the codec, not offered here");
        assert_eq!(form(Some("application/json; charset=utf-16")), Err(415));
        for refused in [None, Some(""), Some("text/plain"), Some("image"), Some("application/x-www-form-urlencoded")] {
            assert_eq!(form(refused), Err(415), "{refused:?}");
        }
    }

    #[test]
    fn a_type_that_is_no_text_is_not_taken_for_none() {
        let header = HeaderValue::from_bytes(b"\xff\xfe").unwrap();
        let raw = RawBody { field: "image".to_owned(), media_types: vec!["application/octet-stream".to_owned()] };
        let refused = BodyForm::of(Some(&header), &DataType::value().with_raw_body(raw)).unwrap_err();
        assert_eq!(refused.status().as_u16(), 415);
    }

    #[test]
    fn the_answer_has_the_format_of_the_highest_quality() {
        let reply =
            |accept: &str| reply_format(Some(&accept.parse().unwrap())).map_err(|error| error.status().as_u16());
        assert_eq!(reply_format(None).unwrap(), Format::Json);
        for json in
            ["", "*/*", "application/*", "application/json", "text/html, */*;q=0.1", "application/msgpack;q=0.5, */*"]
        {
            assert_eq!(reply(json), Ok(Format::Json), "{json}");
        }
        for msgpack in
            ["application/msgpack", "application/json;q=0.2, application/msgpack", "*/*, application/json;q=0"]
        {
            assert_eq!(reply(msgpack), Ok(Format::Msgpack), "{msgpack}");
        }
        for refused in ["text/html", "application/json;q=0", "*/*;q=0"] {
            assert_eq!(reply(refused), Err(406), "{refused}");
        }
    }
}
