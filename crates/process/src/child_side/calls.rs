//! Calls that the code of a replica makes to routes of its node, while the replica runs a batch.
//!
//! Any number of threads may call. Results come in any order. The thread that reads the socket hands them over; it
//! never waits for a thread that writes.
//!
//! * **Full:** the node refuses the call.
//! * **Late:** the caller drops the call, at its own deadline or that of its item.
//! * **Cancelled:** dropping a call tells the node. The calls of a batch end with it, as on the node.

use std::collections::HashMap;

use bytes::Bytes;
use callboard_codec::{Encoded, Payload};
use callboard_core::edge::ErrorParts;
use callboard_core::isolation::InnerCalls;
use callboard_core::{CallError, ErrorKind};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::node::Node;
use crate::batch::failure;
use crate::message::{CallMessage, CancelCallMessage, FromChild, ItemError};

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
    result: oneshot::Sender<Result<Bytes, CallError>>,
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
            None => Ok(output.unwrap_or_default()),
        };
        let _ = call.result.send(result);
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
            let (call, result) = item.begin(route, input)?;
            let over = |_| CallError::new(ErrorKind::Cancelled, "the call that it was made for has ended");
            let output = result.await.map_err(over)??;
            Ok(Payload::new(Encoded::read(&output, &call.node.limits())?))
        }
        .boxed()
    }
}

impl ItemCalls {
    fn begin(
        self,
        route: String,
        input: Payload,
    ) -> Result<(SentCall, oneshot::Receiver<Result<Bytes, CallError>>), CallError> {
        let Self { node, batch, item } = self;
        let (bytes, max_bytes) = (input.to_envelope()?, node.limits().max_bytes);
        if bytes.len() > max_bytes {
            let message = format!("the input has {} bytes, more than {max_bytes} (max_batch_bytes)", bytes.len());
            return Err(CallError::new(ErrorKind::InvalidInput, message));
        }
        let (sender, result) = oneshot::channel();
        let calls = node.calls();
        let mut last_id = calls.last_id.lock();
        *last_id += 1;
        let id = *last_id;
        calls.waiting.lock().insert(id, WaitingCall { batch, result: sender });
        let sent = node.send(&FromChild::Call(CallMessage { id, batch, item: Some(item), route }), &[bytes]);
        drop(last_id);
        let call = SentCall { node, id };
        match sent {
            Ok(()) => Ok((call, result)),
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
