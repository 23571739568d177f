//! The outputs of a streaming call, at the pace of their reader.
//!
//! The client grants the node credit for a number of outputs, and more when half of them are read. While the reader
//! pauses, the worker waits, without traffic.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use callboard_codec::wire::{Credit, FrameKind, frame_head};
use callboard_core::{CallError, CallOptions, ErrorKind, Instant, Timing};
use futures_util::{Stream, StreamExt, stream};

use super::call::{CallExchange, OutputForm, RoomPolicy};
use super::connection::NodeConnection;
use super::fault::CallFault;
use super::{CallTime, Client, Prepared, Response, within};
use crate::wire;

/// The outputs of one call, with their lengths. An error is the last item. Made by [`Client::exchange_streaming`].
#[must_use = "a call runs as its outputs are read"]
pub struct ResponseStream<Out>(Pin<Box<dyn Stream<Item = Result<Response<Out>, CallError>> + Send>>);

impl<Out> ResponseStream<Out> {
    /// The next output; `None` after the last one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Response<Out>, CallError>> {
        self.0.next().await
    }
}

impl<Out> Stream for ResponseStream<Out> {
    type Item = Result<Response<Out>, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl<Out> fmt::Debug for ResponseStream<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseStream").finish_non_exhaustive()
    }
}

/// A stream whose call starts with its first poll; its deadline counts from now.
pub(super) fn read<Form: OutputForm>(
    client: Client,
    prepared: Prepared,
    options: CallOptions,
) -> ResponseStream<Form::Output> {
    let time = CallTime::new(&options, Instant::now());
    let reading = StreamedCall { client, options, time, node: None, phase: StreamPhase::Begin(Box::new(prepared)) };
    ResponseStream(Box::pin(stream::unfold(reading, StreamedCall::next::<Form>)))
}

struct StreamedCall {
    client: Client,
    options: CallOptions,
    time: CallTime,
    /// The node of the call, until the first output.
    node: Option<Arc<NodeConnection>>,
    phase: StreamPhase,
}

enum StreamPhase {
    Begin(Box<Prepared>),
    Open { route: String, exchange: Box<CallExchange>, read: u32 },
    Ended,
}

impl StreamedCall {
    async fn next<Form: OutputForm>(mut self) -> Option<(Result<Response<Form::Output>, CallError>, Self)> {
        if matches!(self.phase, StreamPhase::Ended) {
            return None;
        }
        if let StreamPhase::Begin(prepared) = &self.phase {
            let connected = match self.options.check() {
                Ok(()) => self.client.connection_for(&prepared.call.route, &mut self.time).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(node) => self.node = Some(node),
                Err(error) => {
                    self.phase = StreamPhase::Ended;
                    return Some((Err(error), self));
                }
            }
        }
        let outcome = within(self.time.deadline, true, self.advance::<Form>()).await;
        let node = self.node.take();
        match outcome {
            Ok(Some(returned)) => Some((Ok(returned), self)),
            Ok(None) => None,
            Err(fault) => {
                // A retry of the caller goes to another node, if there is one.
                if let Some(node) = node.filter(|_| fault.error().is_refusal()) {
                    self.client.inner.pool.turn_away_from(&node);
                }
                // This drops the exchange, which resets its stream.
                self.phase = StreamPhase::Ended;
                Some((Err(fault.into_error()), self))
            }
        }
    }

    async fn advance<Form: OutputForm>(&mut self) -> Result<Option<Response<Form::Output>>, CallFault> {
        if let (StreamPhase::Begin(prepared), Some(node)) = (&self.phase, &self.node) {
            self.phase = self.begin(node, Prepared::clone(prepared), Form::IS_ENCODED).await?;
        }
        let credit = self.client.inner.credit;
        let StreamPhase::Open { route, exchange, read } = &mut self.phase else { return Ok(None) };
        let head = exchange.next_head().await?;
        if head.kind != FrameKind::Item {
            exchange.response(&head).await?;
            exchange.outgoing.finish();
            self.phase = StreamPhase::Ended;
            return Ok(None);
        }
        let body = exchange.body(&head).await?;
        let received_bytes = body.total_bytes().unwrap_or_default() as u64;
        let output = Form::read(body, route).await?;
        *read += 1;
        // Granted at half of the credit, so that the node need not wait for it.
        if *read * 2 >= credit {
            let more = Credit { items: std::mem::take(read) };
            let head = frame_head(FrameKind::Credit, 0, &more, 0);
            let head = head.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
            // Fails if the node has sent everything and reads no more; its outputs can still be read.
            let _ = exchange.outgoing.write(&mut [head]).await;
        }
        Ok(Some(Response { output, timing: Timing::default(), received_bytes, fields: None }))
    }

    /// Sends the call, without retries: streams are seldom small, and their reader decides.
    async fn begin(
        &self,
        node: &Arc<NodeConnection>,
        prepared: Prepared,
        is_encoded: bool,
    ) -> Result<StreamPhase, CallFault> {
        let inner = &self.client.inner;
        let mut exchange = CallExchange::open(node, inner.reply_limits(is_encoded), RoomPolicy::Wait).await?;
        let Prepared { mut call, envelope, .. } = prepared;
        wire::put_options(&mut call, &self.time.on(&self.options), Instant::now());
        call.credit = inner.credit;
        match exchange.send(&call, envelope, false).await? {
            None => Ok(StreamPhase::Open { route: call.route, exchange: Box::new(exchange), read: 0 }),
            Some(head) if head.kind == FrameKind::Fail => Err(exchange.fail(&head).await),
            Some(_) => Err(CallFault::not_started("the node answered before it had the whole call")),
        }
    }
}
