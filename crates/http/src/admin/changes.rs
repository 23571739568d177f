//! Changes of a running node, as its operator asks for them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse;
use bytes::Bytes;
use callboard_codec::MediaType;
use callboard_core::{ChangeError, ErrorKind};
use serde::Deserialize;
use serde_json::json;

use super::Admin;
use crate::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    replicas: usize,
}

/// `POST /v1/stages/{stage}/replicas`.
pub(super) async fn scale(
    State(admin): State<Admin>,
    Path(stage): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<impl IntoResponse, ApiError> {
    // A form of a web page has another type: one more reason why no page can do this.
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if content_type.and_then(MediaType::parse).is_none_or(|media| media.essence() != JSON) {
        return Err(ApiError::unsupported_media_type(content_type, JSON));
    }
    let Scale { replicas } = serde_json::from_slice(&body).map_err(|error| {
        ApiError::of_kind(ErrorKind::InvalidInput, format!("expected such as {{\"replicas\": 3}}: {error}"))
    })?;
    admin.0.node.scale_stage(&stage, replicas).await?;
    Ok(Json(json!({ "stage": stage, "replicas": replicas })))
}

const JSON: &str = "application/json";

/// `DELETE /v1/routes/{route}`.
pub(super) async fn remove_route(
    State(admin): State<Admin>,
    Path(route): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let route = format!("/{route}");
    let changed = admin.0.node.remove_route(&route).await?;
    Ok(Json(json!({ "route": route, "revision": changed.revision() })))
}

/// `POST /v1/drain`.
pub(super) async fn drain(State(admin): State<Admin>) -> impl IntoResponse {
    admin.0.drain.notify_one();
    (StatusCode::ACCEPTED, Json(json!({ "draining": true })))
}

pub(super) async fn not_found(uri: Uri) -> ApiError {
    ApiError::no_such_page(uri.path(), "`GET /v1/status` tells what runs")
}

pub(super) async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::method_not_allowed(&method, "GET, POST, DELETE")
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        let kind = match error {
            ChangeError::NoSuchRoute { .. } | ChangeError::NoSuchStage { .. } => ErrorKind::NotFound,
            ChangeError::Busy { .. } => ErrorKind::Overloaded,
            ChangeError::Ending => ErrorKind::Unavailable,
            ChangeError::Stage { .. } | ChangeError::Superseded => ErrorKind::Failed,
            ChangeError::Internal(_) => ErrorKind::Internal,
            _ => ErrorKind::InvalidInput,
        };
        Self::of_kind(kind, error.to_string())
    }
}
