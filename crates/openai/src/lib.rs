//! OpenAI's API over HTTP, under `/v1`: its clients call routes that have a [`Task`] as models.
//!
//! ```text
//!  GET  /v1/models[/{id}]         the routes with a task; an id is the route without the leading slash
//!  POST /v1/chat/completions      chat: messages to a message, whole or streamed
//!  POST /v1/responses             chat as well: items to items, whole or streamed; nothing is kept
//!  POST /v1/completions           complete: a prompt to a text, whole or streamed
//!  POST /v1/embeddings            embed: each entry is an item of the route's batches
//!  POST /v1/rerank, /rerank       rerank: each pair of query and document is an item
//!  POST /v1/moderations           moderate: each text is an item
//!  POST /v1/audio/transcriptions  transcribe: a recording in a form to a text, whole or streamed
//!  POST /v1/audio/translations    transcribe as well, if the route takes a `task`: to a text in English
//!  POST /v1/audio/speech          speak: a text to bytes, whole or streamed
//!  POST /v1/images/generations    image: each of `n` pictures is an item
//! ```
//!
//! The protocol translates: it has no queue, no retry and no default of its own. A route gets the fields that its
//! schema names (`input`), and answers with a text, texts, or an object with more (`reply`). Unknown fields are never
//! refused. Errors are `{"error": {"message", "type", "param", "code"}}` with the edge's statuses, except that a body
//! which does not fit the route's type is 400 instead of 422 (`error`).
//!
//! [`MessagesProtocol`] is Anthropic's Messages API, `/v1/messages`, in front of the same models for chat, and
//! [`CohereProtocol`] Cohere's second version of reranking, `/v2/rerank`.
//!
//! The wire is that of OpenAI's API as its Python library 3.57 reads it; reranking, which it has not, is as Jina's and
//! Cohere's first version have it.

mod cohere;
mod convert;
mod document;
mod embed;
mod error;
mod example;
mod fields;
mod generate;
mod image;
mod input;
mod items;
mod messages;
mod models;
mod parts;
mod path;
mod rank;
mod rate;
mod reply;
mod request;
mod respond;
mod responses;
mod speech;
mod stop;
mod subtitles;
mod transcribe;

use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{ErrorKind, Task};
use callboard_http::axum::Json;
use callboard_http::axum::http::Method;
use callboard_http::axum::response::{IntoResponse, Response};
use callboard_http::protocol::{
    ApiError, Claims, KeyHolder, Protocol, ProtocolAnswer, ProtocolDocument, ProtocolRequest, RequestContext,
};
use serde_json::Value;

pub use self::cohere::CohereProtocol;
pub use self::example::request_fields;
pub use self::messages::MessagesProtocol;
use self::path::{Endpoint, PATHS, RERANK};
use self::rate::add_rate;
use self::request::ModelRequest;
use self::transcribe::Purpose;

/// The protocol, for an [`HttpEdge`](callboard_http::HttpEdge).
#[derive(Debug)]
pub struct OpenAiProtocol {
    /// When models began to be served, in seconds since 1970.
    created: u64,
}

impl Default for OpenAiProtocol {
    fn default() -> Self {
        Self { created: models::now() }
    }
}

impl OpenAiProtocol {
    /// The protocol.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    async fn answer(&self, context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
        let path = request.head.uri.path();
        let endpoint = Endpoint::parse(path);
        let method = &request.head.method;
        let is_read = method == Method::GET || method == Method::HEAD;
        match endpoint {
            Endpoint::Models | Endpoint::Model(_) if !is_read => Err(ApiError::method_not_allowed(method, "GET, HEAD")),
            Endpoint::Call(_) | Endpoint::Translations | Endpoint::Responses if method != Method::POST => {
                Err(ApiError::method_not_allowed(method, "POST"))
            }
            Endpoint::Models => Ok(Json(models::list(context.client, self.created)).into_response()),
            Endpoint::Model(id) => {
                let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
                let (_, task) = models::any(context.client, &id)?;
                Ok(Json(models::object(&id, task, self.created)).into_response())
            }
            Endpoint::Call(task) => {
                let request = match task {
                    Task::Transcribe => Box::pin(ModelRequest::read_form(context, task, request)).await?,
                    _ => ModelRequest::read(context, task, request).await?,
                };
                let route = request.route.name().to_owned();
                // Boxed, because they are large.
                let answer = match task {
                    Task::Chat | Task::Complete => Box::pin(generate::generate(request)).await,
                    Task::Embed => Box::pin(embed::embed(request)).await,
                    Task::Rerank => Box::pin(rank::rerank(request, rank::Dialect::Jina)).await,
                    Task::Moderate => Box::pin(rank::moderate(request)).await,
                    Task::Transcribe => Box::pin(transcribe::transcribe(request, Purpose::Transcribe)).await,
                    Task::Speak => Box::pin(speech::speak(request)).await,
                    Task::Image => Box::pin(image::draw(request)).await,
                };
                answer.map_err(|error| error.about(&route))
            }
            Endpoint::Translations => {
                let request = Box::pin(ModelRequest::read_form(context, Task::Transcribe, request)).await?;
                let route = request.route.name().to_owned();
                let answer = Box::pin(transcribe::transcribe(request, Purpose::Translate)).await;
                answer.map_err(|error| error.about(&route))
            }
            Endpoint::Responses => Box::pin(responses::answer(context, request)).await,
            Endpoint::Missing(what) => {
                Err(ApiError::new(ErrorKind::NotFound, format!("this server does not offer {what}")))
            }
            Endpoint::Unknown => {
                Err(ApiError::new(ErrorKind::NotFound, format!("there is no `{}`", models::shown(path))))
            }
        }
    }
}

impl Protocol for OpenAiProtocol {
    fn name(&self) -> &str {
        "OpenAI's API"
    }

    fn door(&self) -> &'static str {
        "openai"
    }

    fn claims(&self) -> Claims {
        Claims { paths: &PATHS, shared_paths: &[RERANK], ..Claims::default() }
    }

    fn answer<'a>(&'a self, context: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        Box::pin(async move {
            let mut response = self.answer(context, request).await?;
            add_rate(response.headers_mut(), context.key_holder.and_then(KeyHolder::rate_left));
            Ok(response)
        })
    }

    fn error_response(&self, error: ApiError) -> Response {
        error::response(&error)
    }

    fn document(
        &self,
        routes: &[Arc<Route>],
        add_schema: &mut dyn FnMut(&str, Value) -> Value,
    ) -> Option<ProtocolDocument> {
        document::document(routes, add_schema)
    }
}
