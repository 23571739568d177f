//! What user code has chosen of a successful response, or its route declares: status, headers and media type.
//!
//! A `content-type` among the headers is the media type of an output that is a text or bytes: it is sent as it is, if
//! the request accepts that type. If not, the output has the form that the request accepts, so a client that asks for
//! envelopes reads its value. An invalid header, or one that is the edge's own, fails the call.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, LAST_MODIFIED, VARY,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use callboard_codec::{Format, MediaType, Payload, Value};
use callboard_core::{ErrorKind, ResponseFields};

use super::form::{AcceptedForms, ReplyForm};
use crate::error::{ApiError, header_of_response};

/// The statuses of a response without a body (RFC 9110 §15).
pub(crate) const WITHOUT_BODY: [StatusCode; 3] =
    [StatusCode::NO_CONTENT, StatusCode::RESET_CONTENT, StatusCode::NOT_MODIFIED];

/// The headers by which caches keep a response.
const OF_CACHES: [HeaderName; 4] = [CACHE_CONTROL, ETAG, EXPIRES, LAST_MODIFIED];

/// The choice of user code, checked.
#[derive(Debug, Default)]
pub(crate) struct ChosenResponse {
    status: Option<StatusCode>,
    headers: Vec<(HeaderName, HeaderValue)>,
    media_type: Option<HeaderValue>,
    /// Whether the output is sent in its chosen media type.
    is_raw: bool,
}

impl ChosenResponse {
    /// Checks the choice. An error says which header is refused.
    pub(crate) fn try_new(fields: &ResponseFields) -> Result<Self, ApiError> {
        let status = fields.status().and_then(|status| StatusCode::from_u16(status).ok());
        let mut chosen = Self { status, ..Self::default() };
        for (name, value) in fields.headers() {
            let header = header_of_response(name, value);
            let (name, value) = header.map_err(|refusal| ApiError::new(ErrorKind::Failed, refusal))?;
            if name == CONTENT_TYPE {
                chosen.media_type = Some(value);
            } else {
                chosen.headers.push((name, value));
            }
        }
        Ok(chosen)
    }

    /// The same for the head of a stream, which has the media type that its client accepts, and a body.
    pub(crate) fn try_for_stream(fields: &ResponseFields) -> Result<Self, ApiError> {
        let chosen = Self::try_new(fields)?;
        if chosen.media_type.is_some() {
            return Err(ApiError::new(ErrorKind::Failed, "a stream cannot choose its header `content-type`"));
        }
        match chosen.status.filter(|status| WITHOUT_BODY.contains(status)) {
            Some(status) => Err(ApiError::new(ErrorKind::Failed, format!("a stream cannot have the status {status}"))),
            None => Ok(chosen),
        }
    }

    /// Whether the response has no body. A redirect has one only if its code gives an output.
    pub(crate) fn is_empty(&self, payload: &Payload) -> bool {
        self.status.is_some_and(|status| WITHOUT_BODY.contains(&status) || status.is_redirection() && is_null(payload))
    }

    /// The forms of an output in its chosen media type; `None` without one, or if the request does not accept it, or if
    /// there is no output.
    pub(crate) fn forms(&mut self, payload: &Payload, accept: Option<&HeaderValue>) -> Option<AcceptedForms> {
        let media_type = self.media_type.as_ref()?.to_str().ok()?;
        if is_null(payload) || !accepts(accept, media_type) {
            return None;
        }
        let essence = MediaType::without_parameters(media_type);
        let is_json = essence == Format::Json.media_type() || essence.ends_with("+json");
        self.is_raw = true;
        let json = is_json.then_some(ReplyForm::Encoded(Format::Json));
        Some(AcceptedForms { best: ReplyForm::Text, others: std::iter::once(ReplyForm::Bytes).chain(json).collect() })
    }

    /// The error of an output that has no such form.
    pub(crate) fn explained(&self, error: ApiError) -> ApiError {
        match &self.media_type {
            Some(media_type) if self.is_raw && error.status() == StatusCode::NOT_ACCEPTABLE => {
                let message = format!("the media type {media_type:?} is for an output that is a text or bytes");
                ApiError::new(ErrorKind::Failed, message)
            }
            _ => error,
        }
    }

    /// Puts the choice into the response to a call.
    pub(crate) fn apply(self, response: &mut Response) {
        *response.status_mut() = self.status.unwrap_or_default();
        let headers = response.headers_mut();
        let varies = self.media_type.is_some() || self.headers.iter().any(|(name, _)| OF_CACHES.contains(name));
        for (name, _) in self.headers.iter().filter(|(name, _)| name != VARY) {
            headers.remove(name);
        }
        for (name, value) in self.headers {
            // The name of a file belongs to its bytes.
            if name != CONTENT_DISPOSITION || self.is_raw {
                headers.append(name, value);
            }
        }
        if let Some(media_type) = self.media_type.filter(|_| self.is_raw) {
            headers.insert(CONTENT_TYPE, media_type);
        }
        if varies {
            // A cache must not give the form that one client accepts to another one.
            headers.append(VARY, HeaderValue::from_static("accept"));
        }
    }
}

fn is_null(payload: &Payload) -> bool {
    matches!(payload.value(), Ok(Some(Value::Null)))
}

/// Whether a request with this `accept` accepts a media type.
pub(crate) fn accepts(accept: Option<&HeaderValue>, media_type: &str) -> bool {
    accept.is_none_or(|accept| !MediaType::rank(accept.to_str().unwrap_or("-"), &[media_type]).is_empty())
}
