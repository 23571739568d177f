//! The layers around every answer, as an outline.
//!
//! Every request gets one response: a problem document for an error, a 500 for a panic, and always with the request's
//! id. An error on our side is one line in the log with that id. A client that leaves first drops the whole future, and
//! is counted.

use std::convert::Infallible;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{Request, Version};
use axum::response::Response;
use bytes::Bytes;
use callboard_core::edge::{Route, contain_future};
use prometheus_client::metrics::counter::Counter;
use tower::{BoxError, Service};

use super::destination::Destination;
use super::exchange::{Exchange, Outcome};
use super::{EdgeState, HttpEdge, ServedNode};
use crate::asgi;
use crate::call::{self, RequestContext, functions};
use crate::describe;
use crate::error::ApiError;
use crate::guard::{Admitted, NamedHost};
use crate::listener::{PeerInfo, ReceivedBody, Responder, UnreadBody};
use crate::protocol::{BoxedErrors, Protocol, ProtocolRequest};
use crate::request::body::RequestBody;
use crate::request::request_fields::ClientAddress;
use crate::respond::ResponseCompression;
use crate::respond::compress_response::compressed;
use crate::runtime::coop;
use crate::runtime::shutdown::ShutdownSignal;
use crate::upgrade;

impl HttpEdge {
    /// Answers one request.
    ///
    /// hyper moves this future with each request, so it is kept small: rare parts are boxed. `is_polled` says that the
    /// connection polls it when calls in progress are [aborted](Self::abort).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels its call and counts the request as abandoned.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: the request is 264 bytes")]
    fn answer<B: RequestBody + 'static>(
        self,
        mut request: Request<B>,
        peer: Option<PeerInfo>,
        is_polled: bool,
    ) -> impl Future<Output = Response> + Send + 'static {
        async move {
            let edge = &*self.0;
            // Facts: id, trace and destination precede all checks, so that a refusal is logged and counted under them.
            let exchange = Exchange::begin(edge, &request, peer);
            // Cancellation: from here on a client that leaves is counted, and its log line has status 499.
            let open = OpenRequest(Some(&edge.metrics.requests.abandoned));
            let mut line = exchange.log_line(&request, peer);
            let unread_body = |request: &Request<B>| UnreadBody::new(request.headers(), request.body(), peer.is_some());
            // Guard: what the head alone can refuse is refused before the body is read.
            let admitted = match edge.admit(&request, peer) {
                ControlFlow::Break(early) => ControlFlow::Break(early),
                ControlFlow::Continue(Admitted::Known(holder)) => ControlFlow::Continue(holder),
                // Boxed: few apps name their callers.
                ControlFlow::Continue(Admitted::Asks) => {
                    match edge.until_aborted(pin!(exchange.ask_app(&request, peer)), is_polled).await {
                        Some(Ok(holder)) => ControlFlow::Continue(Some(holder)),
                        Some(Err(error)) => ControlFlow::Break(Err(error)),
                        None => ControlFlow::Break(Err(ApiError::ending())),
                    }
                }
            };
            // Destination: one part answers. The unread rest of the body is noted before the request is given away.
            let (outcome, unread): (Outcome, _) = match admitted {
                ControlFlow::Break(early) => {
                    coop::answered_at_once().await;
                    (Ok(early), unread_body(&request))
                }
                ControlFlow::Continue(holder) => {
                    if let (Some(line), Some(holder)) = (&mut line, &holder) {
                        line.set_key_holder(holder);
                    }
                    let context = |node| exchange.context(node, holder.as_ref());
                    // A connection of HTTP/1 has one request at a time.
                    let alone = |node| RequestContext { is_alone: is_polled, ..context(node) };
                    match exchange.target.destination(&edge.protocols, &request) {
                        Destination::Starting => {
                            let (head, body) = request.into_parts();
                            let mut body = BoxedErrors(body);
                            let outcome = {
                                let request = ProtocolRequest { head: &head, body: &mut body };
                                let mut answer = Box::pin(edge.starting(request, exchange.target.protocol));
                                edge.unless_aborted(pin!(contain_future(answer.as_mut())), is_polled).await
                            };
                            (outcome, UnreadBody::new(&head.headers, &body, peer.is_some()))
                        }
                        Destination::NoCall(node, route, style) => {
                            let allowed = node.allowed(route, style);
                            (Ok(Err(ApiError::method_not_allowed(request.method(), &allowed))), unread_body(&request))
                        }
                        Destination::Call(node, route, style) => {
                            edge.tell_client(&mut request, route, peer);
                            let outcome = {
                                let call = pin!(call::call(alone(node), route, style, &mut request));
                                edge.unless_aborted(pin!(contain_future(call)), is_polled).await
                            };
                            (outcome, unread_body(&request))
                        }
                        Destination::DeclaredCall(node, route) => {
                            edge.tell_client(&mut request, route, peer);
                            let outcome = if let Err(error) = edge.check_page(&request, peer) {
                                Ok(Err(error))
                            } else {
                                // Boxed to keep this future small.
                                let mut call = Box::pin(call::call_declared(alone(node), route, &mut request));
                                edge.unless_aborted(pin!(contain_future(call.as_mut())), is_polled).await
                            };
                            (outcome, unread_body(&request))
                        }
                        Destination::Asgi(node, route) => {
                            let outcome = if let Err(error) = edge.check_page(&request, peer) {
                                Ok(Err(error))
                            } else {
                                if let Some(policy) = &edge.policy {
                                    policy.hide_keys(request.headers_mut());
                                }
                                let mut call = Box::pin(asgi::answer(context(node), route, &mut request, peer));
                                edge.unless_aborted(pin!(contain_future(call.as_mut())), is_polled).await
                            };
                            (outcome, unread_body(&request))
                        }
                        Destination::CallStream(node, route, style) => {
                            edge.tell_client(&mut request, route, peer);
                            let unread = unread_body(&request);
                            (Ok(functions::stream::answer(context(node), route, style, request.map(Body::new))), unread)
                        }
                        Destination::Protocol(node, protocol) if protocol.takes_bodies() => {
                            let unread = unread_body(&request);
                            if let Some(peer) = peer {
                                let client = edge.config.trusted_proxies.client(peer.address, request.headers());
                                request.extensions_mut().insert(ClientAddress(client));
                            }
                            let mut answer = protocol.exchange(context(node), request.map(Body::new));
                            (edge.unless_aborted(pin!(contain_future(answer.as_mut())), is_polled).await, unread)
                        }
                        Destination::Protocol(node, protocol) => {
                            let (head, body) = request.into_parts();
                            let mut body = BoxedErrors(body);
                            let outcome = {
                                let request = ProtocolRequest { head: &head, body: &mut body };
                                let mut answer = protocol.answer(context(node), request);
                                edge.unless_aborted(pin!(contain_future(answer.as_mut())), is_polled).await
                            };
                            (outcome, UnreadBody::new(&head.headers, &body, peer.is_some()))
                        }
                        Destination::Page(node) => {
                            coop::answered_at_once().await;
                            let unread = unread_body(&request);
                            let accept_encoding = request.headers().get(ACCEPT_ENCODING);
                            let compression = ResponseCompression::new(accept_encoding, &edge.config);
                            let page = node.page(request.map(Body::new), peer, compression);
                            (contain_future(pin!(page)).await, unread)
                        }
                    }
                }
            };
            open.answered();
            // Response: rendered, counted, logged, and with the headers that every response has.
            exchange.respond(outcome, unread, line)
        }
    }
}

impl ServedNode {
    /// Boxed to keep [`HttpEdge::answer`] small.
    fn page(
        &self,
        mut request: Request<Body>,
        peer: Option<PeerInfo>,
        compression: ResponseCompression,
    ) -> Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>> {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let page = self.pages.clone().call(request);
        Box::pin(async move {
            let Ok(mut response) = page.await;
            match response.extensions_mut().remove::<ApiError>() {
                Some(error) => Err(error),
                None => Ok(compressed(response, &compression).await),
            }
        })
    }
}

impl EdgeState {
    /// Checks the head alone: the host, then a CORS preflight, then the key and its rate. Breaks with the response to a
    /// preflight or a refused request; else returns the owner of its key, or that the app is to be asked.
    fn admit<B>(
        &self,
        request: &Request<B>,
        peer: Option<PeerInfo>,
    ) -> ControlFlow<Result<Response, ApiError>, Admitted> {
        if let Err(error) = self.check_host(request, peer) {
            return ControlFlow::Break(Err(error));
        }
        let Some(policy) = &self.policy else { return ControlFlow::Continue(Admitted::Known(None)) };
        let routes = || self.node.get().map(|node| node.client.routes()).unwrap_or_default();
        let private = || self.node.get().map(|node| node.client.edge().private_routes()).unwrap_or_default();
        let takes_any = |path: &str| {
            asgi::app_of(private(), path).is_some() || self.protocols.find(path, request.headers()).is_some()
        };
        if let Some(permission) = policy.preflight(request, routes, takes_any) {
            return ControlFlow::Break(Ok(permission));
        }
        match policy.admit(request, |request| self.protocols.admits_all(request)) {
            Ok(admitted) => ControlFlow::Continue(admitted),
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }

    /// Requires one valid host, and on loopback a host of this machine. For a mounted edge the listener of a request is
    /// unknown and counts as loopback; a request made in process may name no host.
    fn check_host<B>(&self, request: &Request<B>, peer: Option<PeerInfo>) -> Result<(), ApiError> {
        match peer {
            Some(peer) if !peer.is_local => NamedHost::from_request(request).map(drop),
            Some(_) => self.loopback_guard.admit(request, NamedHost::from_request(request)?),
            None => self.loopback_guard.admit(request, NamedHost::from_request_in_process(request)?),
        }
    }

    /// On loopback, refuses what a page of another site starts by a safe method.
    fn check_page<B>(&self, request: &Request<B>, peer: Option<PeerInfo>) -> Result<(), ApiError> {
        match peer {
            _ if !request.method().is_safe() => Ok(()),
            Some(peer) if !peer.is_local => Ok(()),
            Some(_) => self.loopback_guard.admit_safe_call(request, NamedHost::from_request(request)?),
            None => self.loopback_guard.admit_safe_call(request, NamedHost::from_request_in_process(request)?),
        }
    }

    /// Tells the code of a route the address of the client, where it reads anything of the request.
    fn tell_client<B>(&self, request: &mut Request<B>, route: &Route, peer: Option<PeerInfo>) {
        if let Some(peer) = peer.filter(|_| route.request_fields().is_some()) {
            let client = self.config.trusted_proxies.client(peer.address, request.headers());
            request.extensions_mut().insert(ClientAddress(client));
        }
    }

    /// The answer while the node is starting.
    async fn starting<'a>(
        &'a self,
        request: ProtocolRequest<'a>,
        protocol: Option<&'a dyn Protocol>,
    ) -> Result<Response, ApiError> {
        let head = request.head;
        let answered = match protocol {
            Some(protocol) => protocol.starting_response(&self.config, request).await,
            None => None,
        };
        answered.map_or_else(|| describe::starting_page(head.uri.path(), &head.headers, &self.metrics), Ok)
    }

    /// The outcome of a call, or an error when it is aborted.
    async fn unless_aborted(&self, call: Pin<&mut impl Future<Output = Outcome>>, is_polled: bool) -> Outcome {
        self.until_aborted(call, is_polled).await.unwrap_or_else(|| Ok(Err(ApiError::ending())))
    }

    /// `None` when calls in progress are aborted. If the connection polls it then, a check on each poll is enough.
    async fn until_aborted<F: Future>(&self, mut call: Pin<&mut F>, is_polled: bool) -> Option<F::Output> {
        if is_polled {
            poll_fn(|cx| match call.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if self.life.aborting.has_begun() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            })
            .await
        } else {
            // Boxed: the wait would enlarge the future of every call.
            Box::pin(self.life.aborting.unless_begun(call)).await
        }
    }
}

impl Responder for HttpEdge {
    fn respond(
        self,
        request: Request<ReceivedBody>,
        peer: PeerInfo,
    ) -> impl Future<Output = Response> + Send + 'static {
        // Requests of HTTP/2 are separate tasks.
        let is_polled = request.version() != Version::HTTP_2;
        self.answer(request, Some(peer), is_polled)
    }

    fn abort(&self) {
        Self::abort(self);
    }

    fn aborting(&self) -> Option<&ShutdownSignal> {
        Some(&self.0.life.aborting)
    }
}

impl<B> Service<Request<B>> for HttpEdge
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let edge = self.clone();
        let peer = request.extensions().get::<PeerInfo>().copied();
        if peer.is_none() {
            // The connection is another server's.
            upgrade::forget(request.extensions_mut());
        }
        Box::pin(async move { Ok(edge.answer(request, peer, false).await) })
    }
}

/// Counts a request as abandoned if it is dropped before its response: then its client has left.
struct OpenRequest<'a>(Option<&'a Counter>);

impl OpenRequest<'_> {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.0 {
            abandoned.inc();
        }
    }
}
