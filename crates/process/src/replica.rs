//! The child's side of an isolated stage: reads frames on one thread, runs batches on another.
//!
//! The reader sees callers that leave while the worker computes, and the end of the node. Synchronous code has one
//! batch at a time on its thread; asynchronous code has a task for each.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use callboard_codec::{Envelope, Format, Payload, Value};
use callboard_core::edge::{ErrorParts, contain, contain_future};
use callboard_core::isolation::{
    IsolatedCall, IsolatedItem, IsolatedOutcome, IsolatedReplica, ReplicaPlace, StageCode,
};
use callboard_core::{CallOptions, Deadline, ErrorKind, Failure, Instant, MAX_TIMEOUT, SessionKey};
use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::frame::{FrameReader, limits, write_frame};
use crate::message::{self, CREDIT, CallHead, FromChild, ItemError, PROTOCOL, Start, ToChild};
use crate::replica_log;
use crate::serve::{START_BYTES, ServeWorkerError, take_socket};
use crate::shared_memory::{self, Incoming, Outgoing, Placed, Reading};
use crate::socket::Inbox;

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

/// Serves a replica of the stage until the node ends it, and ends the process.
pub(crate) fn serve_and_exit(code: StageCode) -> ! {
    // The caller's thread may belong to a runtime, which a worker with a runtime of its own would refuse.
    let serving = thread::Builder::new().name("callboard-node".to_owned()).spawn(move || serve(&code));
    match serving.map(thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => exit(0),
        Ok(Ok(Err(error))) => fail(&error.to_string()),
        Ok(Err(_panic)) => exit(PANICKED),
        Err(error) => fail(&error.to_string()),
    }
}

#[expect(clippy::exit, reason = "the process is the replica, and `main` must not go on")]
fn exit(code: i32) -> ! {
    process::exit(code)
}

/// Says why in the last line, which the node reads.
fn fail(message: &str) -> ! {
    use io::Write as _;
    let _ = writeln!(io::stderr(), "{message}");
    exit(1)
}

/// The socket's writing side. A node that is gone ends the process.
#[derive(Clone)]
struct Node(Arc<Mutex<Writer>>);

struct Writer {
    socket: Inbox,
    memories: Option<Outgoing>,
    /// The most bytes of a frame.
    max_bytes: usize,
}

impl Node {
    fn send(&self, message: &FromChild, parts: &[Envelope]) {
        if let Err(error) = self.try_send(message, parts) {
            fail(&format!("the socket of the node failed: {error}"));
        }
    }

    fn try_send(&self, message: &FromChild, parts: &[Envelope]) -> io::Result<()> {
        let head = message::encode(message).map_err(io::Error::other)?;
        let writer = &mut *self.0.lock();
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        let Placed { memory, descriptor } =
            writer.memories.as_mut().map_or_else(Placed::default, |memories| memories.place(parts.clone()));
        write_frame(&mut writer.socket.outbox(descriptor), &head, parts, memory)
    }

    /// An output that fits into a frame with this much room.
    fn envelope(output: &Payload, room: usize) -> Result<Envelope, Failure> {
        let envelope = output.to_envelope()?;
        if envelope.len() > room {
            return Err(Failure::new(format!("the outputs of the batch exceed the {room} bytes that are left of it")));
        }
        Ok(envelope)
    }
}

/// A batch that the worker has not answered.
struct OpenBatch {
    calls: Vec<IsolatedCall>,
    /// Tells asynchronous code that its one caller has left.
    cancelled: Arc<Notify>,
    /// The outputs that a stream may still send.
    credit: Arc<Semaphore>,
}

type OpenBatches = Arc<Mutex<HashMap<u64, OpenBatch>>>;

/// A batch on its way to the worker. An input that cannot be read fails alone.
struct Batch {
    id: u64,
    inputs: Vec<Result<Value, Failure>>,
    calls: Vec<IsolatedCall>,
    cancelled: Arc<Notify>,
    credit: Arc<Semaphore>,
}

/// Reads frames until the node says stop, or is gone.
fn serve(code: &StageCode) -> Result<(), ServeWorkerError> {
    let socket = take_socket().map_err(ServeWorkerError::NoSocket)?;
    // Also when the reader cannot run.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(io::Error::from)?;
    let mut stream = BufReader::new(Inbox::new(socket.try_clone()?));
    let writer = Writer { socket: Inbox::new(socket), memories: None, max_bytes: 0 };
    let node = Node(Arc::new(Mutex::new(writer)));
    let log = node.clone();
    replica_log::send_by(move |record| log.send(record, &[]));
    let (open, mut reader) = (OpenBatches::default(), FrameReader::new(START_BYTES));
    let mut worker = None;
    let mut decode = limits(START_BYTES);
    let mut credit = CREDIT;
    let protocol = |message: &str| ServeWorkerError::Protocol(message.to_owned());
    while let Some(frame) = reader.read(&mut stream)? {
        let head: ToChild = message::decode(&frame.head).map_err(|error| protocol(&error.to_string()))?;
        match (head, &worker) {
            (ToChild::Start(start), None) => {
                reader.set_max_bytes(start.max_bytes);
                decode = limits(start.max_bytes);
                credit = start.credit.unwrap_or(Semaphore::MAX_PERMITS);
                let shares = start.shared_memory && shared_memory::IS_SUPPORTED;
                if shares {
                    reader.set_memories(Incoming::new(Reading::Views));
                }
                node.0.lock().max_bytes = decode.max_bytes;
                worker = Some(start_worker(code.clone(), start, shares, &node, &open)?);
            }
            (ToChild::Batch { id, items }, Some((batches, _))) => {
                let calls: Vec<_> = items.iter().map(call).collect();
                let inputs = frame.parts.iter().map(|part| Ok(Value::decode(Format::Envelope, part, &decode)?));
                let inputs: Vec<_> = inputs.collect();
                if inputs.len() != calls.len() {
                    return Err(protocol("a batch has another count of items than of parts"));
                }
                let (cancelled, credit) = (Arc::default(), Arc::new(Semaphore::new(credit)));
                let batch = Batch { id, inputs, calls: calls.clone(), cancelled, credit };
                let (cancelled, credit) = (Arc::clone(&batch.cancelled), Arc::clone(&batch.credit));
                open.lock().insert(id, OpenBatch { calls, cancelled, credit });
                // A worker that has ended ends the process.
                let _ = batches.send(batch);
            }
            (ToChild::Cancel { id, item }, _) => {
                if let Some(batch) = open.lock().get(&id) {
                    batch.calls.get(item).into_iter().for_each(IsolatedCall::cancel);
                    batch.cancelled.notify_one();
                }
            }
            (ToChild::Credit { id, outputs, .. }, _) => {
                if let Some(batch) = open.lock().get(&id) {
                    batch.credit.add_permits(outputs.min(CREDIT));
                }
            }
            // It makes no calls.
            (ToChild::Result { .. }, _) => {}
            (ToChild::Ping, _) => node.send(&FromChild::Pong, &[]),
            (ToChild::Stop, _) => {
                if let Some((batches, ended)) = worker.take() {
                    drop(batches);
                    // The node kills a worker that takes too long.
                    let _ = ended.recv();
                }
                return Ok(());
            }
            (ToChild::Start(_) | ToChild::Batch { .. }, _) => {
                return Err(protocol("a batch before the start, or a second start"));
            }
        }
    }
    // The node is gone: so is everybody who waits for the worker.
    exit(0)
}

/// The call of an item, as its head tells of it.
fn call(head: &CallHead) -> IsolatedCall {
    let remaining = head.remaining_ms.map_or(MAX_TIMEOUT, Duration::from_millis);
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
    options = head.tags.iter().fold(options, |options, (name, value)| options.with_tag(&**name, &**value));
    IsolatedCall::new(Deadline::after(Instant::now(), remaining), &options)
}

/// Starts the worker's thread: the channel of its batches, and what resolves when it has cleaned up.
fn start_worker(
    code: StageCode,
    start: Start,
    shares: bool,
    node: &Node,
    open: &OpenBatches,
) -> io::Result<(Sender<Batch>, Receiver<()>)> {
    let ((batches, inbox), (done, ended)) = (channel(), channel());
    let (node, open) = (node.clone(), Arc::clone(open));
    let name = format!("{}-{}", start.stage, start.replica);
    thread::Builder::new().name(name).spawn(move || {
        let Start { replica: index, generation, max_batch_size, settings, max_batches, .. } = start;
        let mut replica = match code.build(ReplicaPlace { index, generation, max_batch_size, settings }) {
            Ok(replica) => replica,
            Err(failure) => {
                node.send(&FromChild::Failed { message: failure.message().to_owned(), trace: None }, &[]);
                exit(1)
            }
        };
        if shares {
            node.0.lock().memories = Some(Outgoing::default());
        }
        let worker = concat!("rust, callboard ", env!("CARGO_PKG_VERSION")).to_owned();
        let max_batches = max_batches.filter(|_| code.is_async()).unwrap_or(1) as usize;
        // No batch ahead: it might begin before its cancellation is read.
        let ready = FromChild::Ready { protocol: PROTOCOL, worker, shared_memory: shares, max_batches, ahead: 0 };
        node.send(&ready, &[]);
        // A panic ends the replica. It has been printed.
        if contain(|| work(&code, &mut replica, &inbox, &node, &open)).is_err() {
            exit(PANICKED);
        }
        replica.cleanup();
        let _ = done.send(());
    })?;
    Ok((batches, ended))
}

fn work(code: &StageCode, replica: &mut IsolatedReplica, inbox: &Receiver<Batch>, node: &Node, open: &OpenBatches) {
    let mut running = Vec::new();
    while let Ok(batch) = inbox.recv() {
        let (id, (items, mut answers)) = (batch.id, prepare(code, &batch));
        if code.is_async() {
            running.retain(|task: &tokio::task::JoinHandle<()>| !task.is_finished());
            let task = run_async(replica, items, answers, batch, node.clone(), Arc::clone(open));
            running.push(task);
            continue;
        }
        let outcomes = thread::scope(|scope| {
            let outputs = std::mem::take(&mut answers.outputs);
            let (runtime, answers) = (replica.runtime().clone(), &answers);
            if !outputs.is_empty() {
                scope.spawn(move || runtime.block_on(answers.pass_on(outputs, id, node, &batch.credit)));
            }
            replica.run(items)
        });
        answers.send(outcomes, id, node, open);
    }
    let runtime = replica.runtime().clone();
    runtime.block_on(join_all(running));
}

/// Runs a batch of asynchronous code as a task. If its one caller leaves, the code is dropped.
fn run_async(
    replica: &IsolatedReplica,
    items: Vec<IsolatedItem>,
    mut answers: Answers,
    batch: Batch,
    node: Node,
    open: OpenBatches,
) -> tokio::task::JoinHandle<()> {
    let running = replica.run_async(items);
    replica.runtime().spawn(async move {
        let Batch { id, calls, cancelled, credit, .. } = batch;
        let outputs = std::mem::take(&mut answers.outputs);
        let outcomes = {
            let passing = answers.pass_on(outputs, id, &node, &credit);
            let ended = futures_util::future::join(contain_future(running), passing);
            let alone = calls.len() == 1;
            let left = async {
                cancelled.notified().await;
                if !alone {
                    std::future::pending::<()>().await;
                }
            };
            match select(Box::pin(ended), Box::pin(left)).await {
                Either::Left(((Ok(outcomes), ()), _)) => outcomes,
                // A panic ends the replica. It has been printed.
                Either::Left(((Err(_), ()), _)) => exit(PANICKED),
                Either::Right(_) => calls.iter().map(|_| Err(left_alone())).collect(),
            }
        };
        answers.send(outcomes, id, &node, &open);
    })
}

fn left_alone() -> Box<ErrorParts> {
    Box::new(ErrorParts::new(ErrorKind::Cancelled, "its caller has left"))
}

/// What the items of a batch are answered.
struct Answers {
    /// By the index of the item; of an item that could not be read, its failure.
    unread: Vec<Option<ItemError>>,
    /// The outputs of streams, with the index of their item.
    outputs: Vec<(usize, mpsc::Receiver<Payload>)>,
    /// Streams with an output that cannot be sent.
    broken: Mutex<HashMap<usize, ItemError>>,
    is_streaming: bool,
}

/// The items for the worker.
fn prepare(code: &StageCode, batch: &Batch) -> (Vec<IsolatedItem>, Answers) {
    let is_streaming = code.is_streaming();
    let mut answers = Answers { unread: Vec::new(), outputs: Vec::new(), broken: Mutex::default(), is_streaming };
    let mut items = Vec::with_capacity(batch.inputs.len());
    for (index, (input, call)) in batch.inputs.iter().zip(&batch.calls).enumerate() {
        match input {
            Ok(input) if is_streaming => {
                let (item, outputs) = IsolatedItem::streaming(input.clone(), call, CREDIT);
                items.push(item);
                answers.outputs.push((index, outputs));
                answers.unread.push(None);
            }
            Ok(input) => {
                items.push(IsolatedItem::new(input.clone(), call));
                answers.unread.push(None);
            }
            Err(failure) => {
                let error = ItemError { message: failure.message().to_owned(), ..ItemError::default() };
                answers.unread.push(Some(error));
            }
        }
    }
    (items, answers)
}

impl Answers {
    /// Sends the outputs of streams as they come, until all of them have ended.
    async fn pass_on(&self, outputs: Vec<(usize, mpsc::Receiver<Payload>)>, id: u64, node: &Node, credit: &Semaphore) {
        let max_bytes = node.0.lock().max_bytes;
        let passing = outputs.into_iter().map(async |(item, mut outputs)| {
            loop {
                // The semaphore is never closed.
                credit.acquire().await.into_iter().for_each(tokio::sync::SemaphorePermit::forget);
                let Some(output) = outputs.recv().await else { return };
                match Node::envelope(&output, max_bytes) {
                    Ok(part) => node.send(&FromChild::Output { id, item }, &[part]),
                    Err(failure) => {
                        let error = ItemError { message: failure.message().to_owned(), ..ItemError::default() };
                        self.broken.lock().insert(item, error);
                        return;
                    }
                }
            }
        });
        join_all(passing).await;
    }

    /// Sends the outcomes of a batch.
    fn send(self, outcomes: Vec<IsolatedOutcome>, id: u64, node: &Node, open: &OpenBatches) {
        let mut room = node.0.lock().max_bytes;
        let (mut outcomes, mut parts) = (outcomes.into_iter(), Vec::new());
        let mut broken = self.broken.into_inner();
        let answer = |(index, unread): (usize, Option<ItemError>)| {
            if let Some(error) = unread {
                return Some(error);
            }
            match outcomes.next()? {
                _ if broken.contains_key(&index) => broken.remove(&index),
                Ok(_) if self.is_streaming => None,
                Ok(output) => match Node::envelope(&output, room) {
                    Ok(part) => {
                        room -= part.len();
                        parts.push(part);
                        None
                    }
                    Err(failure) => Some(ItemError { message: failure.message().to_owned(), ..ItemError::default() }),
                },
                Err(error) => Some(item_error(*error)),
            }
        };
        let items: Vec<_> = self.unread.into_iter().enumerate().map(answer).collect();
        // Before it is answered: the number may come again at once.
        open.lock().remove(&id);
        node.send(&FromChild::Outcomes { id, items, last: false }, &parts);
    }
}

/// An error as the node takes it. The kind of a failure of user code needs no name.
fn item_error(error: ErrorParts) -> ItemError {
    let kind = (error.kind != ErrorKind::Failed).then(|| error.kind.as_str().to_owned());
    ItemError {
        message: error.message,
        invalid: false,
        kind,
        stage: error.stage.map(|stage| stage.to_string()),
        status: error.status,
        error_type: error.error_type,
        details: error.details,
        retry_after_ms: error.retry_after.and_then(|after| u64::try_from(after.as_millis()).ok()),
        headers: error.headers,
        trace: error.remote_trace,
    }
}
