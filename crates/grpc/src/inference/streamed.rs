//! `ModelStreamInfer`: requests in, answers out, on one stream.
//!
//! * **Order:** requests to models that answer once are answered in the order in which they came. The answers of a
//!   model that streams come in their order, between those of other requests.
//! * **Full:** a stream has a bounded number of open requests; then the next one is not read, and flow control holds
//!   the client. A slow reader suspends the calls of models that stream.
//! * **Failed:** an error of one request is an answer with its id, and the stream goes on. With the metadata
//!   `triton_grpc_error: true` the first error ends the stream with its status.
//! * **Final:** each answer says whether it is the last one of its request. If the last output of a model that streams
//!   had left before its end was known, an empty answer follows for a request that asks for it.
//! * **Ending:** a node that callers are to leave reads no further request; those that it has read are answered.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::edge::HeldBytes;
use callboard_core::{Deadline, Instant};
use callboard_http::axum::http::request::Parts;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, CallOrigin, ContentCoding, EdgeLife, OverLimit, RequestContext, RequestHead, next_reply,
};
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::{Array, InferRequest, Refusal, items_of};
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use prost::Message as _;
use tokio::time::sleep_until;

use super::infer::{Admitted, Caller, InferAnswer, ModelMessage};
use super::request::{ReadRequest, RequestMessage};
use super::response::{AnswerForm, AnswerHead, empty_final};
use crate::framing::framed_plain;
use crate::proto::inference::{ModelInferResponse, ModelStreamInferResponse};
use crate::reader::{Message, MessageReader};
use crate::stream::{self, Outlet};

/// The most open requests of one stream.
const MAX_OPEN: usize = 64;

/// With this metadata an error ends the stream.
const TRITON_GRPC_ERROR: &str = "triton_grpc_error";

/// Answers a stream of requests.
pub(crate) fn respond(
    context: RequestContext<'_>,
    head: Parts,
    coding: Option<ContentCoding>,
    inference: Arc<InferenceProtocol>,
    reader: MessageReader,
) -> Response {
    let (client, config, life) = (context.client.clone(), context.config.clone(), Arc::clone(context.life));
    let (id, key_holder) = (context.id.clone(), context.key_holder.cloned());
    let has_trace = context.has_trace;
    stream::respond(context, None, coding, |outlet| async move {
        let request = RequestHead::read(&head.headers)?;
        let origin = CallOrigin { id: &id, recorder: None, has_trace, key_holder: key_holder.as_ref() };
        let caller = Caller {
            client: &client,
            config: &config,
            inference: &inference,
            origin,
            request: (&head.uri, &head.headers, &head.extensions),
            head: &request,
            coding,
        };
        let ends_with_error = head.headers.get(TRITON_GRPC_ERROR).is_some_and(|value| value == "true");
        StreamCall { caller, outlet: &outlet, life: &life, ends_with_error }.run(reader).await
    })
}

/// An error that ends the stream, if the client asked for that.
type Failed = Result<(), ApiError>;

/// One stream of requests.
#[derive(Clone, Copy)]
struct StreamCall<'a> {
    caller: Caller<'a>,
    outlet: &'a Outlet,
    life: &'a EdgeLife,
    ends_with_error: bool,
}

/// A request that was read, until its last answer.
struct OpenRequest {
    of: ModelMessage,
    account: Arc<HeldBytes>,
    arrived_at: Instant,
    /// Whether it is counted: the first one was, with the stream.
    is_counted: bool,
}

impl StreamCall<'_> {
    async fn run(self, reader: MessageReader) -> Result<(), ApiError> {
        let open = reader.open_calls();
        let mut ordered = FuturesOrdered::new();
        let mut unordered = FuturesUnordered::new();
        // Each part of the stream is polled while another one waits for the reader of the answers.
        let mut ready = VecDeque::new();
        let mut sending = None;
        // A message that is being read is not lost when a call ends meanwhile.
        let mut reading = Some(Box::pin(next_of(reader, self.life)));
        let mut waiting: Option<MessageReader> = None;
        let (mut is_counted, mut end) = (true, Ok(()));
        loop {
            if sending.is_none() {
                sending = ready.pop_front().map(|answer| Box::pin(self.send(answer)));
            }
            let count = ordered.len() + unordered.len() + ready.len() + usize::from(sending.is_some());
            open.store(count, Ordering::Relaxed);
            if count < MAX_OPEN
                && let Some(reader) = waiting.take()
            {
                reading = Some(Box::pin(next_of(reader, self.life)));
            }
            tokio::select! {
                biased;
                Some(failed) = finished(&mut sending), if sending.is_some() => {
                    sending = None;
                    failed?;
                }
                Some(answer) = ordered.next(), if !ordered.is_empty() => ready.push_back(answer),
                Some(failed) = unordered.next(), if !unordered.is_empty() => failed?,
                Some((reader, next)) = finished(&mut reading), if reading.is_some() => {
                    reading = None;
                    match next {
                        Ok(Some(Message { bytes, account })) => {
                            waiting = Some(reader);
                            let arrived_at = Instant::now();
                            match self.caller.model_of(bytes.clone()) {
                                Ok(of) => {
                                    let request = OpenRequest { of, account, arrived_at, is_counted };
                                    if request.of.route.streams() {
                                        unordered.push(Box::pin(self.streamed(request)));
                                    } else {
                                        ordered.push_back(Box::pin(self.answered(request)).boxed());
                                    }
                                }
                                Err(error) => {
                                    let id = RequestMessage::read(bytes).map(|message| message.id).unwrap_or_default();
                                    let refused = async move {
                                        let over = self.count(is_counted, arrived_at, self.caller.head.timeout).await;
                                        Err((id, over.err().unwrap_or(error)))
                                    };
                                    ordered.push_back(refused.boxed());
                                }
                            }
                            is_counted = false;
                        }
                        Ok(None) => {}
                        Err(error) => end = Err(error),
                    }
                }
                else => return end,
            }
        }
    }

    /// The answer of a model that answers once.
    async fn answered(self, request: OpenRequest) -> Result<Vec<Bytes>, (String, ApiError)> {
        let OpenRequest { of, account, arrived_at, .. } = &request;
        let answer = async {
            self.count_call(&request).await?;
            let form = AnswerForm::InStream { is_last: true };
            self.caller.infer(of, account, *arrived_at, form).await
        };
        match answer.await {
            Ok(InferAnswer { pieces, .. }) => Ok(pieces),
            Err(error) => Err((of.message.id.clone(), error.about(of.route.name()))),
        }
    }

    /// Sends all answers of a model that streams.
    async fn streamed(self, request: OpenRequest) -> Failed {
        match self.send_all(&request).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let OpenRequest { of, .. } = request;
                self.send(Err((of.message.id, error.about(of.route.name())))).await
            }
        }
    }

    async fn send_all(self, request: &OpenRequest) -> Result<(), ApiError> {
        let OpenRequest { of, account, arrived_at, .. } = request;
        self.count_call(request).await?;
        let Admitted { budget, admission, read, options, deadline } =
            self.caller.admit(of, account, *arrived_at).await?;
        let ReadRequest { request: InferRequest { id, parameters, mut inputs, outputs, rows }, is_typed } = read;
        if of.model.is_batched() {
            if rows != 1 {
                return Err(Refusal::new("a model that streams takes one item at a time").into());
            }
            inputs = items_of(inputs, rows).pop().unwrap_or_default();
        }
        let run = self.caller.run_of(of);
        let (admission, payload) = run.payload(&budget, admission, inputs).await?;
        let mut replies = self.caller.client.edge().submit_streaming(admission, payload, options);
        let form = AnswerForm::InStream { is_last: false };
        let mut answer = AnswerHead { id, requested: outputs, is_typed, form };
        let mut next = next_reply(&mut replies, self.life).await;
        while let Some(payload) = next {
            let payload = payload?;
            // Its end may be known already. An output does not wait for it.
            let following = next_reply(&mut replies, self.life).now_or_never();
            let is_last = matches!(following, Some(None));
            answer.form = AnswerForm::InStream { is_last };
            let budget = self.item_budget(deadline);
            let outputs = run.outputs(&budget, payload).await?;
            let outputs = if of.model.is_batched() { outputs.into_iter().map(as_item).collect() } else { outputs };
            self.outlet.send(self.caller.written(of, &budget, &answer, outputs).await?).await;
            if is_last {
                of.model.inferred();
                return Ok(());
            }
            next = match following {
                Some(following) => following,
                None => next_reply(&mut replies, self.life).await,
            };
        }
        of.model.inferred();
        if parameters.wants_final_response() {
            let pieces = empty_final(&of.model, answer.id.as_deref());
            self.outlet.send(vec![framed_plain(&pieces.concat())]).await;
        }
        Ok(())
    }

    /// Pays for one answer until it is sent.
    fn item_budget(&self, deadline: Deadline) -> callboard_http::protocol::CodecBudget<'_> {
        let edge = self.caller.client.edge();
        edge.codec_budget(Arc::new(edge.held_bytes()), deadline)
    }

    /// Waits until the limit of the key allows the call, at most for its timeout.
    async fn count_call(self, request: &OpenRequest) -> Result<(), ApiError> {
        let timeout = self.caller.client.edge().timeout_of(&request.of.route, self.caller.head.timeout);
        self.count(request.is_counted, request.arrived_at, Some(timeout)).await
    }

    /// The same for any request. One without a timeout waits as long as a call may.
    async fn count(self, is_counted: bool, arrived_at: Instant, timeout: Option<Duration>) -> Result<(), ApiError> {
        let Some(holder) = self.caller.origin.key_holder.filter(|_| !is_counted) else { return Ok(()) };
        let limits = self.caller.client.edge().limits();
        let end = arrived_at + timeout.unwrap_or(limits.default_timeout).min(limits.max_timeout);
        while let Err(OverLimit { wait, error }) = holder.take(1) {
            match wait.map(|wait| Instant::now() + wait).filter(|turn| *turn <= end) {
                Some(turn) => sleep_until(turn).await,
                None => return Err(error),
            }
        }
        Ok(())
    }

    async fn send(self, answer: Result<Vec<Bytes>, (String, ApiError)>) -> Failed {
        let (id, error) = match answer {
            Ok(pieces) => {
                self.outlet.send(pieces).await;
                return Ok(());
            }
            Err(failed) => failed,
        };
        if self.ends_with_error {
            return Err(error);
        }
        error.log(self.caller.origin.id.as_str(), None);
        let infer_response = Some(ModelInferResponse { id, ..ModelInferResponse::default() });
        let answer = ModelStreamInferResponse { error_message: error.message().to_owned(), infer_response };
        self.outlet.send(vec![framed_plain(&answer.encode_to_vec())]).await;
        Ok(())
    }
}

/// The next message, with its reader.
async fn next_of(mut reader: MessageReader, life: &EdgeLife) -> (MessageReader, Result<Option<Message>, ApiError>) {
    let next = match life.unless_withdrawn(reader.next()).await {
        Ok(next) => next,
        Err(withdrawn) => Err(withdrawn),
    };
    (reader, next)
}

/// Waits for a part of the work, if it has begun.
async fn finished<F: Future>(begun: &mut Option<Pin<Box<F>>>) -> Option<F::Output> {
    match begun {
        Some(begun) => Some(begun.as_mut().await),
        None => None,
    }
}

/// An array of one item, with the axis of items.
fn as_item(array: Array) -> Array {
    let Array { datatype, mut shape, data } = array;
    shape.insert(0, 1);
    Array { datatype, shape, data }
}
