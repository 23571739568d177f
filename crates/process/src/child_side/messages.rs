//! Decodes frames from the node: its batches in order, and which of their callers left.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Encoded};
use callboard_core::edge::ErrorParts;
use callboard_core::isolation::{InnerCalls, IsolatedCall};
use callboard_core::{CallOptions, Deadline, ErrorKind, Failure, Instant, LocalClient, SessionKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::sync::{Notify, Semaphore};

use super::calls::ItemCalls;
use super::node::Node;
use super::{ServeWorkerError, take_socket};
use crate::frame::{FrameReader, limits};
use crate::message::{self, CREDIT, CallHead, FromChild, Start, ToChild};
use crate::shared_memory::{self, Incoming, ReadMode};
use crate::socket::Inbox;

/// The most bytes of the first frame, in which the node sends its limit.
const START_BYTES: u64 = 1024 * 1024;

/// The reading side of the socket.
pub(super) struct Messages {
    stream: BufReader<Inbox>,
    reader: FrameReader,
    node: Node,
    has_started: bool,
    /// Batches that the worker has not begun.
    waiting: VecDeque<Batch>,
    /// The batches without an answer, by their ids.
    open: HashMap<u64, Weak<OpenBatch>>,
    /// The outputs of an item that may be sent before the node asks for more.
    credit: usize,
    /// For code that calls the node: a client of this process.
    pub(super) client: Option<LocalClient>,
    /// Why nothing more will come, if so.
    pub(super) end: Option<EndReason>,
}

/// Why nothing more will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The worker may clean up.
    Stop,
    /// The node is gone, and all callers with it.
    Gone,
}

/// A batch for the worker.
pub(super) struct Batch {
    pub(super) id: u64,
    parts: Vec<Bytes>,
    pub(super) open: Arc<OpenBatch>,
}

/// A batch that is not answered.
pub(super) struct OpenBatch {
    pub(super) calls: Vec<IsolatedCall>,
    /// A caller left.
    pub(super) cancelled: Notify,
    /// The outputs that a stream may still send.
    pub(super) credit: Semaphore,
}

/// Takes the node's socket: its reading and its writing side.
pub(super) fn connect() -> Result<(Messages, Node), ServeWorkerError> {
    let socket = take_socket().map_err(ServeWorkerError::NoSocket)?;
    // Also while nothing is read, because the worker computes.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(io::Error::from)?;
    Ok(Messages::over(socket)?)
}

impl Messages {
    /// Both sides of this socket.
    pub(super) fn over(socket: UnixStream) -> io::Result<(Self, Node)> {
        let node = Node::new(socket.try_clone()?);
        let messages = Self {
            stream: BufReader::new(Inbox::new(socket)),
            reader: FrameReader::new(START_BYTES),
            node: node.clone(),
            has_started: false,
            waiting: VecDeque::new(),
            open: HashMap::new(),
            credit: CREDIT,
            client: None,
            end: None,
        };
        Ok((messages, node))
    }

    /// The socket, to wait for what comes.
    pub(super) fn socket(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }

    /// The first message. `None`: the node wants no worker.
    pub(super) fn start(&mut self) -> Result<Option<Start>, ServeWorkerError> {
        while self.end.is_none() {
            if let Some(start) = self.read()? {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// The next batch, after draining the buffer: a call of it may have been cancelled ahead of its turn.
    pub(super) fn next(&mut self) -> Result<Option<Batch>, ServeWorkerError> {
        self.look()?;
        Ok(self.waiting.pop_front())
    }

    /// Reads the frames that arrived.
    pub(super) fn look(&mut self) -> Result<(), ServeWorkerError> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.end.is_none()
            && (!self.stream.buffer().is_empty() || is_readable(self.stream.get_ref(), Some(&now))?)
        {
            self.read()?;
        }
        Ok(())
    }

    /// Waits for a message, and returns the first.
    pub(super) fn read(&mut self) -> Result<Option<Start>, ServeWorkerError> {
        let Some(frame) = self.reader.read(&mut self.stream)? else {
            self.end = Some(EndReason::Gone);
            return Ok(None);
        };
        match message::decode(&frame.head).map_err(ServeWorkerError::protocol)? {
            ToChild::Start(start) if !self.has_started => return Ok(Some(self.take_start(start))),
            ToChild::Batch { id, items, method: None } if self.has_started => {
                if frame.parts.len() != items.len() {
                    return Err(ServeWorkerError::protocol("a batch has another count of items than of parts"));
                }
                let calls = items.iter().enumerate().map(|(item, head)| {
                    let inner = ItemCalls { node: self.node.clone(), batch: id, item };
                    call(head, self.client.as_ref().map(|client| (client, Arc::new(inner) as Arc<dyn InnerCalls>)))
                });
                let (calls, credit) = (calls.collect(), Semaphore::new(self.credit));
                let open = Arc::new(OpenBatch { calls, cancelled: Notify::new(), credit });
                self.open.retain(|_, batch| batch.strong_count() > 0);
                self.open.insert(id, Arc::downgrade(&open));
                self.waiting.push_back(Batch { id, parts: frame.parts, open });
            }
            ToChild::Cancel { id, item } => {
                if let Some(batch) = self.open(id) {
                    batch.calls.get(item).into_iter().for_each(IsolatedCall::cancel);
                    batch.cancelled.notify_one();
                }
            }
            ToChild::Credit { id, outputs, .. } => {
                if let Some(batch) = self.open(id) {
                    batch.credit.add_permits(outputs.min(CREDIT));
                }
            }
            ToChild::CallOutput { id } => {
                let output = frame.parts.into_iter().next().unwrap_or_default();
                self.node.calls().output(id, output)?;
            }
            ToChild::Result { id, error } => self.node.calls().end(id, error, frame.parts.into_iter().next()),
            ToChild::Ping => self.node.send(&FromChild::Pong, &[])?,
            ToChild::Stop { .. } => self.end = Some(EndReason::Stop),
            ToChild::Start(_) | ToChild::Batch { .. } => {
                return Err(ServeWorkerError::protocol("a batch before the start, or a second start"));
            }
        }
        Ok(None)
    }

    fn take_start(&mut self, mut start: Start) -> Start {
        self.has_started = true;
        self.reader.set_max_bytes(start.max_bytes);
        self.node.set_max_bytes(limits(start.max_bytes).max_bytes);
        self.credit = start.credit.unwrap_or(Semaphore::MAX_PERMITS);
        start.shared_memory &= shared_memory::IS_SUPPORTED;
        if start.shared_memory {
            self.reader.set_memories(Incoming::new(ReadMode::Views));
        }
        start
    }

    fn open(&self, id: u64) -> Option<Arc<OpenBatch>> {
        self.open.get(&id)?.upgrade()
    }
}

impl Batch {
    /// Its items in order, with their calls. An item fails if it cannot be read, or if its caller left before its turn.
    pub(super) fn items(
        &self,
        limits: &DecodeLimits,
    ) -> impl Iterator<Item = (Result<Encoded, Box<ErrorParts>>, &IsolatedCall)> {
        self.parts.iter().zip(&self.open.calls).map(|(part, call)| {
            if !call.is_wanted(Instant::now()) {
                return (Err(has_left()), call);
            }
            let input = Encoded::read(part, limits);
            (input.map_err(|error| Box::new(Failure::from(error).into_parts())), call)
        })
    }
}

/// The error of an item whose caller does not read it.
pub(super) fn has_left() -> Box<ErrorParts> {
    Box::new(ErrorParts::new(ErrorKind::Cancelled, "its caller has left"))
}

/// Whether something can be read from a socket, within this time.
pub(super) fn is_readable(socket: &impl AsFd, within: Option<&Timespec>) -> io::Result<bool> {
    let mut sockets = [PollFd::new(socket, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut sockets, within))? > 0)
}

/// The call of an item, from its head.
fn call(head: &CallHead, inner: Option<(&LocalClient, Arc<dyn InnerCalls>)>) -> IsolatedCall {
    let remaining = head.remaining_ms.map_or(Deadline::MAX_TIMEOUT, Duration::from_millis);
    let mut options = CallOptions::new();
    if let Some(id) = &head.request_id {
        options = options.with_request_id(id.as_str());
    }
    if let Some(traceparent) = &head.traceparent {
        options = options.with_traceparent(traceparent.as_str());
    }
    if let Some(caller) = &head.caller {
        options = options.with_caller(caller.as_str());
    }
    if let Some(session) = head.session.and_then(SessionKey::from_number) {
        options = options.with_session_key(session);
    }
    options = head.headers.iter().fold(options, |options, (name, value)| options.with_header(&**name, &**value));
    options = head.query.iter().fold(options, |options, (name, value)| options.with_query(&**name, &**value));
    options = head.path.iter().fold(options, |options, path| options.with_path(path.as_str()));
    options = head.method.iter().fold(options, |options, method| options.with_method(method.as_str()));
    options = head.client.iter().fold(options, |options, client| options.with_client_address(client.as_str()));
    options = head.tags.iter().fold(options, |options, (name, value)| options.with_tag(&**name, &**value));
    IsolatedCall::new(Deadline::after(Instant::now(), remaining), &options, inner)
}

#[cfg(test)]
mod tests {
    use super::super::tests::FakeNode;

    #[test]
    fn only_batches_without_an_answer_are_kept() {
        let (mut node, mut messages, _child) = FakeNode::started(|_| ());
        let mut kept = Vec::new();
        for id in 0..10 {
            node.batch(id, &[1]);
            let batch = messages.next().unwrap().unwrap();
            if id % 5 == 0 {
                kept.push(batch);
            }
        }
        node.batch(10, &[1]);
        kept.push(messages.next().unwrap().unwrap());
        assert_eq!((kept.len(), messages.open.len()), (3, 3));
    }
}
