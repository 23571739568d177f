//! The Open Inference Protocol v2 (KServe, Triton) over HTTP, under `/v2`: its clients call routes as models.
//!
//! ```text
//!  /v2[/health/{live,ready}]                        the server
//!  /v2/models/{m}[/versions/{v}][/{action}]         ready, config, stats, infer, generate, generate_stream; none: metadata
//!  /v2/models/stats, /v2/repository/index           all models
//!  /v2/repository/models/{m}/{load,unload}          what is served
//!  /v1/models/{m}[/versions/{v}]:predict            KServe's version 1: instances in, predictions out
//! ```
//!
//! Every route is a model. Its name is the route's path without the leading slash (`path`); its arrays follow from
//! the types of the route (`signature`). A body is read by its own headers, never by its content type: clients of the
//! protocol send none, or a wrong one.
//!
//! Errors are `{"error": …}` with the edge's statuses, except that an invalid body is always 400. A full node answers
//! 429, a node that is not ready 503, a passed deadline 504.
//!
//! The wire follows the protocol's `inference_rest.md` and Triton's extensions for binary tensors, statistics,
//! configuration, repository, generation, classification, schedule policy and sequences.

mod array;
mod classes;
mod data;
mod datatype;
mod document;
mod error;
mod error_response;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod generate;
mod head;
mod infer;
mod metadata;
mod model;
mod parameters;
pub mod parts;
mod path;
mod predict;
mod repository;
mod request;
mod response;
mod run;
mod signature;
mod statistics;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use callboard_core::edge::Route;
use callboard_core::{ErrorKind, LocalClient};
use callboard_http::HttpConfig;
use callboard_http::axum::Json;
use callboard_http::axum::http::Method;
use callboard_http::axum::http::header::ACCEPT_ENCODING;
use callboard_http::axum::response::{IntoResponse, Response};
use callboard_http::protocol::{
    ApiError, CalledRoute, Claims, Protocol, ProtocolAnswer, ProtocolDocument, ProtocolRequest, RequestContext,
    RequestHead, ResponseCompression, StartingAnswer, compressed, short_body,
};
use serde_json::{Value, json};

use self::error::Refusal;
use self::infer::ModelCall;
use self::model::{Model, Models};
use self::path::{Action, Endpoint, PREDICT, RepositoryAction};
use self::repository::ModelChange;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use self::fuzz::{decode_inference_request, models};
pub use callboard_http::{ModelRepository, RepositoryChange, RepositoryError};

/// The methods of endpoints that read, and of those that act.
const READS: &str = "GET, HEAD";
const ACTS: &str = "POST";

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Debug, Default)]
pub struct InferenceProtocol {
    models: Models,
    repository: OnceLock<Arc<dyn ModelRepository>>,
}

impl InferenceProtocol {
    /// The protocol without a repository: models are the routes that are served.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads models from this repository, and lists those that it could load. Another repository is ignored.
    pub fn load_from(&self, repository: Arc<dyn ModelRepository>) {
        let _ = self.repository.set(repository);
    }

    /// The model of this name and, if requested, version, with its route.
    ///
    /// # Errors
    ///
    /// There is no such model, or no such version of it.
    pub fn model(
        &self,
        client: &LocalClient,
        name: &str,
        version: Option<u64>,
    ) -> Result<(Arc<Route>, Arc<Model>), ApiError> {
        self.models.find(client, name, version)
    }

    /// All models with their routes.
    #[must_use]
    pub fn models(&self, client: &LocalClient) -> Vec<(Arc<Route>, Arc<Model>)> {
        self.models.all(client)
    }

    /// The models with their states, as a list in JSON.
    #[must_use]
    pub fn index(&self, client: &LocalClient, only_ready: bool) -> Value {
        let repository = self.repository.get().map(|repository| &**repository);
        json!(repository::index(client, &self.models, repository, only_ready))
    }

    /// Loads or unloads a model. `parameters` are those of the request, each with whether it is true or false;
    /// `may_change` says whether this client may do so.
    ///
    /// # Errors
    ///
    /// The client may not, a parameter is not offered, or the change fails.
    pub async fn change(
        &self,
        name: &str,
        load: bool,
        parameters: impl IntoIterator<Item = (&str, bool)>,
        may_change: bool,
    ) -> Result<(), ApiError> {
        let repository = self.repository.get().map(|repository| &**repository);
        let change = ModelChange::try_new(name.to_owned(), load, repository.filter(|_| may_change))?;
        change.check_parameters(parameters)?;
        change.apply().await.map(drop)
    }

    async fn answer(&self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let RequestContext { client, config, .. } = context;
        let endpoint = Endpoint::parse(request.head.uri.path());
        check_method(&request.head.method, &endpoint)?;
        match endpoint {
            Endpoint::Server => Ok(Json(metadata::server()).into_response()),
            Endpoint::Live => {
                if client.health().live {
                    Ok(Json(json!({ "live": true })).into_response())
                } else {
                    Err(unready("the node has ended".to_owned()))
                }
            }
            Endpoint::Ready => {
                if client.health().ready {
                    // The specification's response has `live`; its Python client reads `ready`.
                    Ok(Json(json!({ "live": true, "ready": true })).into_response())
                } else {
                    Err(unready("the server is not ready".to_owned()))
                }
            }
            Endpoint::AllStatistics => {
                let all = self.models.all(client);
                let all: Vec<_> = all.iter().map(|(route, model)| statistics::model_statistics(route, model)).collect();
                Ok(Json(json!({ "model_stats": all })).into_response())
            }
            Endpoint::Repository(action) => {
                self.view(client, config, config.model_control).answer(action, request).await
            }
            Endpoint::Model { name, version, action } => {
                let (route, model) = self.models.find(client, &name, version)?;
                let call = ModelCall { context, route: &route, model: &model };
                let answer = answer_model(call, action, request).await;
                let mut answer = answer.map_err(|error| error.about(route.name()))?;
                answer.extensions_mut().insert(CalledRoute(route));
                Ok(answer)
            }
            Endpoint::Missing(extension) => {
                Err(Refusal::unsupported(format!("this server does not offer {extension}")).into())
            }
            Endpoint::Unknown => Err(unknown_path()),
        }
    }

    fn view<'a>(&'a self, client: &'a LocalClient, config: &'a HttpConfig, may_change: bool) -> ModelView<'a> {
        let repository = self.repository.get().map(|repository| &**repository);
        ModelView { client, models: &self.models, repository, may_change, config }
    }
}

impl Protocol for InferenceProtocol {
    fn name(&self) -> &str {
        "the Open Inference Protocol"
    }

    fn door(&self) -> &'static str {
        "oip"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &["/v2"], open_paths: &["/v2/health"], endings: &[PREDICT], ..Claims::default() }
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            let compression = ResponseCompression::new(request.head.headers.get(ACCEPT_ENCODING), context.config);
            Ok(compressed(self.answer(context, request).await?, &compression).await)
        })
    }

    fn error_response(&self, error: ApiError) -> Response {
        error_response::response(&error)
    }

    fn starting_response<'a>(&'a self, _: &'a HttpConfig, request: ProtocolRequest<'a>) -> StartingAnswer<'a> {
        let is_live = request.head.uri.path() == "/v2/health/live";
        Box::pin(async move { is_live.then(|| Json(json!({ "live": true })).into_response()) })
    }

    fn answer_admin<'a>(
        &'a self,
        client: &'a LocalClient,
        config: &'a HttpConfig,
        request: ProtocolRequest<'a>,
    ) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            let endpoint = Endpoint::parse(request.head.uri.path());
            let is_allowed = check_method(&request.head.method, &endpoint);
            let Endpoint::Repository(action) = endpoint else { return Err(unknown_path()) };
            is_allowed?;
            self.view(client, config, true).answer(action, request).await
        })
    }

    fn document(
        &self,
        routes: &[Arc<Route>],
        add_schema: &mut dyn FnMut(&str, Value) -> Value,
    ) -> Option<ProtocolDocument> {
        Some(document::document(routes, add_schema))
    }
}

/// The models of a node, and the models that it could load.
struct ModelView<'a> {
    client: &'a LocalClient,
    models: &'a Models,
    repository: Option<&'a dyn ModelRepository>,
    /// Whether this client may load and unload.
    may_change: bool,
    config: &'a HttpConfig,
}

impl ModelView<'_> {
    /// Answers one request to the repository. A change that is not allowed is refused before the body is read.
    async fn answer(self, action: RepositoryAction, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let Self { client, models, repository, may_change, config } = self;
        match action {
            RepositoryAction::Index => {
                let only_ready = repository::asks_for_ready(&small_body(request, config).await?)?;
                Ok(Json(repository::index(client, models, repository, only_ready)).into_response())
            }
            RepositoryAction::Change { name, load } => {
                let change = ModelChange::try_new(name, load, repository.filter(|_| may_change))?;
                change.check(&small_body(request, config).await?)?;
                Ok(change.apply().await?.into_response())
            }
        }
    }
}

/// A short body without a content coding.
async fn small_body(request: ProtocolRequest<'_>, config: &HttpConfig) -> Result<Bytes, ApiError> {
    if RequestHead::read(&request.head.headers)?.coding.is_some() {
        return Err(ApiError::unsupported_encoding());
    }
    short_body(request.body, config.body_progress_timeout).await
}

async fn answer_model(call: ModelCall<'_>, action: Action, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    let ModelCall { context: RequestContext { client, .. }, route, model } = call;
    match action {
        Action::Metadata => Ok(Json(metadata::model(client, model)).into_response()),
        Action::Config => Ok(Json(metadata::config(client, route, model)).into_response()),
        Action::Ready => match metadata::unready(&client.health(), route) {
            None => Ok(Json(json!({ "name": model.name, "ready": true })).into_response()),
            Some(reason) => Err(unready(reason)),
        },
        Action::Statistics => {
            Ok(Json(json!({ "model_stats": [statistics::model_statistics(route, model)] })).into_response())
        }
        Action::Infer => infer::infer(call, request).await,
        // Boxed, because they are large and rare.
        Action::Generate => Box::pin(generate::generate(call, request)).await,
        Action::GenerateStream => Box::pin(generate::generate_stream(call, request)).await,
        Action::Predict => Box::pin(predict::predict(call, request)).await,
    }
}

fn check_method(method: &Method, endpoint: &Endpoint) -> Result<(), ApiError> {
    use Action::{Generate, GenerateStream, Infer, Predict};
    let allowed = match endpoint {
        Endpoint::Unknown | Endpoint::Missing(_) => return Ok(()),
        Endpoint::Repository(_) | Endpoint::Model { action: Infer | Generate | GenerateStream | Predict, .. } => ACTS,
        _ => READS,
    };
    // Some load balancers check health by OPTIONS.
    let is_health =
        matches!(endpoint, Endpoint::Live | Endpoint::Ready | Endpoint::Model { action: Action::Ready, .. });
    let is_allowed = match allowed {
        ACTS => method == Method::POST,
        _ => method == Method::GET || method == Method::HEAD || is_health && method == Method::OPTIONS,
    };
    if is_allowed { Ok(()) } else { Err(ApiError::method_not_allowed(method, allowed)) }
}

fn unknown_path() -> ApiError {
    ApiError::new(ErrorKind::NotFound, "there is no such path of the Open Inference Protocol")
}

fn unready(reason: String) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, reason)
}
