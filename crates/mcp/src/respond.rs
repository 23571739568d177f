//! Refusals, and responses that are JSON.

use callboard_core::ErrorKind;
use callboard_http::axum::body::Body;
use callboard_http::axum::http::StatusCode;
use callboard_http::axum::http::header::{CONTENT_TYPE, HeaderValue};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;

use crate::answer::Asked;
use crate::era::Era;
use crate::rpc::{self, INTERNAL_ERROR, INVALID_REQUEST, Id, PARSE_ERROR, REFUSED, RpcError};

/// A request that is not answered with a result.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// By the protocol.
    Rpc { id: Option<Id>, era: Era, error: RpcError },
    /// By the edge, with its status; perhaps before the id was read.
    Http(ApiError, Option<Id>),
}

impl Refusal {
    pub(crate) fn rpc(asked: &Asked, error: RpcError) -> Self {
        Self::Rpc { id: Some(asked.id.clone()), era: asked.era, error }
    }

    /// Before the request was read.
    pub(crate) fn unread((id, error): (Option<Id>, RpcError)) -> Self {
        Self::Rpc { id, era: Era::Stateless, error }
    }
}

impl<E: Into<ApiError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Http(error.into(), None)
    }
}

/// The response of an edge's refusal.
pub(crate) fn refused(error: &ApiError, id: Option<&Id>) -> Response {
    let body = rpc::error(id, &RpcError::new(code_of(error), error.message()));
    let mut response = json_response(error.status().as_u16(), body);
    error.add_headers(response.headers_mut());
    response
}

fn code_of(error: &ApiError) -> i32 {
    match (error.status(), error.error_type()) {
        (StatusCode::BAD_REQUEST, Some("malformed_body" | "broken_body")) => PARSE_ERROR,
        _ if error.kind() == ErrorKind::InvalidInput && error.status() != StatusCode::METHOD_NOT_ALLOWED => {
            INVALID_REQUEST
        }
        (status, _) if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE => INTERNAL_ERROR,
        _ => REFUSED,
    }
}

pub(crate) fn json_response(status: u16, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to a notification.
pub(crate) fn accepted() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
