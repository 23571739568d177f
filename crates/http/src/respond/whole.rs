//! An outcome as one response, in the first accepted form that fits.
//!
//! A form for some types is skipped if the outcome does not fit. If no form is left, the response is 406 although the
//! call has run: this is known only then. If a form for every type cannot hold the outcome (NaN in JSON), the response
//! is 500, and no other form is tried.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{EncodeError, EncodeErrorKind, Envelope, Format, Media, Payload, Value};
use callboard_core::ResponseFields;
use callboard_core::edge::{CodecBudget, LARGE_BYTES};

use super::chosen::ChosenResponse;
use super::compressor::compress_off_thread;
use super::form::{AcceptedForms, ReplyForm};
use super::parts;
use super::plain_msgpack;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::file_type::begins_as;
use crate::request::coding::{Compressibility, ContentCoding};
use crate::request::head::RequestHead;

/// The rules for compressing a response.
#[derive(Debug)]
pub struct ResponseCompression {
    /// Shared with the request, and parsed only when it is needed.
    accept_encoding: Option<HeaderValue>,
    /// A shorter response is not compressed.
    from_bytes: usize,
}

impl ResponseCompression {
    /// Reads `accept-encoding`; the configuration sets the least length.
    #[must_use]
    pub fn new(accept_encoding: Option<&HeaderValue>, config: &HttpConfig) -> Self {
        Self { accept_encoding: accept_encoding.cloned(), from_bytes: config.compress_from_bytes }
    }

    /// The coding for this many bytes.
    #[must_use]
    pub fn for_bytes(&self, compressibility: Compressibility, bytes: usize) -> Option<ContentCoding> {
        let accept_encoding = self.accept_encoding.as_ref().filter(|_| bytes >= self.from_bytes)?;
        ContentCoding::for_response(accept_encoding.to_str().ok()?, compressibility)
    }

    /// Adds the headers of the coding, and tells caches that the response depends on `accept-encoding`.
    pub fn mark(&self, coding: Option<ContentCoding>, bytes: usize, headers: &mut HeaderMap) {
        if let Some(coding) = coding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
        }
        if bytes >= self.from_bytes {
            headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        }
    }

    /// A stream is compressed in small pieces, so it counts as dense.
    pub(crate) fn for_stream(&self) -> Option<ContentCoding> {
        ContentCoding::for_response(self.accept_encoding.as_ref()?.to_str().ok()?, Compressibility::Dense)
    }
}

/// The response to a call that succeeded.
pub(crate) async fn whole(
    payload: Payload,
    accepted: AcceptedForms,
    compression: &ResponseCompression,
    budget: &CodecBudget<'_>,
) -> Result<Response, ApiError> {
    let AcceptedForms { mut best, others } = accepted;
    let (mut others, mut payload) = (others.into_iter(), payload);
    loop {
        match encode(payload, best, budget).await? {
            Ok(encoded) => return response(encoded, best, compression, budget).await,
            Err((error, _)) if best.is_universal() || !is_of_form(&error) => {
                return Err(ApiError::unencodable(error));
            }
            Err((mismatch, back)) => match others.next() {
                Some(next) => (best, payload) = (next, back),
                None => {
                    let media_type = (best != ReplyForm::OfCode).then(|| best.media_type());
                    return Err(ApiError::outcome_not_acceptable(media_type, &mismatch));
                }
            },
        }
    }
}

/// Whether another form may hold the outcome. Only some have limits of their own: NumPy's pads each text.
fn is_of_form(error: &EncodeError) -> bool {
    matches!(error.kind(), EncodeErrorKind::Unsupported | EncodeErrorKind::LimitExceeded)
}

/// The response to a call that succeeded, and of which its code has chosen or its route declares something.
pub(crate) async fn chosen(
    fields: &ResponseFields,
    payload: Payload,
    accepted: AcceptedForms,
    request: &HeaderMap,
    compression: &ResponseCompression,
    budget: &CodecBudget<'_>,
) -> Result<Response, ApiError> {
    let mut chosen = ChosenResponse::try_new(fields)?;
    if chosen.is_empty(&payload) {
        let mut response = Response::new(Body::empty());
        // A large tree is dropped off this thread.
        budget.run_outcome(payload.size_up_to(LARGE_BYTES), move || drop(payload.clone())).await?;
        budget.settle(0)?;
        chosen.apply(&mut response);
        return Ok(response);
    }
    let accept = RequestHead::read(request)?.accept;
    let accepted = chosen.forms(&payload, accept.as_deref()).unwrap_or(accepted);
    let whole = whole(payload, accepted, compression, budget).await;
    let mut response = whole.map_err(|error| chosen.explained(error))?;
    chosen.apply(&mut response);
    Ok(response)
}

/// An outcome in its form.
enum Encoded {
    Bytes(Bytes),
    /// In pieces that share the memory of the outcome.
    Envelope(Envelope),
}

impl Encoded {
    /// As one piece: an envelope is copied.
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Envelope(envelope) => envelope.into_bytes(),
        }
    }
}

/// Encodes the outcome, or returns it if it does not fit. It is dropped on the same thread: dropping a large tree takes
/// as long as encoding it.
async fn encode(
    payload: Payload,
    form: ReplyForm,
    budget: &CodecBudget<'_>,
) -> Result<Result<Encoded, (EncodeError, Payload)>, ApiError> {
    let known = match form {
        // Large parts are shared, not encoded.
        ReplyForm::Encoded(Format::Envelope) | ReplyForm::Bytes | ReplyForm::File(_) | ReplyForm::OfCode => 0,
        _ => payload.size_up_to(LARGE_BYTES),
    };
    let write = move || encode_sync(&payload, form).map_err(|mismatch| (mismatch, payload.clone()));
    Ok(match budget.run_outcome(known, write).await? {
        Ok(Encoded::Bytes(bytes)) if form == ReplyForm::PlainMsgpack => {
            Ok(Encoded::Bytes(plainly(bytes, budget).await?))
        }
        encoded => encoded,
    })
}

fn encode_sync(payload: &Payload, form: ReplyForm) -> Result<Encoded, EncodeError> {
    match form {
        ReplyForm::Encoded(Format::Envelope) => payload.to_envelope().map(Encoded::Envelope),
        ReplyForm::Encoded(format) => payload.encode(format).map(Encoded::Bytes),
        ReplyForm::PlainMsgpack => payload.encode(Format::Msgpack).map(Encoded::Bytes),
        ReplyForm::Text => text_of(payload).map(|text| Encoded::Bytes(text.into())),
        ReplyForm::Bytes => bytes_of(payload).map(Encoded::Bytes),
        ReplyForm::File(media_type) => match bytes_of(payload)? {
            bytes if begins_as(&bytes, media_type) => Ok(Encoded::Bytes(bytes)),
            _ => Err(mismatch(payload, payload.value()?, &format!("no {media_type}"))),
        },
        ReplyForm::OfCode => Err(mismatch(payload, payload.value()?, "of no media type that its code has chosen")),
    }
}

/// The same without extension types. Most outcomes have none and are unchanged.
async fn plainly(bytes: Bytes, budget: &CodecBudget<'_>) -> Result<Bytes, ApiError> {
    let known = bytes.len();
    let looked_at = bytes.clone();
    let length = budget.run_outcome(known, move || plain_msgpack::plain_length(&looked_at)).await?;
    let Some(length) = length else { return Ok(bytes) };
    budget.charge_outcome(length)?;
    let plain = budget.run_outcome(length, move || plain_msgpack::plain(&bytes, length)).await?;
    Ok(plain.into())
}

async fn response(
    encoded: Encoded,
    form: ReplyForm,
    compression: &ResponseCompression,
    budget: &CodecBudget<'_>,
) -> Result<Response, ApiError> {
    let length = match &encoded {
        Encoded::Bytes(bytes) => bytes.len(),
        Encoded::Envelope(envelope) => envelope.len(),
    };
    budget.settle(length)?;
    let coding = compression
        .for_bytes(form.compressibility(), length)
        .filter(|coding| budget.can_compress(coding.compressor_bytes(), length));
    let body = match (encoded, coding) {
        (Encoded::Bytes(bytes), None) => Body::from(budget.charged(bytes)),
        (Encoded::Envelope(envelope), None) => {
            parts::body_of_parts(envelope.into_parts().into_iter().map(|part| budget.charged(part)).collect())
        }
        (encoded, Some(coding)) => {
            let compressed = compress_off_thread(budget, encoded.into_bytes(), coding).await?;
            budget.settle(compressed.len())?;
            Body::from(budget.charged(compressed))
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    compression.mark(coding, length, headers);
    Ok(response)
}

pub(super) fn text_of(payload: &Payload) -> Result<String, EncodeError> {
    match (payload.downcast_ref::<String>(), payload.value()?) {
        (Some(text), _) | (_, Some(Value::Str(text))) => Ok(text.clone()),
        (_, value) => Err(mismatch(payload, value, "no text")),
    }
}

fn bytes_of(payload: &Payload) -> Result<Bytes, EncodeError> {
    match (payload.downcast_ref::<Media>(), payload.value()?) {
        (Some(media), _) => Ok(media.bytes().clone()),
        (_, Some(Value::Bytes(bytes))) => Ok(bytes.clone()),
        (_, value) => Err(mismatch(payload, value, "no byte string")),
    }
}

fn mismatch(payload: &Payload, value: Option<&Value>, reason: &str) -> EncodeError {
    let kind = value.map_or_else(|| payload.type_name(), Value::kind);
    serde::ser::Error::custom(format!("the outcome, a `{kind}`, is {reason}"))
}
