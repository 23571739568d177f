//! Cohere's second API in front of the routes that rank: `POST /v2/rerank`.
//!
//! Errors are `{"message"}` with the edge's statuses, but for one: Cohere's libraries repeat 408, 409, 429 and
//! every 5xx by themselves, whatever a header says. A failure of calls that may have run, and may not run again, has
//! status 424 there. The wire is that of Cohere's Python library 7.3.

use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{ErrorKind, Task};
use callboard_http::axum::http::{Method, StatusCode};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, Claims, Protocol, ProtocolAnswer, ProtocolDocument, ProtocolRequest, RequestContext, X_SHOULD_RETRY,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::response_with;
use crate::models::ids_of;
use crate::rank::{Dialect, rerank};
use crate::request::ModelRequest;

const PATH: &str = "/v2/rerank";

/// The name of the error response in documents.
const ERROR: &str = "CohereError";

/// The tag of the operation.
const TAG: &str = "cohere";

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Clone, Copy, Debug, Default)]
pub struct CohereProtocol;

#[derive(Serialize)]
struct CohereErrorJson<'a> {
    message: &'a str,
}

impl CohereProtocol {
    async fn answer(self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let method = &request.head.method;
        if request.head.uri.path() != PATH {
            return Err(ApiError::new(ErrorKind::NotFound, format!("of Cohere's API this server offers {PATH} alone")));
        }
        if method != Method::POST {
            return Err(ApiError::method_not_allowed(method, "POST"));
        }
        let request = ModelRequest::read(context, Task::Rerank, request).await?;
        let route = request.route.name().to_owned();
        Box::pin(rerank(request, Dialect::Cohere)).await.map_err(|error| error.about(&route))
    }
}

impl Protocol for CohereProtocol {
    fn name(&self) -> &str {
        "Cohere's API"
    }

    fn door(&self) -> &'static str {
        "cohere"
    }

    fn claims(&self) -> Claims {
        Claims { shared_paths: &[PATH], ..Claims::default() }
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(Self::answer(*self, context, request))
    }

    fn error_response(&self, error: ApiError) -> Response {
        // A text can always be written.
        let body = serde_json::to_vec(&CohereErrorJson { message: error.message() }).unwrap_or_default();
        let mut response = response_with(&error, body);
        response.headers_mut().remove(X_SHOULD_RETRY);
        if error.may_have_run() && error.must_not_be_repeated() {
            *response.status_mut() = StatusCode::FAILED_DEPENDENCY;
        }
        response
    }

    fn document(
        &self,
        routes: &[Arc<Route>],
        add_schema: &mut dyn FnMut(&str, Value) -> Value,
    ) -> Option<ProtocolDocument> {
        let models = ids_of(routes, Task::Rerank);
        if models.is_empty() {
            return None;
        }
        let properties = json!({
            "model": { "type": "string", "enum": models },
            "query": { "type": "string" },
            "documents": { "type": "array", "minItems": 1, "items": { "type": "string" } },
            "top_n": { "type": "integer", "minimum": 1 },
        });
        let request =
            json!({ "type": "object", "required": ["model", "query", "documents"], "properties": properties });
        let answer = add_schema("CohereRanking", json!({ "type": "object", "required": ["results"] }));
        let error =
            json!({ "type": "object", "required": ["message"], "properties": { "message": { "type": "string" } } });
        let error = add_schema(ERROR, error);
        let operation = json!({
            "operationId": "cohere_rerank",
            "summary": "Documents, the best for a query first",
            "tags": [TAG],
            "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
            "responses": {
                "200": { "description": "The answer", "content": { "application/json": { "schema": answer } } },
                "default": { "$ref": format!("#/components/responses/{ERROR}") },
            },
        });
        let response = json!({ "description": "An error", "content": { "application/json": { "schema": error } } });
        Some(ProtocolDocument {
            tag: json!({ "name": TAG, "description": "Routes that rank as models of Cohere's API." }),
            paths: Map::from_iter([(PATH.to_owned(), json!({ "post": operation }))]),
            responses: Map::from_iter([(ERROR.to_owned(), response)]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_run_has_a_status_that_is_not_repeated() {
        // More at once than the limit of a key: not repeatable, but nothing has run.
        let limit = ApiError::with_status(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many".to_owned());
        for (error, status) in [
            (ApiError::new(ErrorKind::Overloaded, "full"), 429),
            (ApiError::new(ErrorKind::Overloaded, "full").of_calls_that_ran(), 424),
            (limit, 429),
            (ApiError::new(ErrorKind::Failed, "it broke"), 424),
            (ApiError::new(ErrorKind::NotFound, "no").of_calls_that_ran(), 404),
        ] {
            assert_eq!(CohereProtocol.error_response(error).status().as_u16(), status);
        }
    }
}
