//! A worker whose code runs in a child process.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::{DecodeError, DecodeLimits, Envelope, Format, Value};
use callboard_core::{Batch, Failure, Outputs, Replica, StreamWorker, Worker, WorkerExit};

use crate::child::{ChildProcess, TICK};
use crate::config::ProcessConfig;
use crate::frame::{Frame, FrameReader, limits, write_frame};
use crate::message::{self, CallHead, FromChild, ItemError, MAX_ITEMS, PROTOCOL, Start, ToChild};
use crate::shared_memory::{self, Incoming, Outgoing, Placed, Reading};
use crate::socket::{Inbox, Outbox, Source};

/// The status of an input that does not have the service's type.
const INVALID_STATUS: u16 = 422;

/// The most lines of a traceback in the log, and the most characters of a record.
const MAX_TRACE_LINES: usize = 200;
const MAX_LOG_CHARS: usize = 8_000;

/// The node's side of one child.
pub(crate) struct ProcessWorker {
    child: ChildProcess,
    reader: FrameReader,
    /// If both sides share memory.
    memories: Option<Outgoing>,
    limits: DecodeLimits,
    next_id: u64,
    next_tick: Instant,
    stop_timeout: Duration,
    stage: String,
    replica: usize,
}

/// Why a child did not answer.
enum Lost {
    /// It has ended, or closed its socket.
    Ended,
    /// It must be killed.
    Broken(String),
    /// It says that it cannot start.
    NotStarted { message: String, trace: String },
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
    pub(crate) fn start(config: &ProcessConfig, replica: &Replica) -> Result<Self, Failure> {
        let mut worker = Self {
            child: ChildProcess::start(config, replica)?,
            reader: FrameReader::new(config.max_batch_bytes),
            memories: None,
            limits: limits(config.max_batch_bytes),
            next_id: 0,
            next_tick: Instant::now(),
            stop_timeout: config.stop_timeout,
            stage: replica.stage().to_string(),
            replica: replica.index(),
        };
        let shared_memory = config.shared_memory && shared_memory::IS_SUPPORTED;
        if shared_memory {
            worker.reader.set_memories(Incoming::new(Reading::Copies));
        }
        let start = ToChild::Start(Start {
            protocol: PROTOCOL,
            stage: replica.stage().to_string(),
            replica: replica.index(),
            generation: replica.generation(),
            max_batch_size: replica.max_batch_size(),
            max_bytes: config.max_batch_bytes,
            shared_memory,
            settings: replica.settings().clone(),
        });
        match worker.until_ready(&start, config.start_timeout) {
            Ok(child_shares) => {
                worker.memories = (shared_memory && child_shares).then(Outgoing::default);
                worker.child.set_busy(false);
                Ok(worker)
            }
            Err(lost) => Err(worker.not_started(lost, config)),
        }
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
    fn end(&mut self, lost: Lost) -> WorkerExit {
        if let Lost::Broken(cause) = lost {
            self.child.kill_for(cause);
        }
        self.child.exit()
    }

    /// Returns whether the child shares memory.
    fn until_ready(&mut self, start: &ToChild, timeout: Duration) -> Result<bool, Lost> {
        let end = Instant::now().checked_add(timeout);
        self.send(start, &[], end)?;
        loop {
            let frame = self.receive(|_| {
                let is_late = end.is_some_and(|end| Instant::now() >= end);
                if is_late { Err(Lost::Broken(format!("it was not ready within {timeout:?}"))) } else { Ok(()) }
            })?;
            match head(&frame)? {
                FromChild::Ready { protocol: PROTOCOL, worker, shared_memory } => {
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
                FromChild::Output { .. } | FromChild::Outcomes { .. } => {
                    return Err(Lost::Broken("it answered before it was ready".to_owned()));
                }
            }
        }
    }

    /// Runs the items of a part of a batch: sends them, passes outputs on, tells the child of callers that leave, and
    /// waits for the outcomes.
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
                for (item, is_cancelled) in is_cancelled.iter_mut().enumerate() {
                    if !*is_cancelled && callers.has_left(indices[item]) {
                        *is_cancelled = worker.cancel(running, item)?;
                        if !*is_cancelled {
                            break;
                        }
                    }
                }
                Ok(())
            })?;
            match head(&frame)? {
                FromChild::Outcomes { id, items } if id == running => {
                    if items.len() == count {
                        return Ok((frame, items));
                    }
                    return Err(Lost::Broken(format!("it answered {} outcomes for {count} items", items.len())));
                }
                FromChild::Output { id, item } if id == running && item < count && frame.parts.len() == 1 => {
                    callers.take_output(indices[item], decode(&frame.parts[0], &self.limits))?;
                }
                FromChild::Outcomes { .. } | FromChild::Output { .. } => {
                    return Err(Lost::Broken("it answered what it was not asked".to_owned()));
                }
                FromChild::Log { level, target, message, request_id } => {
                    self.log(&level, &target, message, request_id.as_deref());
                }
                FromChild::Ready { .. } | FromChild::Failed { .. } => {
                    return Err(Lost::Broken("it said twice whether it has started".to_owned()));
                }
            }
        }
    }

    /// Runs a batch and marks the child as busy meanwhile. A child that is lost ends the replica.
    fn run<T>(&mut self, exchange: impl FnOnce(&mut Self) -> Result<T, Lost>) -> T {
        self.child.set_busy(true);
        match exchange(self) {
            Ok(outcomes) => {
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

    /// Waits for a frame. `tick` is called at least every [`TICK`].
    fn receive(&mut self, mut tick: impl FnMut(&mut Self) -> Result<(), Lost>) -> Result<Frame, Lost> {
        loop {
            if Instant::now() >= self.next_tick {
                tick(self)?;
                self.next_tick = Instant::now() + TICK;
            }
            // Looked at before the socket: what a child has sent before its end is read.
            let has_ended = self.child.has_ended();
            let mut stream = PatientReader { stream: &mut self.child.stream, until: self.next_tick };
            match self.reader.read(&mut stream) {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => return Err(Lost::Ended),
                Err(error) if is_not_ready(&error) && has_ended => return Err(Lost::Ended),
                Err(error) if is_not_ready(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn log(&self, level: &str, target: &str, mut message: String, request_id: Option<&str>) {
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

fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Reads until a moment, also from a child that sends a few bytes at a time.
struct PatientReader<'s> {
    stream: &'s mut BufReader<Inbox>,
    until: Instant,
}

impl Read for PatientReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stream.buffer().is_empty() && Instant::now() >= self.until {
            return Err(io::ErrorKind::WouldBlock.into());
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
    /// Whether the caller of this item has left, or its deadline has passed.
    fn has_left(&mut self, index: usize) -> bool;

    /// Gives the caller of this item an output of a stream.
    fn take_output(&mut self, index: usize, output: Result<Value, Failure>) -> Result<(), Lost>;
}

/// Callers that wait for one output each.
struct SingleCallers<'b>(&'b Batch<Value>);

impl Callers for SingleCallers<'_> {
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

impl Callers for &mut Outputs<Value> {
    fn has_left(&mut self, index: usize) -> bool {
        !self.is_wanted(index)
    }

    fn take_output(&mut self, index: usize, output: Result<Value, Failure>) -> Result<(), Lost> {
        match output {
            // A caller that has left is noticed at the next tick.
            Ok(output) => _ = self.emit(index, output),
            Err(failure) => self.fail(index, failure),
        }
        Ok(())
    }
}

impl StreamWorker for StreamingProcessWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>, mut outputs: &mut Outputs<Value>) {
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
                let (frame, errors) = worker.exchange(part, &mut outputs)?;
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
        let input = match item.to_envelope() {
            Ok(input) if input.len() <= max_bytes => input,
            Ok(input) => {
                let message = format!("the item has {} bytes, more than {max_bytes} (max_batch_bytes)", input.len());
                outcomes.push(Some(Err(Failure::invalid_input(message))));
                continue;
            }
            Err(error) => {
                outcomes.push(Some(Err(error.into())));
                continue;
            }
        };
        if input.len() > max_bytes - bytes || part.indices.len() == MAX_ITEMS {
            all.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += input.len();
        part.indices.push(index);
        part.calls.push(call_head(batch, index));
        part.inputs.push(input);
        outcomes.push(None);
    }
    if !part.indices.is_empty() {
        all.push(part);
    }
    (all, outcomes)
}

/// The outcomes of single outputs: an error, or the next part.
fn single_outputs(
    frame: &Frame,
    errors: Vec<Option<ItemError>>,
    limits: &DecodeLimits,
) -> Result<Vec<Result<Value, Failure>>, Lost> {
    if errors.iter().filter(|error| error.is_none()).count() != frame.parts.len() {
        return Err(Lost::Broken("it answered another number of outputs than of successes".to_owned()));
    }
    let mut parts = frame.parts.iter();
    let outcome = |error: Option<ItemError>| match error {
        Some(error) => Err(failure(error)),
        None => decode(parts.next().expect("as many as successes"), limits),
    };
    Ok(errors.into_iter().map(outcome).collect())
}

/// An output that cannot be read is the failure of its item.
fn decode(part: &Bytes, limits: &DecodeLimits) -> Result<Value, Failure> {
    let refused = |error: DecodeError| Failure::new(format!("the worker's output cannot be read: {error}"));
    Value::decode(Format::Envelope, part, limits).map_err(refused)
}

fn head(frame: &Frame) -> Result<FromChild, Lost> {
    message::decode(&frame.head).map_err(|error| Lost::Broken(format!("it sent a message that is not known: {error}")))
}

fn call_head(batch: &Batch<Value>, index: usize) -> CallHead {
    let context = batch.context(index);
    let remaining = context.deadline().remaining(callboard_core::Instant::now());
    CallHead {
        remaining_ms: u64::try_from(remaining.as_millis()).ok(),
        request_id: context.request_id().map(str::to_owned),
        traceparent: context.traceparent(),
        caller: context.caller().map(str::to_owned),
        route: context.route().map(|route| route.to_string()),
    }
}

fn failure(error: ItemError) -> Failure {
    let ItemError { message, invalid, status, error_type, details, retry_after_ms, trace } = error;
    let mut failure =
        if invalid { Failure::invalid_input(message).with_status(INVALID_STATUS) } else { Failure::new(message) };
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
