//! The keyed actors of the node, for operators: `/v1/actors`.
//!
//! - `GET /v1/actors`: the kinds, with the count of their active keys on this node.
//! - `GET /v1/actors/{kind}?limit=100`: a kind with some of these keys.
//! - `POST /v1/actors/{kind}/ask?key=K&question=Q` with a value as JSON: the answer, from whichever node has the key.
//! - `POST /v1/actors/{kind}/passivate?key=K`: asks the key to save its state and end on this node, unless a message waits.
//! - `POST /v1/actors/{kind}/release?key=K`: the same at once. Its messages follow it to the node that has it now.
//! - `POST /v1/actors/{kind}/forget?key=K`: removes the state of the key, on whichever node it is; answered when that
//!   is done, or, of a kind that saves later than it answers, when it will be.
//!
//! An order to end is answered when it is given: `was_active` says whether there was a key to take it.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use callboard_codec::{DecodeLimits, Format, Value as Payload};
use callboard_core::keyed::{KeyedRef, KeyedSpec, Stored};
use callboard_core::{CallError, CallOptions, ErrorKind};
use serde_json::{Value, json};

use super::Admin;
use super::changes::named;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::request::request_fields::{decoded_text, query_pairs};
use crate::request::short::short_body;

/// How the descriptions of kinds begin.
const KIND: &str = "keyed:";

/// The keys that a list has.
const MAX_LIMIT: usize = 1000;
const DEFAULT_LIMIT: usize = 100;

const MAX_KEY_BYTES: usize = KeyedSpec::<Stored<()>>::MAX_KEY_BYTES;

/// `GET /v1/actors`.
pub(super) async fn list(State(admin): State<Admin>) -> impl IntoResponse {
    Json(json!({ "kinds": kinds(&admin) }))
}

/// The kinds, as the node describes them.
fn kinds(admin: &Admin) -> Vec<Value> {
    let described = admin.0.node.describe().actors.into_iter();
    let kinds = described.filter_map(|actor| Some((actor.name.strip_prefix(KIND)?.to_owned(), actor)));
    kinds
        .map(|(kind, actor)| {
            json!({
                "kind": kind,
                "active_keys": actor.active_keys,
                "waiting": actor.waiting,
                "refused": actor.refused,
                "crashes": actor.restarts,
                "reasons": actor.reasons,
            })
        })
        .collect()
}

/// `GET /v1/actors/{kind}`.
pub(super) async fn kind(
    State(admin): State<Admin>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<impl IntoResponse, ApiError> {
    let name = named(name)?;
    let limit = parameter(&request, "limit")?.map_or(Some(DEFAULT_LIMIT), |text| text.parse().ok());
    let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit)).ok_or_else(|| {
        ApiError::new(ErrorKind::InvalidInput, format!("limit: expected a whole number from 1 to {MAX_LIMIT}"))
    })?;
    let mut kind = found(&admin, &name)?;
    kind["keys"] = admin.0.node.keyed(&name).active_keys(limit).into();
    Ok(Json(kind))
}

/// `POST /v1/actors/{kind}/{verb}`.
pub(super) async fn order(
    State(admin): State<Admin>,
    Extension(config): Extension<Arc<HttpConfig>>,
    path: Result<Path<(String, String)>, PathRejection>,
    mut request: Request,
) -> Result<impl IntoResponse, ApiError> {
    let Path((kind, verb)) = path.map_err(|error| ApiError::new(ErrorKind::NotFound, error.body_text()))?;
    found(&admin, &kind)?;
    let keyed = admin.0.node.keyed(&kind);
    let key = required(&request, "key")?;
    if key.len() > MAX_KEY_BYTES {
        let message = format!("the key has {} bytes, more than {MAX_KEY_BYTES}", key.len());
        return Err(ApiError::new(ErrorKind::InvalidInput, message));
    }
    let answer = match verb.as_str() {
        "ask" => {
            let question = required(&request, "question")?;
            let body = short_body(request.body_mut(), config.body_progress_timeout).await?;
            ask(&keyed, &key, &question, &body).await?
        }
        "passivate" => json!({ "kind": kind, "key": key, "was_active": keyed.passivate(&key) }),
        "release" => json!({ "kind": kind, "key": key, "was_active": keyed.release(&key) }),
        "forget" => {
            keyed.forget(&key, CallOptions::new()).await.map_err(CallError::from)?;
            json!({ "kind": kind, "key": key, "forgotten": true })
        }
        _ => {
            let paths = "there are `ask`, `passivate`, `release` and `forget`";
            return Err(ApiError::no_such_page(&format!("/v1/actors/{kind}/{verb}"), paths));
        }
    };
    Ok(Json(answer))
}

async fn ask(keyed: &KeyedRef, key: &str, question: &str, body: &bytes::Bytes) -> Result<Value, ApiError> {
    let body = if body.is_empty() { bytes::Bytes::from_static(b"null") } else { body.clone() };
    let value = Payload::decode(Format::Json, &body, &DecodeLimits::default())?;
    let answer = keyed.ask_value(key, CallOptions::new(), question, value).await.map_err(CallError::from)?;
    let written = answer.encode(Format::Json).ok().and_then(|json| serde_json::from_slice::<Value>(&json).ok());
    let unwritten = || ApiError::new(ErrorKind::Internal, "the answer cannot be written as JSON");
    Ok(json!({ "answer": written.ok_or_else(unwritten)? }))
}

/// The kind, if the node has it.
fn found(admin: &Admin, name: &str) -> Result<Value, ApiError> {
    let kinds = kinds(admin).into_iter();
    let mut kinds = kinds.filter(|kind| kind["kind"] == name);
    let message = || format!("this node has no keyed actors `{name}`: `GET /v1/actors` lists the kinds");
    kinds.next().ok_or_else(|| ApiError::new(ErrorKind::NotFound, message()))
}

fn required(request: &Request, name: &str) -> Result<String, ApiError> {
    let message = || format!("the request needs the parameter `{name}`");
    let given = parameter(request, name)?.filter(|value| !value.is_empty());
    given.ok_or_else(|| ApiError::new(ErrorKind::InvalidInput, message()))
}

/// A query parameter, decoded.
fn parameter(request: &Request, name: &str) -> Result<Option<String>, ApiError> {
    let Some((_, value)) = query_pairs(request.uri()).find(|(key, _)| key == name) else { return Ok(None) };
    let message = || format!("the parameter `{name}` is no text in UTF-8");
    decoded_text(value).map(Some).ok_or_else(|| ApiError::new(ErrorKind::InvalidInput, message()))
}
