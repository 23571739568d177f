//! The child's side of the protocol, for workers in Rust.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Envelope, Format, Value};
use callboard_core::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::stdio::dup2_stdin;

use crate::frame::{Frame, FrameReader, limits, write_frame};
use crate::message::{self, AHEAD, FromChild, ItemError, PROTOCOL, ToChild};
use crate::shared_memory::{self, Incoming, Outgoing, Placed, Reading};
use crate::socket::Inbox;

/// The most bytes of the first frame, before the node has said its limit.
pub(crate) const START_BYTES: u64 = 1024 * 1024;

/// Why a worker in a child process could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeWorkerError {
    /// Standard input is not the socket of a node: start this program as the command of a stage.
    #[error("standard input is not the socket of a node")]
    NoSocket(#[source] io::Error),
    /// The socket failed.
    #[error("the socket of the node failed")]
    Socket(#[from] io::Error),
    /// The node said something unexpected.
    #[error("the node broke the protocol: {0}")]
    Protocol(String),
}

/// Serves a stage of a node from this process, which the node has started: `load` once, then `run` for each item, until
/// the node ends the process.
///
/// ```no_run
/// use callboard_codec::Value;
///
/// fn main() -> Result<(), callboard_process::ServeWorkerError> {
///     callboard_process::serve_worker(
///         || Ok(()),
///         |(), item: &Value| Ok(Value::from(item.as_str().ok_or("a text is needed")?.to_uppercase())),
///     )
/// }
/// ```
///
/// # Errors
///
/// If standard input is not a node's socket, or the node breaks the protocol.
pub fn serve_worker<W>(
    load: impl FnOnce() -> Result<W, Failure>,
    run: impl Fn(&mut W, &Value) -> Result<Value, Failure>,
) -> Result<(), ServeWorkerError> {
    let socket = take_socket().map_err(ServeWorkerError::NoSocket)?;
    // Also when it does not read the end of its socket, because it computes.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(io::Error::from)?;
    let mut inbox = Messages::new(socket.try_clone()?);
    let socket = Inbox::new(socket);
    let send =
        |message: &FromChild, parts: &[Envelope], memories: Option<&mut Outgoing>| -> Result<(), ServeWorkerError> {
            let head = message::encode(message).map_err(|error| ServeWorkerError::Protocol(error.to_string()))?;
            let parts = parts.iter().map(|part| (part.len(), part.parts()));
            let Placed { memory, descriptor } =
                memories.map_or_else(Placed::default, |memories| memories.place(parts.clone()));
            Ok(write_frame(&mut socket.outbox(descriptor), &head, parts, memory)?)
        };
    let mut load = Some(load);
    let (mut worker, mut decode, mut memories) = (None, limits(START_BYTES), None);
    while let Some((head, frame)) = inbox.next()? {
        match (head, worker.as_mut()) {
            (ToChild::Start(start), None) => {
                inbox.reader.set_max_bytes(start.max_bytes);
                decode = limits(start.max_bytes);
                let load = load.take().ok_or_else(|| ServeWorkerError::Protocol("two starts".to_owned()))?;
                match load() {
                    Ok(loaded) => worker = Some(loaded),
                    Err(failure) => {
                        let (message, trace) = (failure.message().to_owned(), None);
                        return send(&FromChild::Failed { message, trace }, &[], None);
                    }
                }
                let version = concat!("rust, callboard ", env!("CARGO_PKG_VERSION")).to_owned();
                let shared_memory = start.shared_memory && shared_memory::IS_SUPPORTED;
                if shared_memory {
                    inbox.reader.set_memories(Incoming::new(Reading::Views));
                    memories = Some(Outgoing::default());
                }
                let ahead = start.ahead.unwrap_or_default().min(AHEAD);
                let ready =
                    FromChild::Ready { protocol: PROTOCOL, worker: version, shared_memory, max_batches: 1, ahead };
                send(&ready, &[], None)?;
            }
            (ToChild::Batch { id, .. }, Some(worker)) => {
                let (mut items, mut parts) = (Vec::with_capacity(frame.parts.len()), Vec::new());
                let mut room = decode.max_bytes;
                for (item, part) in frame.parts.iter().enumerate() {
                    if item > 0 {
                        inbox.look()?;
                    }
                    if inbox.cancelled.contains(&(id, item)) {
                        items.push(Some(item_error(&Failure::new("cancelled: the caller has left"))));
                        continue;
                    }
                    match outcome(worker, part, &decode, &run) {
                        Ok(output) if output.len() > room => {
                            let message = format!("the outputs of the batch exceed {} bytes", decode.max_bytes);
                            items.push(Some(item_error(&Failure::new(message))));
                        }
                        Ok(output) => {
                            room -= output.len();
                            parts.push(output);
                            items.push(None);
                        }
                        Err(failure) => items.push(Some(item_error(&failure))),
                    }
                }
                inbox.cancelled.retain(|(batch, _)| *batch > id);
                send(&FromChild::Outcomes { id, items, last: false }, &parts, memories.as_mut())?;
            }
            // An item that runs is not interrupted.
            (ToChild::Cancel { .. } | ToChild::Credit { .. } | ToChild::Result { .. }, _) => {}
            (ToChild::Ping, _) => send(&FromChild::Pong, &[], None)?,
            (ToChild::Stop, _) => return Ok(()),
            (ToChild::Start(_) | ToChild::Batch { .. }, _) => {
                return Err(ServeWorkerError::Protocol("a batch before the start, or a second start".to_owned()));
            }
        }
    }
    Ok(())
}

/// What the node sends, in order.
struct Messages {
    stream: BufReader<Inbox>,
    reader: FrameReader,
    waiting: VecDeque<(ToChild, Frame)>,
    /// Items of batches that have not ended, by batch and index.
    cancelled: HashSet<(u64, usize)>,
}

impl Messages {
    fn new(socket: UnixStream) -> Self {
        let (stream, reader) = (BufReader::new(Inbox::new(socket)), FrameReader::new(START_BYTES));
        Self { stream, reader, waiting: VecDeque::new(), cancelled: HashSet::new() }
    }

    /// The next message, after all that have come were looked at: a batch may have been cancelled before its turn.
    fn next(&mut self) -> Result<Option<(ToChild, Frame)>, ServeWorkerError> {
        self.look()?;
        match self.waiting.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.read(),
        }
    }

    /// Takes what has come.
    fn look(&mut self) -> Result<(), ServeWorkerError> {
        while self.has_bytes() {
            match self.read()? {
                Some((ToChild::Cancel { id, item }, _)) => _ = self.cancelled.insert((id, item)),
                Some(message) => self.waiting.push_back(message),
                None => break,
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Option<(ToChild, Frame)>, ServeWorkerError> {
        let Some(frame) = self.reader.read(&mut self.stream)? else { return Ok(None) };
        let head = message::decode(&frame.head).map_err(|error| ServeWorkerError::Protocol(error.to_string()))?;
        Ok(Some((head, frame)))
    }

    fn has_bytes(&self) -> bool {
        let mut socket = [PollFd::from_borrowed_fd(self.stream.get_ref().as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.stream.buffer().is_empty() || retry_on_intr(|| poll(&mut socket, Some(&now))).is_ok_and(|ready| ready > 0)
    }
}

/// Takes the socket from standard input, where nothing else may read or close it.
pub(crate) fn take_socket() -> io::Result<UnixStream> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.peer_addr()?;
    dup2_stdin(OwnedFd::from(File::open("/dev/null")?))?;
    Ok(socket)
}

fn outcome<W>(
    worker: &mut W,
    part: &Bytes,
    limits: &DecodeLimits,
    run: &impl Fn(&mut W, &Value) -> Result<Value, Failure>,
) -> Result<Envelope, Failure> {
    let input = Value::decode(Format::Envelope, part, limits)?;
    Ok(run(worker, &input)?.to_envelope()?)
}

fn item_error(failure: &Failure) -> ItemError {
    ItemError {
        message: failure.message().to_owned(),
        invalid: failure.kind() == callboard_core::ErrorKind::InvalidInput,
        retry_after_ms: failure.retry_after().and_then(|after| u64::try_from(after.as_millis()).ok()),
        ..ItemError::default()
    }
}
