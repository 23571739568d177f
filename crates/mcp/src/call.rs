//! `tools/call`, as an outline: the tool is found, its arguments become the input of one call of its route, and the
//! outputs the content of one result.
//!
//! * **Streamed:** a client that sends a progress token gets each output of a stream as it comes (`progress.rs`). The
//!   result has all of them, too: a model reads only that.
//! * **Failed:** see `answer.rs`.
//! * **Cancelled:** see `replies.rs`.

use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::Format;
use callboard_core::Deadline;
use callboard_core::edge::Route;
use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::http::request::Parts;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, HeldBytes, RequestContext, RequestHead, SERVER_TIMING, decode_input, total};

use crate::answer::{Answered, Asked, answered, written};
use crate::era::Era;
use crate::piece::PieceReader;
use crate::progress;
use crate::replies::Replies;
use crate::respond::{Refusal, json_response};
use crate::rpc::{self, INVALID_PARAMS, Message, RpcError};
use crate::schema;
use crate::stdio::CLOSING_CANCELS;
use crate::tools::Tools;

/// A call whose message was read.
pub(crate) struct ToolCall<'a> {
    pub(crate) context: RequestContext<'a>,
    pub(crate) parts: &'a Parts,
    pub(crate) head: RequestHead<'a>,
    pub(crate) asked: Asked,
    /// Pays for the body.
    pub(crate) body: Arc<HeldBytes>,
    pub(crate) body_bytes: u64,
}

impl ToolCall<'_> {
    pub(crate) async fn run(self, tools: Tools, message: Message) -> Result<Response, Refusal> {
        let id = self.asked.id.clone();
        let name = message.params.name.ok_or_else(|| {
            Refusal::rpc(&self.asked, RpcError::new(INVALID_PARAMS, "`name` is required: the name of a tool"))
        })?;
        let route = tools
            .find(self.context.client, &name)
            .map_err(|message| Refusal::rpc(&self.asked, RpcError::new(INVALID_PARAMS, message)))?;
        let own_limit = self.context.config.max_body_bytes_of(route.name());
        if self.body_bytes > own_limit {
            return Err(Refusal::Http(ApiError::body_too_large(own_limit).about(route.name()), Some(id)));
        }
        let token = message.params.meta.and_then(|meta| meta.progress_token);
        let token = token.filter(|_| route.streams() && accepts_events(&self.parts.headers));
        let (asked, request_id) = (self.asked.clone(), self.context.id.clone());
        let answer = match self.start(&route, message.params.arguments).await {
            Err(error) => Err(error),
            Ok((replies, reader)) => match token {
                // Boxed, because it is large and rare.
                Some(token) => {
                    Box::pin(progress::respond(&self.context, self.asked.clone(), replies, reader, token)).await
                }
                None => self.whole(replies, reader).await,
            },
        };
        match answer {
            Ok(response) => Ok(response),
            Err(error) if answered(error.kind()) == Answered::Status => {
                Err(Refusal::Http(error.about(route.name()), Some(asked.id)))
            }
            Err(error) => {
                error.log(request_id.as_str(), Some(route.name()));
                let code = match answered(error.kind()) {
                    Answered::Error(code) => asked.era.status_of(code),
                    Answered::Result | Answered::Status => 200,
                };
                Ok(json_response(code, asked.failure(&error, request_id.as_str())))
            }
        }
    }

    /// Admits the call, reads its input and starts it.
    async fn start(&self, route: &Arc<Route>, arguments: Option<Bytes>) -> Result<(Replies, PieceReader), ApiError> {
        let RequestContext { client, config, metrics, life, start, .. } = self.context;
        let edge = client.edge();
        let deadline = Deadline::after(start, edge.timeout_of(route, self.head.timeout));
        let request = (&self.parts.uri, &self.parts.headers, &self.parts.extensions);
        let options = self.context.call_options(route, request, deadline, &self.head)?;
        let admission = edge.admit_session(route, 0, options.session())?;
        let budget = edge.codec_budget(admission.account(), deadline);
        budget.charge(options.attribute_bytes())?;
        let arguments = arguments.unwrap_or_else(|| Bytes::from_static(schema::no_arguments()));
        let input = match schema::argument(route.input()) {
            None => arguments,
            // Walking a large object takes long enough for another thread.
            Some(name) => {
                let name = name.to_owned();
                let find = move |arguments: &Bytes| Ok::<_, ApiError>(rpc::member(arguments, &name));
                let ((), found) = budget.read((), arguments, find).await?;
                found.unwrap_or_else(|| Bytes::from_static(b"null"))
            }
        };
        let (admission, payload) = decode_input(&budget, admission, route, Format::Json, input, &config.decode).await?;
        let replies = edge.submit_streaming(admission, payload, options);
        let closing_cancels = self.parts.headers.contains_key(CLOSING_CANCELS);
        let is_kept = self.asked.era == Era::Handshake && !closing_cancels && !edge.may_run_again(route);
        let replies = Replies::new(replies, Arc::clone(life), Arc::clone(&self.body), is_kept);
        let reader = PieceReader {
            client: client.clone(),
            route: Arc::clone(route),
            deadline,
            panics: metrics.requests.panics.clone(),
            account: Arc::new(edge.held_bytes()),
        };
        Ok((replies, reader))
    }

    /// Waits for all outputs and answers with them.
    async fn whole(&self, mut replies: Replies, reader: PieceReader) -> Result<Response, ApiError> {
        let mut pieces = Vec::new();
        while let Some(reply) = replies.next().await {
            pieces.push(reader.read(reply?).await?);
        }
        let bytes = written(&self.asked, pieces, &reader).await?;
        let mut response = json_response(200, bytes);
        response.headers_mut().insert(SERVER_TIMING, total(self.context.start.elapsed()));
        Ok(response)
    }
}

/// Whether the client reads events.
fn accepts_events(headers: &HeaderMap) -> bool {
    let lines = headers.get_all("accept").iter().filter_map(|line| line.to_str().ok());
    let ranges = lines.flat_map(|line| line.split(',')).map(|range| range.split(';').next().unwrap_or_default().trim());
    ranges
        .into_iter()
        .any(|range| ["text/event-stream", "text/*", "*/*"].iter().any(|known| range.eq_ignore_ascii_case(known)))
}
