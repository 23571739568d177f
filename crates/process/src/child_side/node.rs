//! Encodes frames for the node.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use callboard_codec::{DecodeLimits, Envelope, Payload};
use callboard_core::edge::ErrorParts;
use callboard_core::{Failure, ResponseFields};
use parking_lot::Mutex;
use serde::Serialize;

use super::ServeWorkerError;
use super::calls::OpenCalls;
use crate::frame::{MAX_HEAD_BYTES, limits, write_frame};
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
    /// The bytes of its head that are free for errors, and for what code has chosen.
    head_room: usize,
}

/// A quarter of a head: what every item takes has the rest.
const HEAD_ROOM: usize = MAX_HEAD_BYTES / 4;

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
    pub(super) fn ready(
        &self,
        shared_memory: bool,
        (max_batches, ahead): (usize, usize),
        note: Option<&str>,
    ) -> Result<(), ServeWorkerError> {
        self.0.writer.lock().memories = shared_memory.then(Outgoing::default);
        let worker = concat!("rust, callboard ", env!("CARGO_PKG_VERSION")).to_owned();
        let note = note.map(str::to_owned);
        let ready =
            ReadyMessage { protocol: PROTOCOL, worker, shared_memory, max_batches, ahead, methods: false, note };
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
        Outcomes {
            items: Vec::new(),
            responses: Vec::new(),
            parts: Vec::new(),
            room: self.0.writer.lock().max_bytes,
            head_room: HEAD_ROOM,
        }
    }
}

impl Outcomes {
    /// The next item has this output, which is none of a stream, or has failed; and what its code has chosen of the
    /// answer.
    pub(super) fn push(&mut self, outcome: Result<Option<Payload>, Box<ErrorParts>>, response: Option<ResponseFields>) {
        let envelope = outcome.and_then(|output| output.map(|output| envelope(&output, self.room)).transpose());
        let response = response.filter(|_| envelope.is_ok()).map(ResponseHead::from);
        let outcome = match (envelope, &response) {
            (Ok(_), Some(response)) if !self.takes_of_head(response) => {
                Err(failed(Failure::new("no room for its headers in its batch: use a smaller max_batch_size")))
            }
            (outcome, _) => outcome,
        };
        let item = match outcome {
            Ok(part) => {
                if response.is_some() {
                    self.responses.resize_with(self.items.len(), || None);
                    self.responses.push(response);
                }
                self.room -= part.as_ref().map_or(0, Envelope::len);
                self.parts.extend(part);
                None
            }
            Err(error) => {
                let error = ItemError::from(*error);
                let short = || ItemError { message: "no room for its error".to_owned(), ..ItemError::default() };
                Some(if self.takes_of_head(&error) { error } else { short() })
            }
        };
        self.items.push(item);
    }

    /// Whether there was room in the head for this.
    fn takes_of_head(&mut self, part: &impl Serialize) -> bool {
        let left = message::encode(part).ok().and_then(|written| self.head_room.checked_sub(written.len()));
        self.head_room = left.unwrap_or(self.head_room);
        left.is_some()
    }

    pub(super) fn send(self, id: u64, node: &Node) -> Result<(), ServeWorkerError> {
        let outcomes = OutcomesMessage { id, items: self.items, responses: self.responses, last: false };
        node.send(&FromChild::Outcomes(outcomes), &self.parts)
    }
}

fn failed(failure: Failure) -> Box<ErrorParts> {
    Box::new(failure.into_parts())
}

/// An output that fits into a frame with this much room.
fn envelope(output: &Payload, room: usize) -> Result<Envelope, Box<ErrorParts>> {
    let envelope = output.to_envelope().map_err(|error| failed(error.into()))?;
    if envelope.len() > room {
        let why = format!("the outputs of the batch exceed the {room} bytes that are left of it");
        return Err(failed(Failure::new(why)));
    }
    Ok(envelope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcomes_of_a_batch_fit_into_a_head_whatever_its_items_choose() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let node = Node::new(ours);
        node.set_max_bytes(1 << 20);
        let headers = |fields: ResponseFields, number| fields.with_header(format!("x-{number}"), "a".repeat(100));
        let chosen = (0..16).fold(ResponseFields::new(), headers);
        let mut outcomes = node.outcomes();
        for number in 0..10_000 {
            let long = || failed(Failure::new("a".repeat(1_000)));
            let outcome = if number % 2 == 0 { Ok(Some(Payload::new(number))) } else { Err(long()) };
            outcomes.push(outcome, Some(chosen.clone()));
        }
        let Outcomes { items, responses, parts, .. } = outcomes;
        let told = |words: &str| items.iter().flatten().filter(|error| error.message.starts_with(words)).count();
        let told = ["aaa", "no room for its error", "no room for its headers"].map(told);
        assert!(told.iter().all(|count| *count > 0), "{told:?}");
        assert_eq!(items.iter().filter(|item| item.is_none()).count(), parts.len());
        assert_eq!(responses.iter().flatten().count(), parts.len());
        let head = message::encode(&FromChild::Outcomes(OutcomesMessage { id: 1, items, responses, last: false }));
        assert!(head.unwrap().len() <= MAX_HEAD_BYTES);
    }
}
