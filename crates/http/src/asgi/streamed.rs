//! The response of a mounted app: its head decides the status, then its body follows piece by piece.
//!
//! An error after the head cuts the body, so that its client knows. So does a body of another length than its head has
//! announced, and the [end](super::end) of the app.
//!
//! hyper drops a body whose announced length it has sent, and a body that the response cannot have. What the call still
//! says is read beside the response, which does not wait for it: otherwise the call would count as cancelled, and the
//! app would be. One that goes on for longer than [`REST_TIME`], or with more than [`REST_BYTES`], is.
//!
//! The end cancels the call in a task of its own: hyper asks for no more of a body whose client does not read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::Payload;
use callboard_core::edge::{PayloadReplies, Route};
use callboard_core::{Deadline, ErrorKind, Instant, LocalClient};
use callboard_telemetry::RequestSpan;
use futures_util::{StreamExt as _, stream};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::AsgiPart;
use super::end::{RequestEnd, request_end};
use super::head::response_of;
use crate::call::RequestContext;
use crate::error::ApiError;
use crate::observe::server_timing::{SERVER_TIMING, first as first_timing};
use crate::observe::stream_log::StreamedItems;
use crate::request_id::RequestId;
use crate::respond::WITHOUT_BODY;
use crate::respond::stream::{AbandonGuard, BrokenStream, next_reply};
use crate::upgrade::EdgeLife;

/// How much is read of a call whose client has the whole response.
const REST_TIME: Duration = Duration::from_secs(5);
const REST_BYTES: usize = 1024 * 1024;

/// The response, when its head is there.
pub(super) async fn begin(
    mut replies: PayloadReplies,
    context: RequestContext<'_>,
    route: &Arc<Route>,
    method: &Method,
) -> Result<Response, ApiError> {
    let life = Arc::clone(context.life);
    let mut end = request_end(Arc::clone(route), Arc::clone(&life), context.config.shutdown_grace);
    let first = tokio::select! {
        biased;
        () = &mut end => return Err(ApiError::ending()),
        first = replies.next() => first,
    };
    let first = match first {
        Some(part) => read(part?)?,
        None => return Err(ApiError::new(ErrorKind::Failed, "the app has ended without a response")),
    };
    let (mut response, announced) = response_of(&first)?;
    response.headers_mut().insert(SERVER_TIMING, first_timing(context.start.elapsed()));
    let (replies, end) = cancelled_at(end, replies);
    let rest = Rest { replies, end, life, id: context.id.clone(), route: route.name().to_owned() };
    if *method == Method::HEAD || announced == Some(0) || WITHOUT_BODY.contains(&response.status()) {
        rest.read_beside(false);
        return Ok(response);
    }
    let items = StreamedItems::default();
    let body = AsgiBody {
        rest: Some(rest),
        client: context.client.clone(),
        first: Some(first.body.into_bytes()),
        unsent: announced,
        leaving: AbandonGuard::new(context.metrics.requests.abandoned.clone()),
        items: items.clone(),
        _span: context.span.cloned(),
    };
    let body = Body::from_stream(stream::unfold(body, async |mut body| Some((body.next().await?, body))));
    *response.body_mut() = match announced {
        Some(bytes) => Body::new(Announced { body, unsent: bytes }),
        None => body,
    };
    // Its record in the access log is written at its end.
    response.extensions_mut().insert(items);
    Ok(response)
}

fn read(part: Payload) -> Result<AsgiPart, ApiError> {
    let read = part.into_inner::<AsgiPart>();
    read.map_err(|error| ApiError::new(ErrorKind::Failed, format!("a part of the response cannot be read: {error}")))
}

/// The replies, which are dropped at this end, asked for or not, and what tells of it. Then they say nothing more.
fn cancelled_at(mut end: RequestEnd, replies: PayloadReplies) -> (PayloadReplies, oneshot::Receiver<()>) {
    let held = Arc::new(Mutex::new(Some(replies)));
    let watched = Arc::downgrade(&held);
    let (mut has_ended, ended) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            () = &mut end => {}
            // The response is over.
            () = has_ended.closed() => return,
        }
        let replies = watched.upgrade().and_then(|held| held.lock().take());
        drop(replies);
        let _ = has_ended.send(());
    });
    let replies = stream::poll_fn(move |cx| match &mut *held.lock() {
        Some(replies) => replies.poll_next_unpin(cx),
        None => Poll::Pending,
    });
    (PayloadReplies::new(replies), ended)
}

/// What the call of a response has yet to say.
struct Rest {
    replies: PayloadReplies,
    end: oneshot::Receiver<()>,
    life: Arc<EdgeLife>,
    id: RequestId,
    route: String,
}

impl Rest {
    /// After an error it is over.
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let part = tokio::select! {
            biased;
            _ = &mut self.end => Err(ApiError::ending()),
            part = next_reply(&mut self.replies, &self.life) => part?,
        };
        Some(part.and_then(read).map(|part| part.body.into_bytes()))
    }

    /// Reads it for nobody, in a task of its own. `is_wrong` says whether more bytes are an error of the app.
    fn read_beside(mut self, is_wrong: bool) {
        tokio::spawn(async move {
            let reading = async {
                let mut bytes = 0;
                while let Some(piece) = self.next().await {
                    bytes += piece?.len();
                    if is_wrong && bytes > 0 {
                        return Err(wrong_length("longer"));
                    }
                    if bytes > REST_BYTES {
                        break;
                    }
                }
                Ok(())
            };
            if let Ok(Err(error)) = tokio::time::timeout(REST_TIME, reading).await {
                error.log(self.id.as_str(), Some(&self.route));
            }
        });
    }
}

/// The body of one response.
struct AsgiBody {
    /// Until the end: the last byte of an announced length, or an error.
    rest: Option<Rest>,
    /// Charges the pieces.
    client: LocalClient,
    /// What came with the head.
    first: Option<Bytes>,
    /// The bytes that are to come, if the head says how many.
    unsent: Option<u64>,
    leaving: AbandonGuard,
    items: StreamedItems,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl AsgiBody {
    /// The next piece.
    async fn next(&mut self) -> Option<Result<Bytes, BrokenStream>> {
        while self.rest.is_some() {
            match self.piece().await {
                Ok(Some(piece)) if piece.is_empty() => {}
                Ok(Some(piece)) => {
                    self.items.count();
                    return Some(Ok(piece));
                }
                Ok(None) => drop(self.end()),
                Err(error) => {
                    if let Some(rest) = self.end() {
                        error.log(rest.id.as_str(), Some(&rest.route));
                    }
                    // hyper sends the pieces that it has when it waits, and drops them at an error.
                    tokio::task::yield_now().await;
                    return Some(Err(BrokenStream));
                }
            }
        }
        None
    }

    /// What the call has yet to say after the body.
    fn end(&mut self) -> Option<Rest> {
        self.leaving.ended();
        self.rest.take()
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some(rest) = &mut self.rest else { return Ok(None) };
        let piece = match self.first.take() {
            Some(first) => first,
            None => match rest.next().await {
                Some(piece) => piece?,
                None if self.unsent.is_some_and(|bytes| bytes > 0) => return Err(wrong_length("shorter")),
                None => return Ok(None),
            },
        };
        if let Some(unsent) = &mut self.unsent {
            *unsent = unsent.checked_sub(piece.len() as u64).ok_or_else(|| wrong_length("longer"))?;
        }
        let edge = self.client.edge();
        let deadline = Deadline::after(Instant::now(), Deadline::DEFAULT_TIMEOUT);
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), deadline);
        budget.charge_outcome(piece.len())?;
        let charged = budget.charged(piece);
        if self.unsent == Some(0) {
            self.end().into_iter().for_each(|rest| rest.read_beside(true));
        }
        Ok(Some(charged))
    }
}

/// A body whose length the head has announced.
struct Announced {
    body: Body,
    unsent: u64,
}

impl HttpBody for Announced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let sent = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        self.unsent = self.unsent.saturating_sub(sent as u64);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.unsent == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.unsent)
    }
}

fn wrong_length(how: &str) -> ApiError {
    ApiError::new(ErrorKind::Failed, format!("the body of the response is {how} than its `content-length`"))
}
