//! The models of the node's repository, for operators: `/v1/models`.
//!
//! - `GET /v1/models?limit=100&after=NAME`: a page of the models, in the order of their names.
//! - `GET /v1/models/{name}`: one of them.
//! - `POST /v1/models/{name}/load`, `/unload`: answered when callers see the change, with the model as it is then.
//! - `POST /v1/models/{name}/canary?share=0.05` and `…/shadow`: begin a rollout of the model made again, or with
//!   `&version=3` of that version; `&min_calls=500` are the calls that a promotion needs. Answered with the rollout.
//! - `POST /v1/models/{name}/promote`, `/rollback`: as below `/v1/routes`.
//! - `POST /v1/models/{name}/scale?version=3` with `{"replicas": 2}`: as `/v1/stages/{stage}/replicas`, for the stage
//!   of the model's default version or of that one.
//! - `PUT /v1/models/{name}/versions/{version}` with the bytes of a model file, if the repository takes any, and
//!   `DELETE` of the same path.
//!
//! * **Full:** [`MAX_UPLOADS`] at a time; another one is refused with 429, before its body is read.
//! * **Late:** a body that stops arriving, or arrives too slowly, is 408. Its bytes are removed.
//!
//! The name of a model may contain slashes, as its route does.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::BytesMut;
use callboard_core::edge::{Pace, PaceLimits};
use callboard_core::{Deadline, ErrorKind, Rollout};
use hyper::body::Body as _;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Admin;
use super::changes::{end_rollout_of, method_not_allowed, named, replicas_of, rollout_now, scale_stage};
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::model_repository::{ModelRepository, RepositoryError, RepositoryModel, RepositoryVersion};

/// Models of one page.
const MAX_LIMIT: usize = 1000;

const DEFAULT_LIMIT: usize = 100;

/// The query of a list.
struct PageQuery {
    limit: usize,
    after: Option<String>,
}

impl PageQuery {
    fn read(query: &str) -> Result<Self, ApiError> {
        let invalid = |message: String| ApiError::new(ErrorKind::InvalidInput, message);
        let mut page = Self { limit: DEFAULT_LIMIT, after: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
            match key {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    let wrong = || invalid(format!("limit: expected a whole number from 1 to {MAX_LIMIT}"));
                    page.limit = limit.ok_or_else(wrong)?;
                }
                "after" => page.after = Some(value.into_owned()),
                _ => return Err(invalid("a list has the parameters `limit` and `after`".to_owned())),
            }
        }
        Ok(page)
    }
}

#[derive(Serialize)]
struct Page {
    models: Vec<ListedModel>,
    /// The value of `after` for the next page.
    next: Option<String>,
}

#[derive(Serialize)]
struct ListedModel {
    name: String,
    /// Whether its own route is open.
    served: bool,
    default_version: Option<u64>,
    reason: Option<String>,
    /// How long its load has taken so far, while there is one.
    loading_seconds: Option<f64>,
    versions: Vec<RepositoryVersion>,
}

/// `GET /v1/models`.
pub(super) async fn list(State(admin): State<Admin>, uri: Uri) -> Result<impl IntoResponse, ApiError> {
    let PageQuery { limit, after } = PageQuery::read(uri.query().unwrap_or_default())?;
    let mut models = repository(&admin)?.models();
    models.retain(|model| after.as_ref().is_none_or(|after| model.name > *after));
    let next = models.get(limit).map(|_| models[limit - 1].name.clone());
    models.truncate(limit);
    let models = models.into_iter().map(|model| listed(&admin, model)).collect();
    Ok(Json(Page { models, next }))
}

fn rollout_of(verb: &str, query: &str) -> Result<(Option<u64>, Rollout), ApiError> {
    let invalid = || {
        let expected = "`share` from 0 to 1, and `version` and `min_calls`, whole numbers";
        ApiError::new(ErrorKind::InvalidInput, format!("a rollout has the parameters {expected}"))
    };
    let (mut share, mut version, mut min_calls) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').ok_or_else(invalid)? {
            ("share", value) => share = Some(value.parse::<f64>().map_err(|_| invalid())?),
            ("version", value) => version = Some(value.parse::<u64>().map_err(|_| invalid())?),
            ("min_calls", value) => min_calls = Some(value.parse::<u64>().map_err(|_| invalid())?),
            _ => return Err(invalid()),
        }
    }
    let share = share.ok_or_else(invalid)?;
    let rollout = if verb == "shadow" { Rollout::shadow(share) } else { Rollout::canary(share) };
    Ok((version, min_calls.into_iter().fold(rollout, Rollout::min_calls)))
}

/// The query of a change of one version.
fn version_of(query: &str) -> Result<Option<u64>, ApiError> {
    let number = query.strip_prefix("version=").map(str::parse);
    match number {
        None if query.is_empty() => Ok(None),
        Some(Ok(version)) => Ok(Some(version)),
        _ => Err(ApiError::new(ErrorKind::InvalidInput, "it has the parameter `version`, a whole number")),
    }
}

/// The last part of the path of a change, after the name of the model.
pub(super) const VERBS: [&str; 7] = ["load", "unload", "canary", "shadow", "promote", "rollback", "scale"];

/// Answers the paths below `/v1/models/`.
pub(super) async fn below(
    State(admin): State<Admin>,
    method: Method,
    uri: Uri,
    Extension(config): Extension<Arc<HttpConfig>>,
    path: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let path = named(path)?;
    let version = path.rsplit_once("/versions/");
    let changed = path.rsplit_once('/').filter(|(_, verb)| VERBS.contains(verb));
    match (&method, changed) {
        (&Method::POST, Some((name, verb @ ("promote" | "rollback")))) => {
            Ok(Json(end_rollout_of(&admin, &format!("/{name}"), verb).await?).into_response())
        }
        (&Method::POST, Some((name, "scale"))) => {
            let version = version_of(uri.query().unwrap_or_default())?;
            let replicas = replicas_of(&mut request, &config).await?;
            let stage = repository(&admin)?.stage_of(&format!("/{name}"), version);
            let stage = stage.map_err(|error| refused(name, "scale", error))?;
            Ok(Json(scale_stage(&admin, &stage, replicas).await?).into_response())
        }
        (&Method::POST, Some((name, verb))) => {
            let (repository, route) = (repository(&admin)?, format!("/{name}"));
            let change = match verb {
                "load" => repository.load(&route),
                "unload" => repository.unload(&route),
                _ => {
                    let (version, rollout) = rollout_of(verb, uri.query().unwrap_or_default())?;
                    repository.roll_out(&route, version, rollout)
                }
            };
            change.await.map_err(|error| refused(name, verb, error))?;
            Ok(match verb {
                "load" | "unload" => Json(described(&admin, name)?).into_response(),
                _ => Json(rollout_now(&admin, &route)).into_response(),
            })
        }
        (&Method::PUT, _) if let Some((name, version)) = version => {
            upload(&admin, name, version, request, &config).await?;
            Ok(Json(described(&admin, name)?).into_response())
        }
        (&Method::DELETE, _) if let Some((name, version)) = version => {
            let removal = writable(&admin)?.0.remove_version(name, version);
            removal.await.map_err(|error| refused(name, "remove a version of", error))?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        (&Method::GET | &Method::HEAD, _) => Ok(Json(described(&admin, &path)?).into_response()),
        _ => Err(method_not_allowed(method, uri).await),
    }
}

/// The repository, if it takes uploads, and the most bytes of one.
fn writable(admin: &Admin) -> Result<(&dyn ModelRepository, u64), ApiError> {
    let repository = repository(admin)?;
    let refused = || {
        let message = "this node takes no models from its operators: `models.uploads` (--model-uploads) is not set";
        ApiError::new(ErrorKind::PermissionDenied, message)
    };
    Ok((repository, repository.max_upload_bytes().ok_or_else(refused)?))
}

/// Uploads at a time. Each may fill the disk up to the limit of one, and a slow one must not keep out the others.
pub(super) const MAX_UPLOADS: usize = 4;

/// Chunks are written together, off the runtime's threads.
const WRITE_BYTES: usize = 1 << 20;

/// Takes a model file.
async fn upload(
    admin: &Admin,
    name: &str,
    version: &str,
    request: Request,
    config: &HttpConfig,
) -> Result<(), ApiError> {
    let (repository, max_bytes) = writable(admin)?;
    let busy = |_| ApiError::new(ErrorKind::Overloaded, format!("{MAX_UPLOADS} other models are being uploaded"));
    let _turn = admin.0.uploads.try_acquire().map_err(busy)?;
    let mut body = request.into_body();
    if body.size_hint().lower() > max_bytes {
        return Err(ApiError::body_too_large(max_bytes));
    }
    let not_written = |error: io::Error| {
        ApiError::new(ErrorKind::Internal, format!("failed to write version {version} of `{name}`: {error}"))
    };
    let mut upload = repository.begin_upload(name, version).map_err(|error| refused(name, "upload", error))?;
    let (mut received, mut buffer, mut is_whole) = (0, BytesMut::new(), false);
    // A large model may take long: only its pace counts.
    let limits =
        PaceLimits::new(config.body_progress_timeout, config.min_bytes_per_second).within(Deadline::MAX_TIMEOUT);
    let mut pace = Pace::new(Instant::now(), limits);
    while !is_whole {
        match pace.wait_for(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await? {
            None => is_whole = true,
            Some(frame) => {
                let frame = frame.map_err(|error| ApiError::broken_body(&error))?;
                let Ok(chunk) = frame.into_data() else { continue };
                received += chunk.len() as u64;
                pace.moved(Instant::now(), chunk.len());
                if received > max_bytes {
                    return Err(ApiError::body_too_large(max_bytes));
                }
                buffer.extend_from_slice(&chunk);
            }
        }
        if is_whole || buffer.len() >= WRITE_BYTES {
            let (chunk, began) = (buffer.split(), Instant::now());
            let written = spawn_blocking(move || upload.write(&chunk).map(|()| upload)).await;
            upload = written.map_err(io::Error::other).flatten().map_err(not_written)?;
            pace.paused(began.elapsed());
        }
    }
    repository.finish_upload(upload).await.map_err(|error| refused(name, "upload", error))
}

fn repository(admin: &Admin) -> Result<&dyn ModelRepository, ApiError> {
    let missing = || ApiError::new(ErrorKind::NotFound, "this node has no repository of models");
    admin.0.models.get().map(|repository| &**repository).ok_or_else(missing)
}

fn described(admin: &Admin, name: &str) -> Result<ListedModel, ApiError> {
    let model = repository(admin)?.models().into_iter().find(|model| model.name == name);
    let missing = || ApiError::new(ErrorKind::NotFound, format!("there is no model `{name}`"));
    Ok(listed(admin, model.ok_or_else(missing)?))
}

fn listed(admin: &Admin, model: RepositoryModel) -> ListedModel {
    let RepositoryModel { name, default_version, versions, reason, loading } = model;
    let served = admin.0.client.route(&format!("/{name}")).is_some();
    ListedModel { name, served, default_version, reason, loading_seconds: loading.map(seconds), versions }
}

/// Seconds, rounded to tenths.
fn seconds(loading: Duration) -> f64 {
    (loading.as_secs_f64() * 10.0).round() / 10.0
}

/// The models that are being loaded, for the status of the node.
pub(super) fn loading(models: &dyn ModelRepository) -> Vec<Value> {
    let models = models.models().into_iter();
    let loading = |model: RepositoryModel| {
        model.loading.map(|loading| json!({ "name": model.name, "seconds": seconds(loading) }))
    };
    models.filter_map(loading).collect()
}

fn refused(name: &str, verb: &str, error: RepositoryError) -> ApiError {
    match error {
        RepositoryError::Unknown => ApiError::new(ErrorKind::NotFound, format!("there is no model `{name}`")),
        RepositoryError::NotServed(version) => {
            ApiError::new(ErrorKind::NotFound, format!("failed to {verb} `{name}`: version {version} is not served"))
        }
        RepositoryError::Source(reason) => {
            ApiError::new(ErrorKind::InvalidInput, format!("failed to {verb} `{name}`: {reason}"))
        }
        RepositoryError::Change(error) => error.into(),
    }
}
