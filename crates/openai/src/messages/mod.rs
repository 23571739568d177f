//! Anthropic's Messages API: `POST /v1/messages` in front of the routes that chat.
//!
//! A request becomes one of chat (`conversation`), runs as one, and its answer becomes a message (`answer`); errors
//! have the form of that API (`error`), and headers tell what is left of the rate of a key (`rate`). The wire is that
//! of Anthropic's Python library 2.14.

mod answer;
mod conversation;
mod document;
mod error;
mod rate;

use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{ErrorKind, Task};
use callboard_http::axum::http::Method;
use callboard_http::axum::http::header::HeaderName;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, Claims, KeyHolder, Protocol, ProtocolAnswer, ProtocolDocument, ProtocolRequest, RequestContext,
};
use serde_json::Value;

use self::rate::add_rate;
use crate::error::response_with;
use crate::generate;
use crate::request::ModelRequest;

const PATH: &str = "/v1/messages";

/// The id of a request, as its clients read it.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagesProtocol;

impl MessagesProtocol {
    async fn answer(self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let (path, method) = (request.head.uri.path(), &request.head.method);
        if path != PATH {
            return Err(ApiError::new(
                ErrorKind::NotFound,
                format!("of Anthropic's API this server offers {PATH} alone"),
            ));
        }
        if method != Method::POST {
            return Err(ApiError::method_not_allowed(method, "POST"));
        }
        let id = format!("msg_{}", context.id.as_str());
        let mut request = ModelRequest::read_as(context, Task::Chat, request, conversation::to_chat).await?;
        let route = request.route.name().to_owned();
        let answer = async {
            let is_streamed = request.is_set("stream")?;
            let mut choices = generate::choices(&mut request).await?;
            let choice = choices.pop().ok_or_else(|| ApiError::new(ErrorKind::Internal, "there is no choice"))?;
            if is_streamed {
                answer::streamed(request, id, choice).await
            } else {
                answer::whole(request, id, choice).await
            }
        };
        Box::pin(answer).await.map_err(|error: ApiError| error.about(&route))
    }
}

impl Protocol for MessagesProtocol {
    fn name(&self) -> &str {
        "Anthropic's Messages API"
    }

    fn door(&self) -> &'static str {
        "anthropic"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &[PATH], ..Claims::default() }
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            let mut response = Self::answer(*self, context, request).await?;
            add_rate(response.headers_mut(), context.key_holder.and_then(KeyHolder::rate_left));
            Ok(response)
        })
    }

    fn error_response(&self, error: ApiError) -> Response {
        // A text can always be written.
        let mut response = response_with(&error, serde_json::to_vec(&error::body(&error)).unwrap_or_default());
        add_rate(response.headers_mut(), error.rate_left());
        response
    }

    fn request_id_header(&self) -> Option<HeaderName> {
        Some(REQUEST_ID)
    }

    fn document(
        &self,
        routes: &[Arc<Route>],
        add_schema: &mut dyn FnMut(&str, Value) -> Value,
    ) -> Option<ProtocolDocument> {
        document::document(routes, add_schema)
    }
}
