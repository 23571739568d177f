//! Encodes frames for the node.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use callboard_codec::{DecodeLimits, Envelope, Payload};
use callboard_core::edge::ErrorParts;
use callboard_core::{Failure, ResponseFields};
use parking_lot::Mutex;

use super::ServeWorkerError;
use super::calls::OpenCalls;
use crate::frame::{limits, write_frame};
use crate::message::{
    self, FailedMessage, FromChild, ItemError, OutcomesMessage, PROTOCOL, ReadyMessage, ResponseHead,
};
use crate::shared_memory::{MemoryFields, Outgoing};
use crate::socket::Inbox;

/// The socket's writing side, and the calls that were made over it.
#[derive(Clone)]
pub(super) struct Node(Arc<NodeParts>);

struct NodeParts {
    writer: Mutex<Writer>,
    calls: OpenCalls,
}

struct Writer {
    socket: Inbox,
    memories: Option<Outgoing>,
    /// The most bytes of a frame.
    max_bytes: usize,
}

/// The outcomes of a batch, in the order of its items.
pub(super) struct Outcomes {
    items: Vec<Option<ItemError>>,
    responses: Vec<Option<ResponseHead>>,
    parts: Vec<Envelope>,
    /// The bytes of a frame that are free for outputs.
    room: usize,
}

impl Node {
    pub(super) fn new(socket: UnixStream) -> Self {
        let writer = Mutex::new(Writer { socket: Inbox::new(socket), memories: None, max_bytes: 0 });
        Self(Arc::new(NodeParts { writer, calls: OpenCalls::default() }))
    }

    /// Sets the most bytes of a frame, as the node announced them.
    pub(super) fn set_max_bytes(&self, max_bytes: usize) {
        self.0.writer.lock().max_bytes = max_bytes;
    }

    /// The limits of what the node sends.
    pub(super) fn limits(&self) -> DecodeLimits {
        limits(self.0.writer.lock().max_bytes as u64)
    }

    pub(super) fn calls(&self) -> &OpenCalls {
        &self.0.calls
    }

    /// Says that batches may come. From now on large frames lie in shared memory, if both sides share it.
    pub(super) fn ready(&self, shared_memory: bool, max_batches: usize, ahead: usize) -> Result<(), ServeWorkerError> {
        self.0.writer.lock().memories = shared_memory.then(Outgoing::default);
        let worker = concat!("rust, callboard ", env!("CARGO_PKG_VERSION")).to_owned();
        let ready = ReadyMessage { protocol: PROTOCOL, worker, shared_memory, max_batches, ahead, methods: false };
        self.send(&FromChild::Ready(ready), &[])
    }

    /// Says that there is no worker.
    pub(super) fn failed(&self, failure: &Failure) -> Result<(), ServeWorkerError> {
        let failed = FailedMessage { message: failure.message().to_owned(), trace: None };
        self.send(&FromChild::Failed(failed), &[])
    }

    pub(super) fn send(&self, message: &FromChild, parts: &[Envelope]) -> Result<(), ServeWorkerError> {
        let head = message::encode(message).map_err(io::Error::other)?;
        let writer = &mut *self.0.writer.lock();
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        let MemoryFields { memory, descriptor } =
            writer.memories.as_mut().map_or_else(MemoryFields::default, |memories| memories.place(parts.clone()));
        Ok(write_frame(&mut writer.socket.outbox(descriptor), &head, parts, memory)?)
    }

    /// An output of a stream.
    pub(super) fn output(&self, output: &Payload) -> Result<Envelope, Box<ErrorParts>> {
        let room = self.0.writer.lock().max_bytes;
        envelope(output, room)
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        Outcomes { items: Vec::new(), responses: Vec::new(), parts: Vec::new(), room: self.0.writer.lock().max_bytes }
    }
}

impl Outcomes {
    /// The next item has this output, which is none of a stream, or has failed; and what its code has chosen of the
    /// answer.
    pub(super) fn push(&mut self, outcome: Result<Option<Payload>, Box<ErrorParts>>, response: Option<ResponseFields>) {
        if let Some(response) = response {
            self.responses.resize_with(self.items.len(), || None);
            self.responses.push(Some(response.into()));
        }
        let envelope = outcome.and_then(|output| output.map(|output| envelope(&output, self.room)).transpose());
        self.items.push(match envelope {
            Ok(part) => {
                self.room -= part.as_ref().map_or(0, Envelope::len);
                self.parts.extend(part);
                None
            }
            Err(error) => Some((*error).into()),
        });
    }

    pub(super) fn send(self, id: u64, node: &Node) -> Result<(), ServeWorkerError> {
        let outcomes = OutcomesMessage { id, items: self.items, responses: self.responses, last: false };
        node.send(&FromChild::Outcomes(outcomes), &self.parts)
    }
}

/// An output that fits into a frame with this much room.
fn envelope(output: &Payload, room: usize) -> Result<Envelope, Box<ErrorParts>> {
    let failed = |failure: Failure| Box::new(failure.into_parts());
    let envelope = output.to_envelope().map_err(|error| failed(error.into()))?;
    if envelope.len() > room {
        let why = format!("the outputs of the batch exceed the {room} bytes that are left of it");
        return Err(failed(Failure::new(why)));
    }
    Ok(envelope)
}
