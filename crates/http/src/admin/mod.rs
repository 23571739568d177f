//! The admin listener, for operators.
//!
//! - `GET /v1/status`: version, age, health, the models that are being loaded, and the whole running tree
//!   ([`Description`](callboard_core::description::Description)).
//! - `GET /v1/cluster`: the nodes of the cluster as this one knows them, with the load of their stages, for which the
//!   other nodes are asked.
//! - `GET /`: the same as `/v1/status` as a page that is drawn again each second, and `GET /v1/live`, its stream of
//!   events ([`live`]).
//! - `GET /metrics`, `/livez`, `/readyz`: as on the edge.
//! - `POST /v1/stages/{stage}/replicas` with `{"replicas": 3}`: scales a stage. The response comes when the new
//!   replicas are warm.
//! - `DELETE /v1/routes/{route}`: closes a route. Stages that no other route uses end after their last call.
//! - `POST /v1/routes/{route}/promote` and `…/rollback`: end the rollout of a route, or give it back to the revision
//!   that is kept after one.
//! - `GET /v1/models` and below: the models of the node's [`ModelRepository`], their versions, and changes of them
//!   ([`models`]).
//! - `GET /v1/actors` and below: the kinds of keyed actors, their active keys, and orders for a key ([`actors`]).
//! - `GET /openapi.json`: these requests as an OpenAPI document.
//! - `POST /v1/drain`: asks the process to finish its calls and to end.
//! - What the protocols of the edge [answer to operators](crate::protocol::Protocol::answer_admin).
//!
//! Errors are problem documents as on the edge, or errors of the protocol at its paths. A change that the node refuses
//! changes nothing.
//!
//! *Threats*: a client of this listener can take the service down. So it has a socket of its own, on loopback by
//! default, where it answers no web page ([`guard`]). Beyond loopback it needs keys ([`HttpConfig::api_keys`]), and TLS
//! so that the keys cannot be read on the network: the command line requires both, and uses the certificate of the
//! edge.

mod actors;
mod changes;
mod document;
mod guard;
mod live;
mod models;

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use axum::{Extension, Json, Router};
use callboard_core::edge::contain_future;
use callboard_core::{Instant, LocalClient, NodeHandle};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};

use self::guard::AdminGuard;
use self::live::Live;
pub use self::live::{Calls, DeviceFigures, Figures, Histogram};
use crate::config::HttpConfig;
use crate::describe;
use crate::dispatch::serve::HttpServeError;
use crate::dispatch::{HttpEdge, NOSNIFF};
use crate::error::ApiError;
use crate::guard::is_below;
use crate::listener::tls::Tls;
use crate::listener::{self, AcceptMetrics, Http2Windows};
use crate::model_repository::ModelRepository;
use crate::observe::metrics::{EdgeMetrics, ROUTES};
use crate::protocol::{Protocol, Protocols};
use crate::request_id::{RequestId, RequestIds, X_REQUEST_ID};

/// The admin listener's access to a node. Clones share it.
#[derive(Clone, Debug)]
pub struct Admin(Arc<AdminState>);

#[derive(Debug)]
struct AdminState {
    node: NodeHandle,
    client: LocalClient,
    metrics: Arc<EdgeMetrics>,
    ids: RequestIds,
    started_at: Instant,
    drain: Notify,
    protocols: Protocols,
    models: OnceLock<Arc<dyn ModelRepository>>,
    uploads: Semaphore,
    live: Live,
}

impl Admin {
    /// The admin listener of this node and its edge. It does not keep the node alive.
    #[must_use]
    pub fn new(node: NodeHandle, edge: &HttpEdge) -> Self {
        let client = node.client();
        let (metrics, ids, protocols) = (edge.metrics(), RequestIds::new(), edge.protocols().clone());
        let (started_at, drain) = (Instant::now(), Notify::new());
        let (models, uploads, live) = (OnceLock::new(), Semaphore::new(models::MAX_UPLOADS), Live::default());
        Self(Arc::new(AdminState { node, client, metrics, ids, started_at, drain, protocols, models, uploads, live }))
    }

    /// Lists, loads and unloads models of this repository. Another repository is ignored.
    pub fn load_from(&self, repository: Arc<dyn ModelRepository>) {
        let _ = self.0.models.set(repository);
    }

    /// Completes when an operator asks for a drain. The program decides how to finish its calls and end.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost: the next call completes.
    pub async fn drain_asked(&self) {
        self.0.drain.notified().await;
    }

    /// The protocol of a request. Paths below `/v1` are the listener's own.
    fn protocol_of(&self, request: &Request) -> Option<&dyn Protocol> {
        let path = request.uri().path();
        if is_below(path, "/v1") { None } else { self.0.protocols.find(path, request.headers()) }
    }

    fn router(&self, guard: AdminGuard, config: &HttpConfig) -> Router {
        let machines = describe::machine_pages(self.0.client.clone(), Arc::clone(&self.0.metrics));
        Router::new()
            .route("/v1/status", get(status))
            .route("/v1/cluster", get(cluster))
            .route("/v1/stages/{stage}/replicas", post(changes::scale))
            .route("/v1/models/{*path}", any(models::below))
            .route("/openapi.json", get(document::openapi))
            .route("/v1/routes/{*route}", delete(changes::remove_route).post(changes::end_rollout))
            .route("/v1/models", get(models::list))
            .route("/v1/actors", get(actors::list))
            .route("/v1/actors/{kind}", get(actors::kind))
            .route("/v1/actors/{kind}/{verb}", post(actors::order))
            .route("/v1/drain", post(changes::drain))
            .merge(live::routes())
            .fallback(changes::below_no_page)
            .with_state(self.clone())
            .merge(machines)
            .method_not_allowed_fallback(changes::method_not_allowed)
            .layer(Extension(Arc::new(config.clone())))
            .layer(middleware::from_fn_with_state((self.clone(), Arc::new(guard)), layers))
    }
}

/// Serves the admin listener until `shutdown` completes; running requests then have the time that it returns. The
/// limits of connections, the keys and TLS in `config` apply.
///
/// # Errors
///
/// [`HttpServeError`] before anything is accepted.
///
/// # Cancellation
///
/// Dropping the future cuts every connection.
pub async fn serve_admin(
    listener: TcpListener,
    admin: Admin,
    config: HttpConfig,
    shutdown: impl Future<Output = Duration>,
) -> Result<(), HttpServeError> {
    config.validate()?;
    let tls = config.tls.clone().map(Tls::load).transpose()?;
    let guard = AdminGuard::new(listener::is_local(&listener), &config, admin.0.protocols.clone());
    // Ends with this function.
    let mut watchers = JoinSet::new();
    guard.watch_keys().map(|fresh| watchers.spawn(fresh));
    let router = admin.router(guard, &config);
    // Admin bodies are short, except model uploads, whose clients are near: no extra window.
    let windows = Http2Windows::new(&HttpConfig { http2_windows_bytes: 0, ..config.clone() });
    listener::run(listener, router, &config, tls, AcceptMetrics::default(), windows, shutdown).await;
    Ok(())
}

/// Wraps every request of the listener.
async fn layers(State((admin, guard)): State<(Admin, Arc<AdminGuard>)>, request: Request, next: Next) -> Response {
    let id = request.headers().get(X_REQUEST_ID).and_then(RequestId::from_client);
    let id = id.unwrap_or_else(|| admin.0.ids.generate());
    let is_change = !request.method().is_safe();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let protocol = admin.protocol_of(&request);
    let mut response = match guard.admit(&request) {
        Ok(()) => {
            let answer = contain_future(Box::pin(next.run(request)).as_mut()).await;
            answer.unwrap_or_else(|_printed_by_the_panic_hook| ApiError::panicked().into_response())
        }
        Err(error) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = match protocol {
            Some(protocol) => protocol.error_response(error),
            // No user code runs here.
            None => error.into_answer(id.as_str(), false),
        };
    }
    if is_change {
        let status = response.status().as_u16();
        tracing::info!(request_id = id.as_str(), %method, path, status, "a change was requested");
    }
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(X_REQUEST_ID, id.to_header());
    response
}

async fn status(State(admin): State<Admin>) -> impl IntoResponse {
    // Processes of replicas are measured for it.
    let tree = spawn_blocking(move || {
        let AdminState { node, protocols, started_at, models, .. } = &*admin.0;
        let doors: Vec<&str> = std::iter::once(ROUTES).chain(protocols.doors()).collect();
        Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": started_at.elapsed().as_secs_f64(),
            "doors": doors,
            "loading": models.get().map_or_else(Vec::new, |models| models::loading(&**models)),
            "health": node.health(),
            "node": node.describe(),
        }))
    });
    tree.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_stopping) => Json(Value::Null),
    })
}

async fn cluster(State(admin): State<Admin>) -> impl IntoResponse {
    let edge = admin.0.client.edge();
    let mut members = edge.members();
    edge.add_loads(&mut members).await;
    Json(json!({ "members": members, "peers": edge.peers() }))
}
