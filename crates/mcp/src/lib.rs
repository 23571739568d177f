//! The Model Context Protocol over HTTP, at `/mcp`: agents call routes as tools.
//!
//! ```text
//!  POST /mcp   server/discover     what this server is, and which versions it speaks (since 2026-07-28)
//!              tools/list          the routes that are tools, by what the caller may call
//!              tools/call          one call of a route; a stream as progress, then the result
//!              initialize, ping    the handshake of clients before 2026-07-28, without a session
//!  GET  /.well-known/oauth-protected-resource    where tokens are got, if that is configured
//! ```
//!
//! A route is a tool if it says so ([`RouteSpec::tool`](callboard_core::RouteSpec::tool)), or if all are
//! ([`McpConfig::all_routes`]). Its name is the route with `_` for each further slash, its description and its
//! schemas those of the route. [`serve_stdio`] serves the same on stdin and stdout, for hosts that start their servers.
//!
//! The protocol translates: it has no queue, no session, no retry and no default of its own.
//!
//! * **Full, late:** as every call; the refusal is a result with `isError`, for the model to read.
//! * **Cancelled:** a client of 2026-07-28 cancels by closing the response. A call of an older client runs on, unless it
//!   may run again (`replies.rs`).

mod answer;
mod call;
mod config;
mod era;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod metadata;
mod methods;
mod piece;
mod progress;
mod replies;
mod respond;
mod rpc;
mod schema;
mod stdio;
mod tools;

use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{ErrorKind, LocalClient};
use callboard_http::axum::http::Method;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, Claims, Protocol, ProtocolAnswer, ProtocolDocument, ProtocolRequest, RequestContext, UnroutedRequest,
    compressed,
};
use serde_json::{Value, json};

pub use self::config::{Authorization, AuthorizationError, McpConfig};
pub use self::stdio::{AnswerBody, ExchangeError, HostMessage, LocalNode, MessageExchange, PostedAnswer, serve_stdio};

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use self::fuzz::read_host_lines;

use self::answer::Asked;
use self::call::ToolCall;
use self::era::Era;
use self::respond::{Refusal, accepted, json_response, refused};
use self::tools::Tools;

/// The path of the protocol.
const PATH: &str = "/mcp";

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Debug, Default)]
pub struct McpProtocol {
    config: McpConfig,
}

impl McpProtocol {
    /// The protocol with these settings.
    #[must_use]
    pub fn new(config: McpConfig) -> Self {
        Self { config }
    }

    /// The names of the tools of a node, in their order.
    #[must_use]
    pub fn tool_names(&self, client: &LocalClient) -> Vec<String> {
        self.tools().list(client).into_iter().map(|(name, _)| name).collect()
    }

    /// The call that gives `input` to a route: the name of its tool, and the arguments. `None` if the route is no tool.
    #[must_use]
    pub fn tool_call(&self, route: &Route, input: Value) -> Option<(String, Value)> {
        let arguments = match schema::argument(route.input()) {
            Some(name) => json!({ name: input }),
            None => input,
        };
        self.tools().is_tool(route).then(|| (tools::name_of(route.name()), arguments))
    }

    fn tools(&self) -> Tools {
        Tools { all: self.config.all_routes }
    }

    async fn answer(&self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let (path, method) = (request.head.uri.path(), &request.head.method);
        if path != PATH {
            return match &self.config.authorization {
                Some(authorization) if path.starts_with(metadata::WELL_KNOWN) => match *method {
                    Method::GET | Method::HEAD => Ok(metadata::document(authorization)),
                    _ => Err(ApiError::method_not_allowed(method, "GET, HEAD")),
                },
                _ => Err(ApiError::new(ErrorKind::NotFound, "there is nothing here; agents use `POST /mcp`")),
            };
        }
        if method != Method::POST {
            return Err(ApiError::method_not_allowed(method, "POST"));
        }
        match self.exchange(context, request).await {
            Ok(response) => Ok(response),
            Err(Refusal::Http(error, None)) => Err(error),
            Err(Refusal::Http(error, Some(id))) => {
                error.log(context.id.as_str(), None);
                Ok(refused(&error, Some(&id)))
            }
            Err(Refusal::Rpc { id, era, error }) => {
                Ok(json_response(era.status_of(error.code), rpc::error(id.as_ref(), &error)))
            }
        }
    }

    /// Reads a message and answers it.
    async fn exchange(&self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, Refusal> {
        let parts = request.head;
        context.check_page(parts)?;
        let UnroutedRequest { head, bytes, account, budget, compression } = context.read_unrouted(request).await?;
        let body_bytes = bytes.len() as u64;
        let ((), message) = budget.read((), bytes, |bytes| Ok::<_, ApiError>(rpc::read(bytes))).await?;
        let message = message.map_err(Refusal::unread)?;

        let era = Era::of(&parts.headers, &message);
        if era == Era::Stateless {
            let refused = |error| Refusal::Rpc { id: message.id.clone(), era, error };
            era::check(&parts.headers, &message).map_err(refused)?;
        }
        let Some(id) = message.id.clone() else { return Ok(accepted()) };
        let asked = Asked { id, era };
        let response = if message.method == "tools/call" {
            let call = ToolCall { context, parts, head, asked, body: account, body_bytes };
            call.run(self.tools(), message).await?
        } else {
            methods::answer(&self.config, self.tools(), context, &asked, &message)?
        };
        Ok(compressed(response, &compression).await)
    }
}

impl Protocol for McpProtocol {
    fn name(&self) -> &str {
        "the Model Context Protocol"
    }

    fn door(&self) -> &'static str {
        "mcp"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &[PATH, metadata::WELL_KNOWN], open_paths: &[metadata::WELL_KNOWN], ..Claims::default() }
    }

    fn check(&self, routes: &[Arc<Route>]) -> Result<(), String> {
        self.tools().check(routes)
    }

    /// Without a tool there is nothing to call.
    fn document(&self, routes: &[Arc<Route>], _: &mut dyn FnMut(&str, Value) -> Value) -> Option<ProtocolDocument> {
        let description = format!("Routes as tools for agents, by the Model Context Protocol at `POST {PATH}`.");
        let tag = json!({ "name": "mcp", "description": description });
        let tools = self.tools();
        let has_tool = routes.iter().any(|route| tools.is_tool(route));
        has_tool.then(|| ProtocolDocument { tag, ..ProtocolDocument::default() })
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(self.answer(context, request))
    }

    fn error_response(&self, error: ApiError) -> Response {
        let mut response = refused(&error, None);
        if let Some(authorization) = &self.config.authorization {
            metadata::add_challenge(authorization, &mut response);
        }
        response
    }
}
