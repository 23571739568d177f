//! The destination of a request: a route by its path, a route as a function, a mounted app, a protocol, or a page.
//!
//! Routes are looked up in the node's own table, which may change while serving, without a second router.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Request};
use callboard_codec::Format;
use callboard_core::edge::Route;

use super::{EdgeState, ServedNode};
use crate::asgi::app_of;
use crate::call::functions::{self, CallStyle};
use crate::protocol::{Protocol, Protocols};

/// The target of a path. Known before any check, so that a refusal is logged and counted as well.
#[derive(Debug)]
pub(super) struct Target<'a> {
    /// `None` while the node is starting.
    pub(super) node: Option<&'a ServedNode>,
    pub(super) route: Option<Arc<Route>>,
    pub(super) style: CallStyle,
    /// The protocol that claims the request, if it is not for a route.
    pub(super) protocol: Option<&'a dyn Protocol>,
}

/// The part that answers an admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination<'a> {
    /// The node is starting.
    Starting,
    /// A method that does not call this route.
    NoCall(&'a Route, CallStyle),
    /// One call of a route.
    Call(&'a ServedNode, &'a Arc<Route>, CallStyle),
    /// One call of a route whose paths or methods are declared.
    DeclaredCall(&'a ServedNode, &'a Arc<Route>),
    /// A request to a mounted app.
    Asgi(&'a ServedNode, &'a Arc<Route>),
    /// An ordered stream of calls of a route.
    CallStream(&'a ServedNode, &'a Arc<Route>, CallStyle),
    /// A protocol besides the routes.
    Protocol(&'a ServedNode, &'a dyn Protocol),
    /// A fixed page.
    Page(&'a ServedNode),
}

impl<'a> Target<'a> {
    pub(super) fn find(edge: &'a EdgeState, path: &str, headers: &HeaderMap) -> Self {
        let (node, protocols) = (edge.node.get(), &edge.protocols);
        let (route, style) = node.map_or((None, CallStyle::Route), |node| node.find(path, protocols));
        let protocol = match route {
            Some(_) => None,
            None => protocols.find(path, headers),
        };
        Self { node, route, style, protocol }
    }

    pub(super) fn destination<B>(&self, protocols: &'a Protocols, request: &Request<B>) -> Destination<'_> {
        match (self.node, &self.route, self.protocol) {
            (None, ..) => Destination::Starting,
            (Some(node), Some(route), _) if request.method() != Method::POST => {
                self.other_method(node, route, protocols, request)
            }
            (Some(node), Some(route), _)
                if functions::is_stream(request.headers()) && self.style != CallStyle::Asgi =>
            {
                Destination::CallStream(node, route, self.style)
            }
            (Some(node), Some(route), _) if self.style.is_rare() => rare(node, route, self.style, request),
            (Some(node), Some(route), _) => Destination::Call(node, route, self.style),
            (Some(node), None, Some(protocol)) => Destination::Protocol(node, protocol),
            (Some(node), None, None) => Destination::Page(node),
        }
    }

    /// Of a route that is not called, the upgrade of a protocol, such as a WebSocket, which begins with a GET.
    #[cold]
    fn other_method<'b, B>(
        &self,
        node: &'b ServedNode,
        route: &'b Arc<Route>,
        protocols: &'b Protocols,
        request: &Request<B>,
    ) -> Destination<'b> {
        if self.style.is_rare()
            && let found @ (Destination::Asgi(..) | Destination::DeclaredCall(..)) =
                rare(node, route, self.style, request)
        {
            return found;
        }
        let protocol = protocols.upgrading(request).filter(|_| self.style != CallStyle::Function);
        protocol.map_or(Destination::NoCall(route, self.style), |protocol| Destination::Protocol(node, protocol))
    }
}

#[cold]
fn rare<'a, B>(node: &'a ServedNode, route: &'a Arc<Route>, style: CallStyle, request: &Request<B>) -> Destination<'a> {
    if style == CallStyle::Asgi {
        Destination::Asgi(node, route)
    } else if takes(route, request) {
        Destination::DeclaredCall(node, route)
    } else {
        Destination::NoCall(route, style)
    }
}

/// Whether a request calls a route: by its method, or as an envelope, which only clients of Callboard send.
fn takes<B>(route: &Route, request: &Request<B>) -> bool {
    let (method, is_post) = (request.method(), request.method() == Method::POST);
    let is_envelope =
        || request.headers().get(CONTENT_TYPE).is_some_and(|value| value == Format::Envelope.media_type());
    route.request_fields().map_or(is_post, |fields| fields.has_method(method.as_str())) || (is_post && is_envelope())
}

/// The methods that call a route, for the header `allow`. A function is called by `POST`, whatever its route declares.
pub(super) fn allowed(route: &Route, style: CallStyle) -> String {
    let declared = route.request_fields().map(|fields| fields.methods.as_slice()).unwrap_or_default();
    match declared {
        [] => "POST".to_owned(),
        _ if style == CallStyle::Function => "POST".to_owned(),
        declared => {
            let head = declared.iter().any(|method| **method == *"GET").then_some("HEAD");
            declared.iter().map(|method| &**method).chain(head).collect::<Vec<_>>().join(", ")
        }
    }
}

impl ServedNode {
    /// The route of a path: by its own name, as a function, or by what it declares.
    fn find(&self, path: &str, protocols: &Protocols) -> (Option<Arc<Route>>, CallStyle) {
        let is_free = |route: &Arc<Route>| !protocols.is_reserved(route.name());
        // A route that was added later hides no page of the edge or of a protocol.
        if let Some(route) = self.client.edge().direct_route(path).filter(is_free) {
            return (Some(route), CallStyle::Route);
        }
        match functions::name_of(path).and_then(|name| self.client.route(&name)).filter(is_free) {
            Some(route) => (Some(route), CallStyle::Function),
            // Neither does one whose name takes the path of a page.
            None if protocols.is_reserved(path) => (None, CallStyle::Route),
            None => match self.client.route(path).filter(is_free) {
                Some(route) => (Some(route), CallStyle::Declared),
                None => (app_of(self.client.edge().private_routes(), path), CallStyle::Asgi),
            },
        }
    }
}
