//! Calls that the code of a replica makes to routes of its node, while the replica runs a batch.
//!
//! Any number of threads may call. Results come in any order. The thread that reads the socket hands them over; it
//! never waits for a thread that writes. A reader of a stream asks for further outputs as it takes those that came.
//!
//! * **Full:** the node refuses the call. Outputs that are not read wait in the node.
//! * **Late:** the caller drops the call, at its own deadline or that of its item.
//! * **Cancelled:** dropping a call tells the node. The calls of a batch end with it, as on the node.

use std::collections::HashMap;

use bytes::Bytes;
use callboard_codec::{Encoded, Payload};
use callboard_core::edge::{ErrorParts, PayloadReplies};
use callboard_core::isolation::InnerCalls;
use callboard_core::{CallError, ErrorKind};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, TryStreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::ServeWorkerError;
use super::node::Node;
use crate::batch::failure;
use crate::message::{CREDIT, CREDIT_BYTES, CallCreditMessage, CallMessage, CancelCallMessage, FromChild, ItemError};

/// The places of a stream for its end, beside those of its outputs: one output without credit, and the end.
const END_PLACES: usize = 2;

/// The calls of this process that have no result yet.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// Locked while a call is written: the node wants the numbers in order.
    last_id: Mutex<u64>,
    waiting: Mutex<HashMap<u64, WaitingCall>>,
}

struct WaitingCall {
    /// The batch that it is made for.
    batch: u64,
    reader: Reader,
}

/// What waits for a call. It learns by the end of its channel that the batch is over.
enum Reader {
    Result(oneshot::Sender<Result<Bytes, CallError>>),
    /// After the last output comes `None`.
    Outputs(mpsc::Sender<Result<Option<Bytes>, CallError>>),
}

impl OpenCalls {
    /// The node has the outcome of a call, which may have been dropped.
    pub(super) fn end(&self, id: u64, error: Option<ItemError>, output: Option<Bytes>) {
        let Some(call) = self.waiting.lock().remove(&id) else { return };
        let result = match error {
            Some(error) => {
                // A failure that is passed on has another kind for the callers of this stage.
                let kind = error.kind.as_deref().and_then(ErrorKind::from_name);
                let parts = failure(error).into_parts();
                Err(CallError::from(ErrorParts { kind: kind.unwrap_or(parts.kind), ..parts }))
            }
            None => Ok(output),
        };
        match call.reader {
            Reader::Result(reader) => _ = reader.send(result.map(Option::unwrap_or_default)),
            Reader::Outputs(reader) => {
                // A route that does not stream has one output. There is room for it and for the end.
                let last = result.as_ref().is_ok_and(Option::is_some).then_some(Ok(None));
                [Some(result), last].into_iter().flatten().for_each(|output| _ = reader.try_send(output));
            }
        }
    }

    /// The next output of a stream, which may have been dropped.
    pub(super) fn output(&self, id: u64, output: Bytes) -> Result<(), ServeWorkerError> {
        match self.waiting.lock().get(&id).map(|call| &call.reader) {
            Some(Reader::Outputs(reader)) if reader.capacity() <= END_PLACES => {
                Err(ServeWorkerError::protocol("an output of a call without credit"))
            }
            Some(Reader::Outputs(reader)) => {
                let _ = reader.try_send(Ok(Some(output)));
                Ok(())
            }
            Some(Reader::Result(_)) => Err(ServeWorkerError::protocol("a stream for a call of one output")),
            None => Ok(()),
        }
    }

    /// A batch has been answered: the node has ended its calls, and sends no results.
    pub(super) fn end_all_of(&self, batch: u64) {
        self.waiting.lock().retain(|_, call| call.batch != batch);
    }
}

/// Makes the calls of one item.
#[derive(Clone)]
pub(super) struct ItemCalls {
    pub(super) node: Node,
    pub(super) batch: u64,
    pub(super) item: usize,
}

impl InnerCalls for ItemCalls {
    fn call(&self, route: &str, input: Payload) -> BoxFuture<'static, Result<Payload, CallError>> {
        let (item, route) = (self.clone(), route.to_owned());
        async move {
            let (sender, result) = oneshot::channel();
            let call = item.begin(route, input, Reader::Result(sender))?;
            let output = result.await.map_err(|_| over())??;
            Ok(Payload::new(Encoded::read(&output, &call.node.limits())?))
        }
        .boxed()
    }

    fn replies(&self, route: &str, input: Payload) -> PayloadReplies {
        let (item, route) = (self.clone(), route.to_owned());
        let begin = async move {
            let (sender, received) = mpsc::channel(CREDIT + END_PLACES);
            Ok::<_, CallError>(outputs(item.begin(route, input, Reader::Outputs(sender))?, received))
        };
        PayloadReplies::new(stream::once(begin).try_flatten())
    }
}

/// The outputs of a call as they are read. Dropping them cancels the call.
fn outputs(
    call: SentCall,
    received: mpsc::Receiver<Result<Option<Bytes>, CallError>>,
) -> impl Stream<Item = Result<Payload, CallError>> + Send {
    stream::try_unfold((call, received, 0, 0), async |(call, mut received, mut outputs, mut bytes)| {
        let Some(output) = received.recv().await.unwrap_or_else(|| Err(over()))? else { return Ok(None) };
        (outputs, bytes) = (outputs + 1, bytes + output.len() as u64);
        if outputs == CREDIT / 2 || bytes >= CREDIT_BYTES / 4 {
            // Without its node the process ends.
            let _ = call.node.send(&FromChild::CallCredit(CallCreditMessage { id: call.id, outputs, bytes }), &[]);
            (outputs, bytes) = (0, 0);
        }
        let output = Payload::new(Encoded::read(&output, &call.node.limits())?);
        Ok(Some((output, (call, received, outputs, bytes))))
    })
}

fn over() -> CallError {
    CallError::new(ErrorKind::Cancelled, "the call that it was made for has ended")
}

impl ItemCalls {
    fn begin(self, route: String, input: Payload, reader: Reader) -> Result<SentCall, CallError> {
        let Self { node, batch, item } = self;
        let (bytes, max_bytes) = (input.to_envelope()?, node.limits().max_bytes);
        if bytes.len() > max_bytes {
            let message = format!("the input has {} bytes, more than {max_bytes} (max_batch_bytes)", bytes.len());
            return Err(CallError::new(ErrorKind::InvalidInput, message));
        }
        let streams = matches!(reader, Reader::Outputs(_));
        let (credit, credit_bytes) = (streams.then_some(CREDIT), streams.then_some(CREDIT_BYTES));
        let calls = node.calls();
        let mut last_id = calls.last_id.lock();
        *last_id += 1;
        let id = *last_id;
        calls.waiting.lock().insert(id, WaitingCall { batch, reader });
        let message = CallMessage { id, batch, item: Some(item), route, credit, credit_bytes, timeout_ms: None };
        let sent = node.send(&FromChild::Call(message), &[bytes]);
        drop(last_id);
        let call = SentCall { node, id };
        match sent {
            Ok(()) => Ok(call),
            Err(_) => Err(CallError::new(ErrorKind::Unavailable, "the node has ended")),
        }
    }
}

/// A call that the node knows. Dropping it cancels the call, unless it has its result.
struct SentCall {
    node: Node,
    id: u64,
}

impl Drop for SentCall {
    fn drop(&mut self) {
        let is_open = self.node.calls().waiting.lock().remove(&self.id).is_some();
        if is_open {
            // Without its node the process ends.
            let _ = self.node.send(&FromChild::CancelCall(CancelCallMessage { id: self.id }), &[]);
        }
    }
}
