//! Changes of a running node, for operators.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use callboard_codec::MediaType;
use callboard_core::ErrorKind;
use callboard_core::description::RouteDescription;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Admin;
use super::models::VERBS;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::protocol::{BoxedErrors, ProtocolRequest};
use crate::request::short::short_body;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleRequest {
    replicas: usize,
}

/// `POST /v1/stages/{stage}/replicas`.
pub(super) async fn scale(
    State(admin): State<Admin>,
    Extension(config): Extension<Arc<HttpConfig>>,
    stage: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<impl IntoResponse, ApiError> {
    let stage = named(stage)?;
    let replicas = replicas_of(&mut request, &config).await?;
    Ok(Json(scale_stage(&admin, &stage, replicas).await?))
}

/// Reads how many replicas a request asks for.
pub(super) async fn replicas_of(request: &mut Request, config: &HttpConfig) -> Result<usize, ApiError> {
    // A form of a web page has another type: a further guard against pages.
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if content_type.and_then(MediaType::parse).is_none_or(|media| media.essence() != JSON) {
        return Err(ApiError::unsupported_media_type(content_type, JSON));
    }
    let body = short_body(request.body_mut(), config.body_progress_timeout).await?;
    let ScaleRequest { replicas } = serde_json::from_slice(&body).map_err(|error| {
        ApiError::new(ErrorKind::InvalidInput, format!("expected such as {{\"replicas\": 3}}: {error}"))
    })?;
    Ok(replicas)
}

/// Scales a stage. The answer has it with its replicas.
pub(super) async fn scale_stage(admin: &Admin, stage: &str, replicas: usize) -> Result<Value, ApiError> {
    admin.0.node.scale_stage(stage, replicas).await?;
    Ok(json!({ "stage": stage, "replicas": replicas }))
}

const JSON: &str = "application/json";

/// `DELETE /v1/routes/{route}`.
pub(super) async fn remove_route(
    State(admin): State<Admin>,
    route: Result<Path<String>, PathRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let route = format!("/{}", named(route)?);
    let changed = admin.0.node.remove_route(&route).await?;
    Ok(Json(json!({ "route": route, "revision": changed.revision() })))
}

/// `POST /v1/routes/{route}/promote` and `…/rollback`.
pub(super) async fn end_rollout(
    State(admin): State<Admin>,
    path: Result<Path<String>, PathRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let path = named(path)?;
    match path.rsplit_once('/') {
        Some((route, verb @ ("promote" | "rollback"))) => {
            Ok(Json(end_rollout_of(&admin, &format!("/{route}"), verb).await?))
        }
        _ => Err(ApiError::no_such_page(&format!("/v1/routes/{path}"), ROLLOUT_PATHS)),
    }
}

/// Promotes the candidate of a route, or rolls it back. The answer has the rollout as it is then.
pub(super) async fn end_rollout_of(admin: &Admin, route: &str, verb: &str) -> Result<Value, ApiError> {
    let node = &admin.0.node;
    if verb == "promote" {
        node.promote_route(route).await?
    } else {
        node.roll_back_route(route).await?
    }
    Ok(rollout_now(admin, route))
}

/// A route with its running or last rollout.
pub(super) fn rollout_now(admin: &Admin, route: &str) -> Value {
    let open = |described: &RouteDescription| described.name.as_str() == route && !described.closed;
    let described = admin.0.node.describe().routes.into_iter().find(open);
    json!({ "route": route, "rollout": described.and_then(|described| described.rollout) })
}

const ROLLOUT_PATHS: &str = "`POST /v1/routes/{route}/promote` and `POST /v1/routes/{route}/rollback` end a rollout";

/// A path that is no page of the listener: a protocol may answer operators there.
pub(super) async fn below_no_page(
    State(admin): State<Admin>,
    Extension(config): Extension<Arc<HttpConfig>>,
    request: Request,
) -> Result<Response, ApiError> {
    let Some(protocol) = admin.protocol_of(&request) else { return Err(not_found(request.uri())) };
    let (head, body) = request.into_parts();
    let request = ProtocolRequest { head: &head, body: &mut BoxedErrors(body) };
    protocol.answer_admin(&admin.0.client, &config, request).await
}

/// `POST /v1/drain`.
pub(super) async fn drain(State(admin): State<Admin>) -> impl IntoResponse {
    admin.0.drain.notify_one();
    (StatusCode::ACCEPTED, Json(json!({ "draining": true })))
}

fn not_found(uri: &Uri) -> ApiError {
    ApiError::no_such_page(uri.path(), "`GET /v1/status` tells what runs")
}

pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let allowed = match uri.path() {
        path if path.starts_with("/v1/stages/") => "POST",
        path if path.starts_with("/v1/routes/") => "DELETE, POST",
        "/v1/drain" => "POST",
        path if path.starts_with("/v1/actors/") && path.matches('/').count() > 3 => "POST",
        path if path.starts_with("/v1/models/") && VERBS.iter().any(|verb| path.ends_with(verb)) => "POST",
        _ => "GET, HEAD",
    };
    ApiError::method_not_allowed(&method, allowed)
}

/// The name in a path. A path that is not UTF-8 names nothing.
pub(super) fn named(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(name) = path.map_err(|error| ApiError::new(ErrorKind::NotFound, error.body_text()))?;
    Ok(name)
}
