//! The Open Inference Protocol v2 (KServe, Triton) over HTTP, under `/v2`: clients that were written for it call routes as models.
//!
//! ```text
//!  /v2[/health/{live,ready}]                        the server
//!  /v2/models/{m}[/versions/{v}][/{what}]           ready, config, stats, infer, generate, generate_stream; nothing: metadata
//!  /v2/models/stats, /v2/repository/index           all models
//!  /v2/repository/models/{m}/{load,unload}          what is served
//! ```
//!
//! Every route is a model; its name is the route's path without the leading slash ([`path`]), its arrays follow from what the
//! route says of itself ([`signature`]). A body is read by its own headers alone, never by its content type: clients of the
//! protocol send none, or a wrong one.
//!
//! Errors are `{"error": …}` with the status that the edge has for them, but what a body does wrong is always 400. When the node
//! is full the answer is 429, when it is not ready 503, when the deadline has passed 504.
//!
//! The wire follows the protocol's `inference_rest.md` and Triton's extensions for binary tensors, statistics, configuration,
//! repository, generation, classification, schedule policy and sequences.

mod array;
mod classes;
mod data;
mod datatype;
mod error;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod generate;
mod head;
mod infer;
mod metadata;
mod model;
mod parameters;
mod path;
mod repository;
mod request;
mod response;
mod signature;
mod statistics;

use axum::Json;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use callboard_core::{ErrorKind, LocalClient};
use serde_json::json;

use self::error::Refusal;
use self::infer::Asked;
use self::path::{Action, Endpoint, OfRepository};
use self::repository::Wish;
use crate::call::Around;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::repository::Repository;
use crate::request::body::RequestBody;
use crate::request::head::Head;
use crate::request::short::short_body;

pub(crate) use self::model::Models;
pub(crate) use self::path::owns;

/// What reads and what acts.
const READS: &str = "GET, HEAD";
const ACTS: &str = "POST";

/// Answers one request to a path that the protocol [`owns`].
pub(crate) async fn answer<B: RequestBody>(
    around: Around<'_>,
    models: &Models,
    repository: Option<&dyn Repository>,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    let Around { client, config, .. } = around;
    let endpoint = Endpoint::parse(request.uri().path());
    check_method(request.method(), &endpoint)?;
    match endpoint {
        Endpoint::Server => Ok(Json(metadata::server()).into_response()),
        Endpoint::Live => match client.health().live {
            true => Ok(Json(json!({ "live": true })).into_response()),
            false => Err(unready("the node has ended".to_owned())),
        },
        Endpoint::Ready => match client.health().ready {
            // The specification's own answer says `live`; its Python client reads `ready`.
            true => Ok(Json(json!({ "live": true, "ready": true })).into_response()),
            false => Err(unready("the server is not ready".to_owned())),
        },
        Endpoint::AllStatistics => {
            let all: Vec<_> = models.all(client).iter().map(|(route, model)| statistics::of(route, model)).collect();
            Ok(Json(json!({ "model_stats": all })).into_response())
        }
        Endpoint::Repository(what) => {
            let may_change = config.model_control;
            of_repository(Shelf { client, models, repository, may_change, config }, what, request).await
        }
        Endpoint::Model { name, version, action } => {
            let (route, model) = models.find(client, &name, version)?;
            let asked = Asked { around, route: &route, model: &model };
            ask(asked, action, request).await.map_err(|error| error.about(route.name()))
        }
        Endpoint::Missing(extension) => {
            Err(Refusal::unsupported(format!("{extension} are not offered by this server")).into())
        }
        Endpoint::Unknown => Err(unknown_path()),
    }
}

/// Answers what the admin listener has of the protocol: the repository, to whoever was let in there.
pub(crate) async fn answer_repository<B: RequestBody>(
    repository: Option<&dyn Repository>,
    client: &LocalClient,
    config: &HttpConfig,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    let endpoint = Endpoint::parse(request.uri().path());
    check_method(request.method(), &endpoint)?;
    let Endpoint::Repository(what) = endpoint else { return Err(unknown_path()) };
    let shelf = Shelf { client, models: &Models::default(), repository, may_change: true, config };
    of_repository(shelf, what, request).await
}

/// The models of a node, and those that it could have.
struct Shelf<'a> {
    client: &'a LocalClient,
    models: &'a Models,
    repository: Option<&'a dyn Repository>,
    /// Whether whoever asks here may load and unload.
    may_change: bool,
    config: &'a HttpConfig,
}

/// Answers one request to the repository. Who may not change it is told so before the body is read.
async fn of_repository<B: RequestBody>(
    shelf: Shelf<'_>,
    what: OfRepository,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    let Shelf { client, models, repository, may_change, config } = shelf;
    match what {
        OfRepository::Index => {
            let body = words(request, config).await?;
            Ok(Json(repository::index(client, models, repository, &body)?).into_response())
        }
        OfRepository::Control { name, load } => {
            let wish = Wish::of(name, load, repository.filter(|_| may_change))?;
            wish.check(&words(request, config).await?)?;
            Ok(wish.carry_out().await?.into_response())
        }
    }
}

/// A body of a few words, as it is.
async fn words<B: RequestBody>(request: &mut Request<B>, config: &HttpConfig) -> Result<Bytes, ApiError> {
    if Head::read(request.headers())?.coding.is_some() {
        return Err(ApiError::unsupported_encoding());
    }
    short_body(request, config.body_progress_timeout).await
}

/// Answers one request to a model.
async fn ask<B: RequestBody>(asked: Asked<'_>, action: Action, request: &mut Request<B>) -> Result<Response, ApiError> {
    let Asked { around: Around { client, .. }, route, model } = asked;
    match action {
        Action::Metadata => Ok(Json(metadata::model(model)).into_response()),
        Action::Config => Ok(Json(metadata::config(client, route, model)).into_response()),
        Action::Ready => match metadata::unready(&client.health(), route) {
            None => Ok(Json(json!({ "name": model.name, "ready": true })).into_response()),
            Some(reason) => Err(unready(reason)),
        },
        Action::Statistics => Ok(Json(json!({ "model_stats": [statistics::of(route, model)] })).into_response()),
        Action::Infer => infer::infer(asked, request).await,
        // Boxed, because they are large and seldom.
        Action::Generate => Box::pin(generate::generate(asked, request)).await,
        Action::GenerateStream => Box::pin(generate::generate_stream(asked, request)).await,
    }
}

fn check_method(method: &Method, endpoint: &Endpoint) -> Result<(), ApiError> {
    use Action::{Generate, GenerateStream, Infer};
    let allowed = match endpoint {
        Endpoint::Unknown | Endpoint::Missing(_) => return Ok(()),
        Endpoint::Repository(_) | Endpoint::Model { action: Infer | Generate | GenerateStream, .. } => ACTS,
        _ => READS,
    };
    // Some load balancers ask by OPTIONS how somebody is.
    let is_health =
        matches!(endpoint, Endpoint::Live | Endpoint::Ready | Endpoint::Model { action: Action::Ready, .. });
    let is_allowed = match allowed {
        ACTS => method == Method::POST,
        _ => method == Method::GET || method == Method::HEAD || is_health && method == Method::OPTIONS,
    };
    if is_allowed { Ok(()) } else { Err(ApiError::method_not_allowed(method, allowed)) }
}

fn unknown_path() -> ApiError {
    ApiError::of_kind(ErrorKind::NotFound, "there is no such path under /v2")
}

fn unready(reason: String) -> ApiError {
    ApiError::of_kind(ErrorKind::Unavailable, reason)
}
