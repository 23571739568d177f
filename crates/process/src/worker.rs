//! A worker whose code runs in a child process.

use std::io::{self, BufReader, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::{DecodeError, DecodeLimits, Envelope, Format, Value};
use callboard_core::edge::ErrorParts;
use callboard_core::{
    Batch, CallContext, CallError, ErrorKind, Failure, Outputs, Replica, StageName, StreamWorker, Worker, WorkerExit,
};

use crate::calls::{self, CallOutcome, Calls};
use crate::child::{ChildProcess, TICK};
use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::frame::{Frame, FrameReader, limits, write_frame};
use crate::message::{
    self, CREDIT, CallHead, FromChild, ItemError, MAX_ITEMS, MAX_TRACE_LINES, PROTOCOL, Start, ToChild,
};
use crate::shared_memory::{self, Incoming, Outgoing, Placed, Reading};
use crate::socket::{Inbox, Outbox, Source};

/// The status of an input that does not have the service's type.
const INVALID_STATUS: u16 = 422;

/// The time for which a child that has said that it ends may do so.
const LEAVE_GRACE: Duration = Duration::from_millis(500);

/// The most characters of a record in the log.
const MAX_LOG_CHARS: usize = 8_000;

/// The node's side of one child.
pub(crate) struct ProcessWorker {
    child: ChildProcess,
    reader: FrameReader,
    /// If both sides share memory.
    memories: Option<Outgoing>,
    /// `None` until the child calls.
    calls: Option<Calls>,
    limits: DecodeLimits,
    next_id: u64,
    next_tick: Instant,
    stop_timeout: Duration,
    stage: String,
    replica: usize,
    /// The batches that the child works on at once.
    max_batches: usize,
    /// It has said that it ends by itself.
    is_leaving: bool,
}

/// Why a child did not answer.
pub(crate) enum Lost {
    /// It has ended, or closed its socket.
    Ended,
    /// It must be killed.
    Broken(String),
    /// It says that it cannot start.
    NotStarted { message: String, trace: String },
}

impl Lost {
    pub(crate) fn unasked() -> Self {
        Self::Broken("it answered what it was not asked".to_owned())
    }

    pub(crate) fn started_twice() -> Self {
        Self::Broken("it said twice whether it has started".to_owned())
    }

    pub(crate) fn wrong_outputs() -> Self {
        Self::Broken("it answered another number of outputs than of successes".to_owned())
    }

    pub(crate) fn wrong_call() -> Self {
        Self::Broken("a call of it has one input, and an id above those of its earlier calls".to_owned())
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, TimedOut};
        match error.kind() {
            BrokenPipe | ConnectionReset => Self::Ended,
            InvalidData => Self::Broken(error.to_string()),
            TimedOut => Self::Broken("it did not read what it was sent".to_owned()),
            _ => Self::Broken(format!("its socket failed: {error}")),
        }
    }
}

impl ProcessWorker {
    /// Starts a child and waits until it is ready.
    pub(crate) fn start(config: &ProcessConfig, fork_server: &ForkServer, replica: &Replica) -> Result<Self, Failure> {
        let mut worker = Self {
            child: ChildProcess::start(config, fork_server, replica)?,
            reader: FrameReader::new(config.max_batch_bytes),
            memories: None,
            calls: None,
            limits: limits(config.max_batch_bytes),
            next_id: 0,
            next_tick: Instant::now(),
            stop_timeout: config.stop_timeout,
            stage: replica.stage().to_string(),
            replica: replica.index(),
            max_batches: 1,
            is_leaving: false,
        };
        // Frames of a child with several calls are read on the runtime, which must not copy for long.
        let shared_memory = config.shared_memory && config.concurrency.is_none() && shared_memory::IS_SUPPORTED;
        if shared_memory {
            worker.reader.set_memories(Incoming::new(Reading::Copies));
        }
        let concurrency = config.concurrency.map(NonZeroU32::get);
        let credit = concurrency.map(|_| CREDIT);
        let start = Start { max_batches: concurrency, credit, shared_memory, ..Start::new(config, replica) };
        let start = ToChild::Start(start);
        match worker.until_ready(&start, concurrency.unwrap_or(1) as usize, config.start_timeout) {
            Ok(child_shares) => {
                worker.memories = (shared_memory && child_shares).then(Outgoing::default);
                worker.child.set_busy(false);
                Ok(worker)
            }
            Err(lost) => Err(worker.not_started(lost, config)),
        }
    }

    /// Another handle of its socket.
    pub(crate) fn socket(&self) -> io::Result<UnixStream> {
        self.child.stream.get_ref().try_clone()
    }

    pub(crate) fn max_batches(&self) -> usize {
        self.max_batches
    }

    pub(crate) fn limits(&self) -> &DecodeLimits {
        &self.limits
    }

    /// The end of the child is noticed where its socket is read.
    pub(crate) fn set_busy(&self) {
        self.child.set_busy(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    /// Reads a frame from a socket that does not block.
    pub(crate) fn try_receive(&mut self) -> io::Result<Option<Frame>> {
        self.reader.read(&mut self.child.stream)
    }

    /// The error of a start: one line, of which the log has the details.
    fn not_started(&mut self, lost: Lost, config: &ProcessConfig) -> Failure {
        let reason = match lost {
            Lost::NotStarted { message, trace } => {
                let (stage, replica) = (&self.stage, self.replica);
                trace.lines().take(MAX_TRACE_LINES).for_each(|line| tracing::error!(stage, replica, "{line}"));
                format!("could not start: {message}")
            }
            lost => {
                let exit = self.end(lost);
                let last = self.child.last_line();
                last.map_or_else(|| exit.reason().to_owned(), |last| format!("{}: {last}", exit.reason()))
            }
        };
        Failure::new(format!("`{}`: {reason}", config.shown()))
    }

    /// Ends the child and says how it ended.
    pub(crate) fn end(&mut self, lost: Lost) -> WorkerExit {
        if let Lost::Broken(cause) = lost {
            self.child.kill_for(cause);
        }
        self.child.exit()
    }

    /// Returns whether the child shares memory.
    fn until_ready(&mut self, start: &ToChild, wanted: usize, timeout: Duration) -> Result<bool, Lost> {
        let end = Instant::now().checked_add(timeout);
        self.send(start, &[], end)?;
        loop {
            let frame = self.receive(|_| {
                let is_late = end.is_some_and(|end| Instant::now() >= end);
                if is_late { Err(Lost::Broken(format!("it was not ready within {timeout:?}"))) } else { Ok(()) }
            })?;
            match head(&frame)? {
                FromChild::Ready { protocol: PROTOCOL, worker, shared_memory, max_batches } => {
                    self.max_batches = max_batches.min(wanted).max(1);
                    let (stage, replica) = (&self.stage, self.replica);
                    tracing::debug!(stage, replica, worker, "the child is ready");
                    return Ok(shared_memory);
                }
                FromChild::Ready { protocol, .. } => {
                    return Err(Lost::Broken(format!("it speaks version {protocol} of the protocol, not {PROTOCOL}")));
                }
                FromChild::Failed { message, trace } => {
                    return Err(Lost::NotStarted { message, trace: trace.unwrap_or_default() });
                }
                FromChild::Log { level, target, message, request_id } => {
                    self.log(&level, &target, message, request_id.as_deref());
                }
                FromChild::Output { .. } | FromChild::Outcomes { .. } | FromChild::Pong => {
                    return Err(Lost::Broken("it answered before it was ready".to_owned()));
                }
                FromChild::Call { .. } | FromChild::CancelCall { .. } => {
                    return Err(Lost::Broken("it called before it was ready".to_owned()));
                }
            }
        }
    }

    /// Runs the items of a part of a batch: sends them, passes outputs on, makes the child's calls, tells the child of
    /// callers that leave, and waits for the outcomes.
    fn exchange(
        &mut self,
        part: BatchPart,
        callers: &mut dyn Callers,
    ) -> Result<(Frame, Vec<Option<ItemError>>), Lost> {
        let BatchPart { indices, calls, inputs } = part;
        let running = self.next_id;
        self.next_id += 1;
        self.send(&ToChild::Batch { id: running, items: calls }, &inputs, None)?;
        let count = inputs.len();
        // The child has them now.
        drop(inputs);
        let mut is_cancelled = vec![false; count];
        loop {
            let frame = self.receive(|worker| {
                // After the stage's timeout, or when the node stops.
                if worker.child.is_given_up() {
                    return Err(Lost::Broken("nobody waits for its answer any more".to_owned()));
                }
                worker.deliver(|| latest(&*callers, &indices))?;
                for (item, is_cancelled) in is_cancelled.iter_mut().enumerate() {
                    if !*is_cancelled && callers.has_left(indices[item]) {
                        *is_cancelled = worker.cancel(running, item)?;
                        if !*is_cancelled {
                            break;
                        }
                        if let Some(calls) = &mut worker.calls {
                            calls.cancel_item(item, latest(&*callers, &indices).is_none());
                        }
                    }
                }
                Ok(())
            })?;
            match head(&frame)? {
                FromChild::Outcomes { id, items, last } if id == running => {
                    if items.len() == count {
                        self.calls.iter_mut().for_each(Calls::end);
                        self.is_leaving |= last;
                        return Ok((frame, items));
                    }
                    return Err(Lost::Broken(format!("it answered {} outcomes for {count} items", items.len())));
                }
                FromChild::Output { id, item } if id == running && item < count && frame.parts.len() == 1 => {
                    callers.take_output(indices[item], decode(&frame.parts[0], &self.limits))?;
                }
                FromChild::Call { id, batch, item, route } => {
                    let within = match item.map(|item| indices.get(item)) {
                        _ if batch != running => None,
                        Some(index) => index.map(|index| callers.context(*index)),
                        None => latest(&*callers, &indices),
                    };
                    self.call(id, item, within, route, &frame)?;
                }
                FromChild::CancelCall { id } => self.calls.iter_mut().for_each(|calls| calls.cancel(id)),
                FromChild::Outcomes { .. } | FromChild::Output { .. } | FromChild::Pong => {
                    return Err(Lost::unasked());
                }
                FromChild::Log { level, target, message, request_id } => {
                    self.log(&level, &target, message, request_id.as_deref());
                }
                FromChild::Ready { .. } | FromChild::Failed { .. } => {
                    return Err(Lost::started_twice());
                }
            }
        }
    }

    /// Makes a call of the child, for an item that runs.
    fn call(
        &mut self,
        id: u64,
        item: Option<usize>,
        within: Option<CallContext>,
        route: String,
        frame: &Frame,
    ) -> Result<(), Lost> {
        let calls = match &mut self.calls {
            Some(calls) => calls,
            none => none.insert(Calls::new()?),
        };
        if frame.parts.len() != 1 || !calls.is_new(id) {
            return Err(Lost::wrong_call());
        }
        let input = Value::decode(Format::Envelope, &frame.parts[0], &self.limits).map_err(CallError::from);
        match within.ok_or_else(calls::over).and_then(|within| Ok((within, input?))) {
            Ok((within, input)) => calls.start(id, item, &within, route, input),
            Err(error) => calls.refuse(id, error),
        }
        Ok(())
    }

    /// Sends the results of calls that have come.
    fn deliver(&mut self, another: impl Fn() -> Option<CallContext>) -> Result<(), Lost> {
        let outcomes = self.calls.as_mut().map(|calls| calls.take(another));
        outcomes.into_iter().flatten().try_for_each(|(id, outcome)| self.send_result(id, outcome))
    }

    fn send_result(&mut self, id: u64, outcome: CallOutcome) -> Result<(), Lost> {
        let (message, output) = calls::result(id, outcome, self.limits.max_bytes);
        self.send(&message, output.as_slice(), None)
    }

    /// Runs a batch and marks the child as busy meanwhile. A child that is lost ends the replica.
    fn run<T>(&mut self, exchange: impl FnOnce(&mut Self) -> Result<T, Lost>) -> T {
        self.child.set_busy(true);
        match exchange(self) {
            Ok(outcomes) => {
                // Its end is reported before the replica takes another batch.
                if self.is_leaving && !self.child.has_ended_within(LEAVE_GRACE) {
                    self.child.kill_for("it has not ended, as it said");
                    self.child.has_ended_within(LEAVE_GRACE);
                }
                self.child.set_busy(false);
                outcomes
            }
            Err(lost) => self.end(lost).unwind(),
        }
    }

    /// Lets the child clean up, and logs what it says meanwhile.
    fn stop(&mut self) {
        self.child.set_busy(true);
        let end = Instant::now().checked_add(self.stop_timeout);
        if self.send(&ToChild::Stop, &[], end).is_err() {
            return;
        }
        let is_late = |_: &mut Self| match end {
            Some(end) if Instant::now() >= end => Err(Lost::Ended),
            _ => Ok(()),
        };
        while let Ok(frame) = self.receive(is_late) {
            if let Ok(FromChild::Log { level, target, message, request_id }) = head(&frame) {
                self.log(&level, &target, message, request_id.as_deref());
            }
        }
        self.child.has_ended_within(end.map_or(self.stop_timeout, |end| end.saturating_duration_since(Instant::now())));
    }

    /// Sends a frame. A child that has not read it until `end`, or when its replica is over, must be killed.
    fn send(&mut self, message: &ToChild, parts: &[Envelope], end: Option<Instant>) -> Result<(), Lost> {
        let head = message::encode(message).map_err(|error| Lost::Broken(error.to_string()))?;
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        let Placed { memory, descriptor } =
            self.memories.as_mut().map_or_else(Placed::default, |memories| memories.place(parts.clone()));
        Ok(write_frame(&mut PatientWriter::new(&self.child, descriptor, end), &head, parts, memory)?)
    }

    /// Tells the child that a caller has left. False: it reads nothing for now, and is told later.
    fn cancel(&self, id: u64, item: usize) -> Result<bool, Lost> {
        let head = message::encode(&ToChild::Cancel { id, item }).map_err(|error| Lost::Broken(error.to_string()))?;
        let mut writer = PatientWriter::new(&self.child, None, Some(Instant::now()));
        // A frame of this size is written whole or not at all.
        match write_frame(&mut writer, &head, std::iter::empty(), 0) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            written => Ok(written.map(|()| true)?),
        }
    }

    /// Waits for a frame. `tick` is called at least every [`TICK`], and when results of calls have come.
    fn receive(&mut self, mut tick: impl FnMut(&mut Self) -> Result<(), Lost>) -> Result<Frame, Lost> {
        loop {
            let is_due = Instant::now() >= self.next_tick;
            if is_due || self.calls.as_ref().is_some_and(Calls::has_outcomes) {
                tick(self)?;
            }
            if is_due {
                self.next_tick = Instant::now() + TICK;
            }
            // Looked at before the socket: what a child has sent before its end is read.
            let has_ended = self.child.has_ended();
            let calls = self.calls.as_ref().filter(|calls| calls.is_waiting());
            let mut stream = PatientReader { stream: &mut self.child.stream, until: self.next_tick, calls };
            match self.reader.read(&mut stream) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => return Err(Lost::Ended),
                Err(error) if is_not_ready(&error) && has_ended => return Err(Lost::Ended),
                Err(error) if is_not_ready(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn log(&self, level: &str, target: &str, mut message: String, request_id: Option<&str>) {
        if let Some((end, _)) = message.char_indices().nth(MAX_LOG_CHARS) {
            message.truncate(end);
        }
        let (stage, replica) = (&self.stage, self.replica);
        match level {
            "error" => tracing::error!(stage, replica, logger = target, request_id, "{message}"),
            "warn" => tracing::warn!(stage, replica, logger = target, request_id, "{message}"),
            "debug" => tracing::debug!(stage, replica, logger = target, request_id, "{message}"),
            _ => tracing::info!(stage, replica, logger = target, request_id, "{message}"),
        }
    }
}

pub(crate) fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Reads until a moment, also from a child that sends a few bytes at a time, or until a result of a call has come.
struct PatientReader<'s> {
    stream: &'s mut BufReader<Inbox>,
    until: Instant,
    calls: Option<&'s Calls>,
}

impl Read for PatientReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stream.buffer().is_empty() {
            let is_over = match self.calls {
                Some(calls) => !calls.wait(self.stream.get_ref().as_fd(), self.until)?,
                None => Instant::now() >= self.until,
            };
            if is_over {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.stream.read(buffer)
    }
}

impl Source for PatientReader<'_> {
    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.stream.take_descriptor()
    }

    fn has_stray_descriptor(&self) -> bool {
        self.stream.has_stray_descriptor()
    }
}

/// Writes to a child that may not read for now.
struct PatientWriter<'c> {
    child: &'c ChildProcess,
    outbox: Outbox<'c>,
    end: Option<Instant>,
}

impl<'c> PatientWriter<'c> {
    fn new(child: &'c ChildProcess, descriptor: Option<OwnedFd>, end: Option<Instant>) -> Self {
        Self { child, outbox: child.stream.get_ref().outbox(descriptor), end }
    }
}

impl Write for PatientWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.outbox.write(bytes) {
                Err(error) if is_not_ready(&error) => {
                    if self.child.is_given_up() || self.end.is_some_and(|end| Instant::now() >= end) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    if self.child.has_ended() {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The callers of a batch, by the index of their item.
trait Callers {
    /// The call of this item.
    fn context(&self, index: usize) -> CallContext;

    /// Whether the caller of this item has left, or its deadline has passed.
    fn has_left(&mut self, index: usize) -> bool;

    /// Gives the caller of this item an output of a stream.
    fn take_output(&mut self, index: usize, output: Result<Value, Failure>) -> Result<(), Lost>;
}

/// The call with the latest deadline whose caller still waits.
fn latest(callers: &dyn Callers, indices: &[usize]) -> Option<CallContext> {
    let now = callboard_core::Instant::now();
    let wanted = indices.iter().map(|index| callers.context(*index)).filter(|context| context.is_wanted(now));
    wanted.max_by_key(CallContext::deadline)
}

/// Callers that wait for one output each.
struct SingleCallers<'b>(&'b Batch<Value>);

impl Callers for SingleCallers<'_> {
    fn context(&self, index: usize) -> CallContext {
        self.0.context(index)
    }

    fn has_left(&mut self, index: usize) -> bool {
        !self.0.context(index).is_wanted(callboard_core::Instant::now())
    }

    fn take_output(&mut self, _: usize, _: Result<Value, Failure>) -> Result<(), Lost> {
        Err(Lost::Broken("it answered with a stream, and the stage gives one output".to_owned()))
    }
}

impl Worker for ProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        let (parts, mut outcomes) = parts(&batch, self.limits.max_bytes);
        if !parts.is_empty() {
            self.run(|worker| {
                for part in parts {
                    let indices = part.indices.clone();
                    let (frame, errors) = worker.exchange(part, &mut SingleCallers(&batch))?;
                    for (index, outcome) in indices.into_iter().zip(single_outputs(&frame, errors, &worker.limits)?) {
                        outcomes[index] = Some(outcome);
                    }
                }
                Ok(())
            });
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each item is in a part, or has failed")).collect()
    }

    fn cleanup(&mut self) {
        self.stop();
    }
}

/// A worker that answers each item with a stream.
pub(crate) struct StreamingProcessWorker(pub(crate) ProcessWorker);

/// Callers that read a stream each.
struct StreamCallers<'b>(&'b Batch<Value>, &'b mut Outputs<Value>);

impl Callers for StreamCallers<'_> {
    fn context(&self, index: usize) -> CallContext {
        self.0.context(index)
    }

    fn has_left(&mut self, index: usize) -> bool {
        !self.1.is_wanted(index)
    }

    fn take_output(&mut self, index: usize, output: Result<Value, Failure>) -> Result<(), Lost> {
        match output {
            // A caller that has left is noticed at the next tick.
            Ok(output) => _ = self.1.emit(index, output),
            Err(failure) => self.1.fail(index, failure),
        }
        Ok(())
    }
}

impl StreamWorker for StreamingProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>, outputs: &mut Outputs<Value>) {
        let (parts, outcomes) = parts(&batch, self.0.limits.max_bytes);
        for (index, outcome) in outcomes.into_iter().enumerate() {
            outcome.and_then(Result::err).into_iter().for_each(|failure| outputs.fail(index, failure));
        }
        if parts.is_empty() {
            return;
        }
        self.0.run(|worker| {
            for part in parts {
                let indices = part.indices.clone();
                let (frame, errors) = worker.exchange(part, &mut StreamCallers(&batch, outputs))?;
                if !frame.parts.is_empty() {
                    return Err(Lost::Broken("it answered with single outputs, and the stage streams".to_owned()));
                }
                for (index, error) in indices.into_iter().zip(errors) {
                    error.into_iter().for_each(|error| outputs.fail(index, failure(error)));
                }
            }
            Ok(())
        });
    }

    fn cleanup(&mut self) {
        self.0.stop();
    }
}

/// Items that one frame can hold.
#[derive(Default)]
struct BatchPart {
    indices: Vec<usize>,
    calls: Vec<CallHead>,
    inputs: Vec<Envelope>,
}

/// Divides a batch into parts within the limits of a frame: nearly always one. Items that cannot be sent have failed.
fn parts(batch: &Batch<Value>, max_bytes: usize) -> (Vec<BatchPart>, Vec<Option<Result<Value, Failure>>>) {
    let (mut all, mut part, mut bytes) = (Vec::new(), BatchPart::default(), 0);
    let mut outcomes = Vec::with_capacity(batch.len());
    for (index, item) in batch.iter().enumerate() {
        let input = match envelope(item, max_bytes) {
            Ok(input) => input,
            Err(failure) => {
                outcomes.push(Some(Err(failure)));
                continue;
            }
        };
        if input.len() > max_bytes - bytes || part.indices.len() == MAX_ITEMS {
            all.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += input.len();
        part.indices.push(index);
        part.calls.push(call_head(&batch.context(index)));
        part.inputs.push(input);
        outcomes.push(None);
    }
    if !part.indices.is_empty() {
        all.push(part);
    }
    (all, outcomes)
}

/// An item as a part of a frame.
pub(crate) fn envelope(item: &Value, max_bytes: usize) -> Result<Envelope, Failure> {
    let input = item.to_envelope()?;
    if input.len() > max_bytes {
        let bytes = input.len();
        let message = format!("the item has {bytes} bytes, more than {max_bytes} (max_batch_bytes)");
        return Err(Failure::invalid_input(message));
    }
    Ok(input)
}

/// The outcomes of single outputs: an error, or the next part.
fn single_outputs(
    frame: &Frame,
    errors: Vec<Option<ItemError>>,
    limits: &DecodeLimits,
) -> Result<Vec<Result<Value, Failure>>, Lost> {
    if errors.iter().filter(|error| error.is_none()).count() != frame.parts.len() {
        return Err(Lost::wrong_outputs());
    }
    let mut parts = frame.parts.iter();
    let outcome = |error: Option<ItemError>| match error {
        Some(error) => Err(failure(error)),
        None => decode(parts.next().expect("as many as successes"), limits),
    };
    Ok(errors.into_iter().map(outcome).collect())
}

/// An output that cannot be read is the failure of its item.
pub(crate) fn decode(part: &Bytes, limits: &DecodeLimits) -> Result<Value, Failure> {
    let refused = |error: DecodeError| Failure::new(format!("the worker's output cannot be read: {error}"));
    Value::decode(Format::Envelope, part, limits).map_err(refused)
}

pub(crate) fn head(frame: &Frame) -> Result<FromChild, Lost> {
    message::decode(&frame.head).map_err(|error| Lost::Broken(format!("it sent a message that is not known: {error}")))
}

pub(crate) fn call_head(context: &CallContext) -> CallHead {
    let remaining = context.deadline().remaining(callboard_core::Instant::now());
    CallHead {
        remaining_ms: u64::try_from(remaining.as_millis()).ok(),
        request_id: context.request_id().map(str::to_owned),
        traceparent: context.traceparent(),
        caller: context.caller().map(str::to_owned),
        route: context.route().map(|route| route.to_string()),
    }
}

pub(crate) fn failure(error: ItemError) -> Failure {
    let ItemError { message, invalid, kind, stage, status, error_type, details, retry_after_ms, trace } = error;
    let mut failure = if let Some(kind) = kind.as_deref().and_then(ErrorKind::from_name) {
        // The error of a call that the child has made, which it passes on.
        let stage = stage.as_deref().map(StageName::new);
        Failure::from(CallError::from(ErrorParts { stage, ..ErrorParts::new(kind, message) }))
    } else if invalid {
        Failure::invalid_input(message).with_status(INVALID_STATUS)
    } else {
        Failure::new(message)
    };
    if let Some(status) = status {
        failure = failure.with_status(status);
    }
    if let Some(error_type) = error_type {
        failure = failure.with_type(error_type);
    }
    if let Some(details) = details {
        failure = failure.with_details(details);
    }
    if let Some(after) = retry_after_ms {
        failure = failure.with_retry_after(Duration::from_millis(after));
    }
    match trace {
        Some(trace) => failure.with_trace(trace),
        None => failure,
    }
}
