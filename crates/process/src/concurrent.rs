//! A worker whose child works on several calls at once.
//!
//! ```text
//!  call ──► writer task ──► Unix socket ──► child
//!    ▲                                        │
//!    └───── open calls ◄── reader task ◄──────┘
//! ```
//!
//! Each call is a batch of its own with one item. The reader task owns the child; both tasks end with it.
//!
//! * **Full:** a call waits until the child has room. A child that leaves too many frames unread is killed.
//! * **Late:** the call is cancelled, and the child lives on, unless it answers no ping.
//! * **Cancelled:** the child is told. Its place is free when it has answered.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Envelope, Format, Value};
use callboard_core::{
    AsyncStreamWorker, AsyncWorker, Batch, CallContext, CallError, CallOptions, ExitPort, Failure, Replica,
    StartedCall, WorkerExit,
};
use futures_util::future::join_all;
use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::calls::{self, MAX_OPEN};
use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::frame::{Frame, ONE_PIECE_BYTES, frame_start};
use crate::message::{self, CREDIT, FromChild, ItemError, ToChild};
use crate::worker::{Lost, ProcessWorker, call_head, decode, envelope, failure, head, is_not_ready};

/// The most frames of one call that wait to be written: its batch, its cancellation, and credit. A child that reads
/// nothing gets little credit.
const FRAMES_OF_CALL: usize = 8;

/// A child without a stage's timeout that leaves so many frames unread for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// How often the reader task looks for the end of a child whose socket stays open.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A worker for single outputs.
pub(crate) struct ConcurrentWorker(Starting);

/// A worker for streams of outputs.
pub(crate) struct ConcurrentStreamWorker(Starting);

/// A child that starts when its replica warms up: a start takes time, and the replica is built on the runtime.
struct Starting {
    config: ProcessConfig,
    fork_server: Arc<ForkServer>,
    replica: Replica,
    child: OnceLock<RunningChild>,
}

/// The callers' side of a child.
struct RunningChild {
    frames: mpsc::Sender<OutgoingFrame>,
    open: Arc<Mutex<OpenCalls>>,
    /// As many calls as the child works on.
    room: Arc<Semaphore>,
    limits: DecodeLimits,
    /// Resolves when the reader task has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    stop_timeout: Duration,
}

/// The calls that the child has not answered, also those whose callers have left.
#[derive(Default)]
struct OpenCalls {
    next_id: u64,
    calls: HashMap<u64, OpenCall>,
    made: HashMap<u64, ChildCall>,
    /// The queue of frames is full: the child does not read.
    is_stuck: bool,
    /// Why there is no child any more.
    exit: Option<WorkerExit>,
}

struct OpenCall {
    context: CallContext,
    answers: mpsc::Sender<Answer>,
    _room: OwnedSemaphorePermit,
}

/// A call that the child makes to a route of its node. Dropping it cancels the call.
struct ChildCall {
    /// The call that it is made for.
    made_for: u64,
    _started: StartedCall,
}

/// What the child says about a call.
enum Answer {
    Output(Bytes),
    Outcome(Result<Option<Bytes>, Box<ItemError>>),
}

/// A frame for the child. Its count is bounded by the open calls.
struct OutgoingFrame {
    head: Vec<u8>,
    part: Option<Envelope>,
}

impl Starting {
    fn new(config: &ProcessConfig, fork_server: &Arc<ForkServer>, replica: &Replica) -> Self {
        Self {
            config: config.clone(),
            fork_server: Arc::clone(fork_server),
            replica: replica.clone(),
            child: OnceLock::new(),
        }
    }

    async fn warmup(&self) -> Result<(), Failure> {
        let (config, fork_server, replica) = (self.config.clone(), Arc::clone(&self.fork_server), self.replica.clone());
        let worker = spawn_blocking(move || ProcessWorker::start(&config, &fork_server, &replica));
        let worker = worker.await.map_err(|error| Failure::new(format!("could not start: {error}")))??;
        let child = RunningChild::new(worker, &self.config, &self.replica)
            .map_err(|error| Failure::new(format!("the socket of the child failed: {error}")))?;
        let _ = self.child.set(child);
        Ok(())
    }

    fn child(&self) -> &RunningChild {
        self.child.get().expect("a worker is called after its warm-up")
    }

    async fn cleanup(&self) {
        if let Some(child) = self.child.get() {
            child.stop().await;
        }
    }
}

impl RunningChild {
    fn new(worker: ProcessWorker, config: &ProcessConfig, replica: &Replica) -> io::Result<Self> {
        // The reader task notices the end, also of an idle child.
        worker.set_busy();
        let socket = worker.socket()?;
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UnixStream::from_std(socket)?);
        let (frames, outgoing) = mpsc::channel(FRAMES_OF_CALL * worker.max_batches() + 2 * MAX_OPEN);
        let (ended, has_ended) = oneshot::channel();
        let open = Arc::<Mutex<OpenCalls>>::default();
        let room = Arc::new(Semaphore::new(worker.max_batches()));
        let limits = worker.limits().clone();
        let writer = tokio::spawn(write_frames(Arc::clone(&socket), outgoing));
        let reader = ReaderTask {
            worker,
            socket,
            open: Arc::clone(&open),
            last_call: None,
            writer,
            frames: frames.downgrade(),
            liveness: replica.timeout(),
            exit_port: replica.exit_port(),
        };
        tokio::spawn(async move {
            reader.run().await;
            let _ = ended.send(());
        });
        let ended = Mutex::new(Some(has_ended));
        Ok(Self { frames, open, room, limits, ended, stop_timeout: config.stop_timeout })
    }

    /// Hands a call to the child, when it has room for it.
    async fn begin(&self, input: &Value, context: &CallContext) -> Result<CallGuard<'_>, Failure> {
        let part = envelope(input, self.limits.max_bytes)?;
        // The semaphore is never closed.
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|error| Failure::new(error.to_string()))?;
        let (answers, receiver) = mpsc::channel(CREDIT + 1);
        let id = {
            let mut open = self.open.lock();
            if let Some(exit) = open.exit.clone() {
                drop(open);
                exit.unwind();
            }
            let id = open.next_id;
            open.next_id += 1;
            open.calls.insert(id, OpenCall { context: context.clone(), answers, _room: room });
            id
        };
        self.send(&ToChild::Batch { id, items: vec![call_head(context)] }, Some(part));
        Ok(CallGuard { child: self, id, answers: receiver, taken: 0, is_over: false })
    }

    fn send(&self, message: &ToChild, part: Option<Envelope>) {
        send(&self.frames, &self.open, message, part);
    }

    async fn stop(&self) {
        self.send(&ToChild::Stop, None);
        let ended = self.ended.lock().take();
        if let Some(ended) = ended {
            // Else the child is killed when this is dropped.
            let _ = timeout(self.stop_timeout, ended).await;
        }
    }
}

/// Queues a frame. Without a writer there is no child, and its calls are told so.
fn send(frames: &mpsc::Sender<OutgoingFrame>, open: &Mutex<OpenCalls>, message: &ToChild, part: Option<Envelope>) {
    // The head has numbers and texts, which can be written.
    let head = message::encode(message).unwrap_or_default();
    if let Err(TrySendError::Full(_)) = frames.try_send(OutgoingFrame { head, part }) {
        open.lock().is_stuck = true;
    }
}

/// A call in the child. Cancels it when it is dropped before its outcome.
struct CallGuard<'c> {
    child: &'c RunningChild,
    id: u64,
    answers: mpsc::Receiver<Answer>,
    /// Outputs taken since the child was last given credit.
    taken: usize,
    is_over: bool,
}

impl CallGuard<'_> {
    async fn next(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => {
                self.is_over = matches!(answer, Answer::Outcome(_));
                answer
            }
            None => {
                self.is_over = true;
                let exit = self.child.open.lock().exit.clone();
                exit.unwrap_or_else(|| WorkerExit::new("its child has ended")).unwind()
            }
        }
    }

    /// The caller has taken an output: the child may send more.
    fn give_credit(&mut self) {
        self.taken += 1;
        if self.taken == CREDIT / 2 {
            self.child.send(&ToChild::Credit { id: self.id, item: 0, outputs: self.taken }, None);
            self.taken = 0;
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.child.send(&ToChild::Cancel { id: self.id, item: 0 }, None);
        }
    }
}

impl ConcurrentWorker {
    pub(crate) fn new(config: &ProcessConfig, fork_server: &Arc<ForkServer>, replica: &Replica) -> Self {
        Self(Starting::new(config, fork_server, replica))
    }
}

impl AsyncWorker for ConcurrentWorker {
    type In = Value;
    type Out = Value;

    async fn call(&self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        let child = self.0.child();
        let calls = batch.iter().enumerate().map(async |(index, input)| {
            let mut call = child.begin(input, &batch.context(index)).await?;
            match call.next().await {
                Answer::Outcome(Ok(Some(part))) => decode(&part, &child.limits),
                Answer::Outcome(Err(error)) => Err(failure(*error)),
                Answer::Output(_) | Answer::Outcome(Ok(None)) => {
                    Err(Failure::new("the worker answered with a stream, and the stage gives one output"))
                }
            }
        });
        join_all(calls).await
    }

    async fn warmup(&self) -> Result<(), Failure> {
        self.0.warmup().await
    }

    async fn cleanup(&self) {
        self.0.cleanup().await;
    }
}

impl ConcurrentStreamWorker {
    pub(crate) fn new(config: &ProcessConfig, fork_server: &Arc<ForkServer>, replica: &Replica) -> Self {
        Self(Starting::new(config, fork_server, replica))
    }
}

/// How far a stream is.
enum Step<'c> {
    Begin(Arc<Value>, Box<CallContext>),
    Running(CallGuard<'c>),
    Over,
}

impl AsyncStreamWorker for ConcurrentStreamWorker {
    type In = Value;
    type Out = Value;

    fn call(&self, input: Arc<Value>, context: CallContext) -> impl Stream<Item = Result<Value, Failure>> + Send {
        let child = self.0.child();
        stream::unfold(Step::Begin(input, Box::new(context)), async move |step| {
            let mut call = match step {
                Step::Begin(input, context) => match child.begin(&input, &context).await {
                    Ok(call) => call,
                    Err(failure) => return Some((Err(failure), Step::Over)),
                },
                Step::Running(call) => call,
                Step::Over => return None,
            };
            match call.next().await {
                Answer::Output(part) => {
                    call.give_credit();
                    Some((decode(&part, &child.limits), Step::Running(call)))
                }
                Answer::Outcome(Ok(None)) => None,
                Answer::Outcome(Err(error)) => Some((Err(failure(*error)), Step::Over)),
                Answer::Outcome(Ok(Some(_))) => {
                    let wrong = Failure::new("the worker answered with one output, and the stage streams");
                    Some((Err(wrong), Step::Over))
                }
            }
        })
    }

    async fn warmup(&self) -> Result<(), Failure> {
        self.0.warmup().await
    }

    async fn cleanup(&self) {
        self.0.cleanup().await;
    }
}

/// Writes frames, each whole, until the worker and the reader task have ended.
async fn write_frames(socket: Arc<UnixStream>, mut outgoing: mpsc::Receiver<OutgoingFrame>) -> io::Result<()> {
    while let Some(OutgoingFrame { head, part }) = outgoing.recv().await {
        let (bytes, pieces) = part.as_ref().map_or((0, &[][..]), |part| (part.len(), part.parts()));
        let mut start = frame_start(&head, part.iter().map(Envelope::len), 0)?;
        if start.len() + bytes <= ONE_PIECE_BYTES {
            pieces.iter().for_each(|piece| start.extend_from_slice(piece));
            write_all(&socket, &start).await?;
            continue;
        }
        write_all(&socket, &start).await?;
        for piece in pieces {
            write_all(&socket, piece).await?;
        }
    }
    Ok(())
}

async fn write_all(socket: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_not_ready(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How long a child with open calls has said nothing.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
    is_pinged: bool,
}

impl Silence {
    /// Whether it has lasted for `limit`. Calls `ping` once, after half of it.
    fn is_too_long(&mut self, limit: Duration, ping: impl FnOnce()) -> bool {
        let silence = self.since.get_or_insert_with(Instant::now).elapsed();
        if silence >= limit / 2 && !self.is_pinged {
            self.is_pinged = true;
            ping();
        }
        silence >= limit
    }
}

/// Reads what the child says, and ends it.
struct ReaderTask {
    worker: ProcessWorker,
    socket: Arc<UnixStream>,
    open: Arc<Mutex<OpenCalls>>,
    /// Ends when it cannot write, and with this.
    writer: JoinHandle<io::Result<()>>,
    /// The id of the child's last call.
    last_call: Option<u64>,
    /// Weak: the task ends when the worker is dropped.
    frames: mpsc::WeakSender<OutgoingFrame>,
    /// A child with open calls answers a ping within this time.
    liveness: Option<Duration>,
    exit_port: ExitPort,
}

impl ReaderTask {
    async fn run(mut self) {
        let lost = self.read().await;
        let Self { mut worker, open, exit_port, .. } = self;
        // Waits briefly for the exit status.
        let exit = spawn_blocking(move || lost.map(|lost| worker.end(lost)));
        let exit = match exit.await {
            Ok(None) => return,
            Ok(Some(exit)) => exit,
            Err(error) => WorkerExit::new(format!("its end failed: {error}")),
        };
        {
            let mut open = open.lock();
            open.exit = Some(exit.clone());
            // Their callers read the reason.
            open.calls.clear();
        }
        exit_port.report(&exit);
    }

    /// Reads until the child is lost. `None`: the worker has been dropped.
    async fn read(&mut self) -> Option<Lost> {
        let mut silence = Silence::default();
        loop {
            // Looked at before the socket: what a child has sent before its end is read.
            let has_ended = self.worker.has_ended();
            let received = match self.worker.try_receive() {
                Err(error) if is_not_ready(&error) && has_ended => return Some(Lost::Ended),
                Err(error) if is_not_ready(&error) => self.receive().await,
                received => received,
            };
            let frames = self.frames.upgrade()?;
            // Results of the child's calls are written before more calls are read.
            if frames.capacity() < MAX_OPEN {
                let room = frames.reserve_many(MAX_OPEN);
                if timeout(self.liveness.unwrap_or(STUCK_AFTER), room).await.is_err() {
                    return Some(Lost::Broken("it did not read what it was sent".to_owned()));
                }
            }
            if self.open.lock().is_stuck {
                return Some(Lost::Broken("it did not read what it was sent".to_owned()));
            }
            match received {
                Ok(Some(frame)) => {
                    silence = Silence::default();
                    if let Err(lost) = self.take(&frames, &frame) {
                        return Some(lost);
                    }
                    tokio::task::consume_budget().await;
                }
                Ok(None) => return Some(Lost::Ended),
                // Only now: a child that has ended reads nothing either, and its last frames and its end say more.
                Err(error) if is_not_ready(&error) && self.writer.is_finished() && !self.worker.has_ended() => {
                    return Some(Lost::Broken("it does not read any more".to_owned()));
                }
                Err(error) if is_not_ready(&error) => {
                    if let Some(limit) = self.liveness
                        && !self.open.lock().calls.is_empty()
                        && silence.is_too_long(limit, || send(&frames, &self.open, &ToChild::Ping, None))
                    {
                        return Some(Lost::Broken(format!("it has said nothing for {limit:?}")));
                    }
                }
                Err(error) => return Some(error.into()),
            }
        }
    }

    /// Waits for bytes, for a moment, and reads them.
    async fn receive(&mut self) -> io::Result<Option<Frame>> {
        timeout(LOOK_INTERVAL, self.socket.readable()).await??;
        self.socket.try_io(Interest::READABLE, || self.worker.try_receive())
    }

    fn take(&mut self, frames: &mpsc::Sender<OutgoingFrame>, frame: &Frame) -> Result<(), Lost> {
        match head(frame)? {
            FromChild::Output { id, item: 0 } if frame.parts.len() == 1 => {
                let open = self.open.lock();
                let call = open.calls.get(&id).ok_or_else(Lost::unasked)?;
                match call.answers.try_send(Answer::Output(frame.parts[0].clone())) {
                    // The outcome has the last place.
                    Ok(()) if call.answers.capacity() == 0 => Err(Lost::Broken(format!(
                        "it sent more than {CREDIT} outputs of an item that were not asked for"
                    ))),
                    // The caller has left.
                    Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
                    Err(TrySendError::Full(_)) => Err(Lost::unasked()),
                }
            }
            FromChild::Outcomes { id, items, last } => {
                if last {
                    // Another replica takes its place; its open calls are finished.
                    self.exit_port.report(&WorkerExit::new("the process has said that it ends"));
                }
                let [outcome] = <[_; 1]>::try_from(items)
                    .map_err(|items| Lost::Broken(format!("it answered {} outcomes for 1 item", items.len())))?;
                let outcome = match (outcome, frame.parts.as_slice()) {
                    (Some(error), []) => Err(Box::new(error)),
                    (None, []) => Ok(None),
                    (None, [part]) => Ok(Some(part.clone())),
                    _ => {
                        return Err(Lost::wrong_outputs());
                    }
                };
                let mut open = self.open.lock();
                let call = open.calls.remove(&id).ok_or_else(Lost::unasked)?;
                open.made.retain(|_, made| made.made_for != id);
                let _ = call.answers.try_send(Answer::Outcome(outcome));
                Ok(())
            }
            FromChild::Log { level, target, message, request_id } => {
                self.worker.log(&level, &target, message, request_id.as_deref());
                Ok(())
            }
            FromChild::Call { id, batch, item, route } => {
                if frame.parts.len() != 1 || self.last_call.replace(id).is_some_and(|last| last >= id) {
                    return Err(Lost::wrong_call());
                }
                if let Err(error) = self.call(frames, id, batch, item, &route, &frame.parts[0]) {
                    let (message, _) = calls::result(id, Err(error), 0);
                    send(frames, &self.open, &message, None);
                }
                Ok(())
            }
            FromChild::CancelCall { id } => {
                self.open.lock().made.remove(&id);
                Ok(())
            }
            FromChild::Pong => Ok(()),
            FromChild::Output { .. } => Err(Lost::unasked()),
            FromChild::Ready { .. } | FromChild::Failed { .. } => Err(Lost::started_twice()),
        }
    }

    /// Makes a call of the child to a route of its node, for a call that runs. Its result goes to the child at once.
    fn call(
        &self,
        frames: &mpsc::Sender<OutgoingFrame>,
        id: u64,
        made_for: u64,
        item: Option<usize>,
        route: &str,
        input: &Bytes,
    ) -> Result<(), CallError> {
        let limits = self.worker.limits();
        let (input, max_bytes) = (Value::decode(Format::Envelope, input, limits)?, limits.max_bytes);
        let mut open = self.open.lock();
        let call = open.calls.get(&made_for).filter(|_| item.is_none_or(|item| item == 0));
        let within = call.ok_or_else(calls::over)?;
        if open.made.len() >= MAX_OPEN {
            return Err(calls::too_many());
        }
        let client = within.context.client()?;
        let (frames, shared) = (frames.downgrade(), Arc::clone(&self.open));
        let _started = client.start_call::<Value, Value>(route, input, CallOptions::new(), move |outcome| {
            let is_awaited = shared.lock().made.remove(&id).is_some();
            if let Some(frames) = frames.upgrade().filter(|_| is_awaited) {
                let (message, output) = calls::result(id, outcome, max_bytes);
                send(&frames, &shared, &message, output);
            }
        });
        open.made.insert(id, ChildCall { made_for, _started });
        Ok(())
    }
}
