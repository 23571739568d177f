//! An outcome as one answer, in the first accepted form that it fits.
//!
//! A form that holds only some outcomes is passed over where this one does not fit; when none is left, the answer is 406
//! although the call has run: only then is it known. An outcome that a form for everything cannot hold (NaN in JSON) is an
//! error of that form, 500, and not silently sent as another.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{EncodeError, Format, Payload, Value};

use super::form::{Accepted, ReplyForm};
use super::parts;
use crate::convert;
use crate::error::ApiError;

/// The answer to a call that succeeded.
pub(crate) async fn whole(payload: Payload, accepted: Accepted) -> Result<Response, ApiError> {
    let Accepted { mut best, others } = accepted;
    let mut others = others.into_iter();
    loop {
        match encode(&payload, best).await? {
            Ok(body) => return Ok(response(body, best)),
            Err(error) if best.is_universal() => return Err(ApiError::unencodable(error)),
            Err(misfit) => match others.next() {
                Some(next) => best = next,
                None => return Err(ApiError::outcome_not_acceptable(best.media_type(), &misfit)),
            },
        }
    }
}

/// What does not fit its form.
type Misfit = EncodeError;

async fn encode(payload: &Payload, form: ReplyForm) -> Result<Result<Body, Misfit>, ApiError> {
    Ok(match form {
        // In pieces that share the outcome's memory.
        ReplyForm::Encoded(Format::Envelope) => payload.to_envelope().map(parts::body_of),
        ReplyForm::Encoded(format) => convert::encode(payload.clone(), format).await?.map(Body::from),
        ReplyForm::Text => text_of(payload).map(Body::from),
        ReplyForm::Bytes => bytes_of(payload).map(Body::from),
    })
}

fn response(body: Body, form: ReplyForm) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    response
}

fn text_of(payload: &Payload) -> Result<String, Misfit> {
    match (payload.downcast_ref::<String>(), payload.downcast_ref::<Value>()) {
        (Some(text), _) | (_, Some(Value::Str(text))) => Ok(text.clone()),
        _ => Err(misfit(payload, "no text")),
    }
}

fn bytes_of(payload: &Payload) -> Result<Bytes, Misfit> {
    match payload.downcast_ref::<Value>() {
        Some(Value::Bytes(bytes)) => Ok(bytes.clone()),
        _ => Err(misfit(payload, "no byte string")),
    }
}

fn misfit(payload: &Payload, what: &str) -> Misfit {
    let kind = payload.downcast_ref::<Value>().map_or_else(|| payload.type_name(), Value::kind);
    serde::ser::Error::custom(format!("the outcome, a `{kind}`, is {what}"))
}
