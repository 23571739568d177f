//! The edge as one service: user routes first, then the fixed pages, and around both what every answer has.
//!
//! User routes are looked up in the node's own table, which may change while serving, and answered without a second router;
//! everything else is an axum router of fixed pages. Whatever happens inside, one answer leaves: a problem document for an
//! error, a 500 for a panic, and always the request's id.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use callboard_core::Client;
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use tower::{BoxError, Service};

use crate::accept::{AcceptMetrics, Respond};
use crate::catch_panic::catch_panic;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::infer;
use crate::metrics::EdgeMetrics;
use crate::openapi::ApiInfo;
use crate::pages;
use crate::request_id::{RequestId, RequestIds, X_REQUEST_ID};
use crate::server::ServeError;

/// The whole HTTP edge of a node as a [`tower::Service`], to be served by [`serve`](crate::serve) or mounted in an axum
/// router of one's own: `Router::new().route("/mine", …).fallback_service(edge)`.
#[derive(Clone, Debug)]
pub struct Edge(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    config: HttpConfig,
    ids: RequestIds,
    metrics: Arc<EdgeMetrics>,
    pages: Router,
}

impl Edge {
    /// The edge of the node behind `client`.
    ///
    /// # Errors
    ///
    /// A limit that cannot work, or a route that takes a path of the edge's own.
    pub fn try_new(client: Client, mut config: HttpConfig, info: ApiInfo) -> Result<Self, ServeError> {
        config.validate()?;
        config.decode.max_bytes = usize::try_from(config.max_body_bytes).unwrap_or(usize::MAX);
        if let Some(route) = client.routes().iter().find(|route| pages::is_reserved(route.name())) {
            return Err(ServeError::ReservedRoute { route: route.name().to_owned() });
        }
        let metrics = Arc::new(EdgeMetrics::new());
        let pages = pages::router(client.clone(), Arc::clone(&metrics), info);
        Ok(Self(Arc::new(Inner { client, config, ids: RequestIds::new(), metrics, pages })))
    }

    pub(crate) fn config(&self) -> &HttpConfig {
        &self.0.config
    }

    pub(crate) fn accept_metrics(&self) -> AcceptMetrics {
        self.0.metrics.accept.clone()
    }

    /// Answers one request, whatever it is.
    ///
    /// hyper moves this future with each request, so it is kept small: what is seldom is boxed.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call it made and counts the request as abandoned.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: the request is 264 bytes")]
    fn answer<B>(self, mut request: Request<B>) -> impl Future<Output = Response> + Send + 'static
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        async move {
            let inner = &*self.0;
            let id = request.headers().get(X_REQUEST_ID).and_then(RequestId::from_client);
            let id = id.unwrap_or_else(|| inner.ids.make());
            let open = Open { abandoned: &inner.metrics.abandoned, answered: false };

            let outcome = match inner.client.route(request.uri().path()) {
                Some(route) => {
                    let call = pin!(infer::call(&inner.client, &route, &inner.config, &mut request));
                    catch_panic(call).await
                }
                None => catch_panic(pin!(inner.page(request.map(Body::new)))).await,
            };
            let mut response = match outcome {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => error.into_answer(id.as_str()),
                Err(_told_by_the_panic_hook) => inner.panicked(&id),
            };
            open.answered();
            inner.metrics.responded(response.status());
            response.headers_mut().insert(X_REQUEST_ID, id.into_header());
            response
        }
    }
}

impl Inner {
    /// Boxed for [`Edge::answer`]'s sake.
    fn page(&self, request: Request<Body>) -> Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>> {
        let page = self.pages.clone().call(request);
        Box::pin(async {
            let Ok(mut response) = page.await;
            match response.extensions_mut().remove::<ApiError>() {
                Some(error) => Err(error),
                None => Ok(response),
            }
        })
    }

    fn panicked(&self, id: &RequestId) -> Response {
        self.metrics.panics.inc();
        tracing::error!(request_id = id.as_str(), "a request panicked in the http edge");
        ApiError::panicked().into_answer(id.as_str())
    }
}

impl Respond for Edge {
    fn respond(self, request: Request<Incoming>) -> impl Future<Output = Response> + Send + 'static {
        self.answer(request)
    }
}

impl<B> Service<Request<B>> for Edge
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let edge = self.clone();
        Box::pin(async { Ok(edge.answer(request).await) })
    }
}

/// A request without an answer yet. Dropped as such, its client has left, and that is counted.
struct Open<'a> {
    abandoned: &'a Counter,
    answered: bool,
}

impl Open<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.abandoned.inc();
        }
    }
}
