//! The destination of a request: a route by its path, a route as a function, a mounted app, a protocol, or a page.
//!
//! Routes are looked up in the node's own table, which may change while serving, without a second router.

use std::sync::Arc;

use axum::http::{Method, Request};
use callboard_core::edge::Route;

use super::{EdgeState, ServedNode};
use crate::asgi::app_of;
use crate::call::functions::{self, CallStyle};
use crate::call::method::method_of;
use crate::protocol::{Protocol, Protocols};

/// The target of a path. Known before any check, so that a refusal is logged and counted as well.
#[derive(Debug)]
pub(super) struct Target<'a> {
    /// `None` while the node is starting.
    pub(super) node: Option<&'a ServedNode>,
    pub(super) route: Option<Arc<Route>>,
    /// Whether the method calls the route, and not another one of its path or none.
    is_called: bool,
    pub(super) style: CallStyle,
    /// The protocol that claims the request, if it is not for a route.
    pub(super) protocol: Option<&'a dyn Protocol>,
}

/// The part that answers an admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination<'a> {
    /// The node is starting.
    Starting,
    /// A method that calls neither this route nor another one of its path.
    NoCall(&'a ServedNode, &'a Route, CallStyle),
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
    pub(super) fn find<B>(edge: &'a EdgeState, request: &Request<B>) -> Self {
        let (node, protocols) = (edge.node.get(), &edge.protocols);
        let found = node.and_then(|node| node.find(request, protocols));
        let protocol = match found {
            Some(_) => None,
            None => protocols.find(request.uri().path(), request.headers()),
        };
        let (route, style, is_called) =
            found.map_or((None, CallStyle::Route, false), |found| (Some(found.route), found.style, found.is_called));
        Self { node, route, is_called, style, protocol }
    }

    pub(super) fn destination<B>(&self, protocols: &'a Protocols, request: &Request<B>) -> Destination<'_> {
        match (self.node, &self.route, self.protocol) {
            (None, ..) => Destination::Starting,
            (Some(node), Some(route), _) if self.style == CallStyle::Asgi => Destination::Asgi(node, route),
            (Some(node), Some(route), _) if !self.is_called => self.other_method(node, route, protocols, request),
            (Some(node), Some(route), _)
                if request.method() == Method::POST && functions::is_stream(request.headers()) =>
            {
                Destination::CallStream(node, route, self.style)
            }
            (Some(node), Some(route), _) if self.style == CallStyle::Declared => Destination::DeclaredCall(node, route),
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
        let protocol = protocols.upgrading(request).filter(|_| self.style != CallStyle::Function);
        protocol.map_or(Destination::NoCall(node, route, self.style), |protocol| Destination::Protocol(node, protocol))
    }
}

/// A route that has the path of a request.
struct FoundRoute {
    route: Arc<Route>,
    style: CallStyle,
    is_called: bool,
}

impl ServedNode {
    /// The route of a path: by the path alone, as a function, or by what it declares.
    fn find<B>(&self, request: &Request<B>, protocols: &Protocols) -> Option<FoundRoute> {
        let (path, edge) = (request.uri().path(), self.client.edge());
        let is_posted = request.method() == Method::POST;
        let is_free = |route: &Arc<Route>| !protocols.is_reserved(route.path());
        // A route that was added later hides no page of the edge or of a protocol.
        if let Some(route) = edge.direct_route(path).filter(is_free) {
            return Some(FoundRoute { route, style: CallStyle::Route, is_called: is_posted });
        }
        if let Some(route) = functions::name_of(path).and_then(|name| self.client.route(&name)).filter(is_free) {
            return Some(FoundRoute { route, style: CallStyle::Function, is_called: is_posted });
        }
        // Neither does one whose name takes the path of a page.
        if protocols.is_reserved(path) {
            return None;
        }
        let declared = self.declared(path, method_of(request)).filter(|found| is_free(&found.route));
        declared.or_else(|| {
            let route = app_of(edge.private_routes(), path)?;
            Some(FoundRoute { route, style: CallStyle::Asgi, is_called: true })
        })
    }

    /// The route of a path that others may share. Without one for the method it is any of them.
    #[cold]
    fn declared(&self, path: &str, method: Option<&str>) -> Option<FoundRoute> {
        let called = self.client.edge().route_at(path, method);
        let is_called = called.is_some();
        let route = called.or_else(|| self.client.edge().routes_at(path).into_iter().next())?;
        // What calls a route does not change when another one gets its path.
        let style = if route.is_direct() { CallStyle::Route } else { CallStyle::Declared };
        Some(FoundRoute { route, style, is_called })
    }

    /// The methods that call the routes at the path of this one, for the header `allow`. A function is called by
    /// `POST`, whatever its route declares.
    pub(super) fn allowed(&self, route: &Route, style: CallStyle) -> String {
        if style == CallStyle::Function {
            return "POST".to_owned();
        }
        let routes = self.client.edge().routes_at(route.path());
        let mut methods: Vec<&str> = routes.iter().flat_map(|route| route.methods()).collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.join(", ")
    }
}
