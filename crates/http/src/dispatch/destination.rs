//! The destination of a request: a route by its path, a route as a function, a protocol, or a page.
//!
//! Routes are looked up in the node's own table, which may change while serving, without a second router.

use std::sync::Arc;

use axum::http::{HeaderMap, Method, Request};
use callboard_core::edge::Route;

use super::{EdgeState, ServedNode};
use crate::call::functions::{self, CallStyle};
use crate::protocol::{Protocol, Protocols};

/// The target of a path. Known before any check, so that a refusal is logged and counted as well.
#[derive(Debug)]
pub(super) struct Target<'a> {
    /// `None` while the node is starting.
    node: Option<&'a ServedNode>,
    pub(super) route: Option<Arc<Route>>,
    style: CallStyle,
    /// The protocol that claims the request, if it is not for a route.
    pub(super) protocol: Option<&'a dyn Protocol>,
}

/// The part that answers an admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination<'a> {
    /// The node is starting.
    Starting,
    /// A method that calls no route.
    NoCall,
    /// One call of a route.
    Call(&'a ServedNode, &'a Arc<Route>, CallStyle),
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
            (Some(node), Some(_), _) if request.method() != Method::POST => self.no_call(node, protocols, request),
            (Some(node), Some(route), _) if functions::is_stream(request.headers()) => {
                Destination::CallStream(node, route, self.style)
            }
            (Some(node), Some(route), _) => Destination::Call(node, route, self.style),
            (Some(node), None, Some(protocol)) => Destination::Protocol(node, protocol),
            (Some(node), None, None) => Destination::Page(node),
        }
    }

    /// Of a route that is not called: the upgrade of a protocol, such as a WebSocket, which begins with a GET.
    #[cold]
    fn no_call<B>(&self, node: &'a ServedNode, protocols: &'a Protocols, request: &Request<B>) -> Destination<'a> {
        let protocol = protocols.upgrading(request).filter(|_| self.style == CallStyle::Route);
        protocol.map_or(Destination::NoCall, |protocol| Destination::Protocol(node, protocol))
    }
}

impl ServedNode {
    /// The route of a path: by its own name, or as a function.
    fn find(&self, path: &str, protocols: &Protocols) -> (Option<Arc<Route>>, CallStyle) {
        match self.route(path, protocols) {
            Some(route) => (Some(route), CallStyle::Route),
            None => (functions::name_of(path).and_then(|name| self.route(&name, protocols)), CallStyle::Function),
        }
    }

    /// The user's route at this path. A route that was added later hides no page of the edge or of a protocol.
    fn route(&self, path: &str, protocols: &Protocols) -> Option<Arc<Route>> {
        self.client.route(path).filter(|route| !protocols.is_reserved(route.name()))
    }
}
