//! OpenAI's Responses API, `POST /v1/responses`, in front of the routes that chat. Nothing is kept.
//!
//! A request becomes one of chat (`conversation`), runs as one, and its answer becomes the items of a response
//! (`items`), whole or as events (`answer`). The wire is that of OpenAI's Python library 3.57.

mod answer;
mod conversation;
mod items;

use callboard_core::{ErrorKind, Task};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, ProtocolRequest, RequestContext};

use crate::generate;
use crate::request::ModelRequest;

/// Answers `POST /v1/responses`.
pub(crate) async fn answer(context: RequestContext<'_>, request: ProtocolRequest<'_>) -> Result<Response, ApiError> {
    let id = context.id.as_str().to_owned();
    let mut request = ModelRequest::read_as(context, Task::Chat, request, conversation::to_chat).await?;
    let route = request.route.name().to_owned();
    let answer = async {
        let is_streamed = request.is_set("stream")?;
        let mut choices = generate::choices(&mut request).await?;
        let choice = choices.pop().ok_or_else(|| ApiError::new(ErrorKind::Internal, "there is no choice"))?;
        if is_streamed {
            answer::streamed(request, &id, choice).await
        } else {
            answer::whole(request, &id, choice).await
        }
    };
    Box::pin(answer).await.map_err(|error: ApiError| error.about(&route))
}
